// Package browsertest opens pages in a Chromium, for tests of what a browser makes of them.
package browsertest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Open opens a page in a headless Chromium, and returns what it prints and logs.
func Open(t *testing.T, page string, more ...string) (out, log string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), find(t), append(flags(t, more...), page)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	return string(text), errs.String()
}

// find returns the program.
func find(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("this test needs chromium; on Debian: apt-get install chromium")
		}
		t.Skip("this test needs chromium; on Debian: apt-get install chromium")
	}
	return program
}

// flags are those of a browser that knows nothing yet and asks nobody but this machine.
func flags(t *testing.T, more ...string) []string {
	return append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--user-data-dir=" + t.TempDir(),
		"--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
	}, more...)
}
