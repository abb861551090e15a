package algorithms

import (
	"os/exec"
	"testing"
)

// Decisions are pure: no I/O, no clock of their own, no locks, nothing of Caddy.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Imports}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	if got, want := string(out), "[math math/bits time]\n"; got != want {
		t.Errorf("imports: got %s, want %s", got, want)
	}
}
