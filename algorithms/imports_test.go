package algorithms

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Decisions are pure: no I/O, no clock of their own, no locks, nothing of Caddy. That goes for all
// packages of this module that they are made of.
func TestImports(t *testing.T) {
	const module = "github.com/caddy-tide/ratelimit/"
	list := `{{if not .Standard}}{{range .Imports}}{{.}} {{end}}{{end}}`
	out, err := exec.Command("go", "list", "-deps", "-f", list, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	pure := []string{"maps", "math", "math/bits", "slices", "time"}
	for _, path := range strings.Fields(string(out)) {
		if !slices.Contains(pure, path) && !strings.HasPrefix(path, module) {
			t.Errorf("imports %s, want no more than %v", path, pure)
		}
	}
}
