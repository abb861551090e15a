package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// release builds what make release does, for this machine, and returns the program. Two at once
// would compile everything twice.
func release(t *testing.T, checkout, dir string) string {
	t.Helper()
	target := runtime.GOOS + "/" + runtime.GOARCH
	// A copy of a checkout has no commit.
	cmd := exec.Command("make", "release", "DIST="+dir, "TARGETS="+target, "VCS=false")
	cmd.Dir = checkout
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, output)
	}
	return filepath.Join(dir, "caddy-tide-"+runtime.GOOS+"-"+runtime.GOARCH)
}

// The program of a release starts in a root that holds nothing else, as nobody, who can't write
// there, and limits.
func TestReleaseStartsAlone(t *testing.T) {
	needRoot(t)
	program := release(t, "..", t.TempDir())
	isStatic(t, program)
	c := newContainer(t, "alone", program)
	addr := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	c.write(t, "/etc/caddy/Caddyfile", "{\n\tadmin off\n}\nhttp://"+addr+" {\n\trate_limit 2/1h\n\trespond ok\n}\n")
	c.start(t, "/usr/bin/caddy", "run", "--config", "/etc/caddy/Caddyfile")
	var got []int
	ask := func() bool {
		answer, err := http.Get("http://" + addr)
		if err == nil {
			_ = answer.Body.Close()
			got = append(got, answer.StatusCode)
		}
		return err == nil
	}
	eventually(t, "it answers", ask)
	ask()
	ask()
	if want := []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Another directory makes the same bytes, and the checksums are those of all files.
func TestReleaseIsReproducible(t *testing.T) {
	copied, one, other := t.TempDir(), t.TempDir(), t.TempDir()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == ".git" || d.Name() == "dist") {
				err = fs.SkipDir
			}
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(copied, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	release(t, "..", one)
	release(t, copied, other)
	var sums [2][]byte
	for i, dir := range []string{one, other} {
		if sums[i], err = os.ReadFile(filepath.Join(dir, "SHA256SUMS")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("in another directory the checksums are\n%s, and not\n%s", sums[1], sums[0])
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = one
	if output, err := check.CombinedOutput(); err != nil || bytes.Count(output, []byte(": OK\n")) != 2 {
		t.Errorf("sha256sum --check: %v\n%s", err, output)
	}
}

// The bill of materials has the program's hash, and the versions of the modules in go.mod.
func TestReleaseSaysWhatItIsMadeOf(t *testing.T) {
	dir := t.TempDir()
	program := release(t, "..", dir)
	text, err := os.ReadFile(program + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&bom); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(*bom.Metadata.Properties, func(p cyclonedx.Property) bool {
		return p.Name == "cdx:gomod:binary:hash:SHA-256" && bytes.HasPrefix(sums, []byte(p.Value+"  "))
	}) {
		t.Errorf("the bill has %v, and SHA256SUMS is\n%s", *bom.Metadata.Properties, sums)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for _, c := range *bom.Components {
		has[c.Name] = c.Version
		if c.PackageURL == "" || c.BOMRef == "" {
			t.Errorf("%+v has no URL", c)
		}
	}
	for _, name := range []string{"github.com/caddyserver/caddy/v2", "github.com/redis/go-redis/v9"} {
		want := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(name) + ` (\S+)`).FindSubmatch(mod)
		if want == nil || has[name] != string(want[1]) {
			t.Errorf("%s is %q, want %q as in go.mod", name, has[name], want)
		}
	}
	if has["std"] != runtime.Version() {
		t.Errorf("the standard library is %q, want that of %s", has["std"], runtime.Version())
	}
	isAll := func(d cyclonedx.Dependency) bool { // but the standard library
		return d.Dependencies != nil && len(*d.Dependencies) == len(*bom.Components)-1
	}
	if !slices.ContainsFunc(*bom.Dependencies, isAll) {
		t.Error("the program doesn't depend on all modules")
	}
}
