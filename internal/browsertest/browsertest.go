// Package browsertest opens pages in a Chromium, for tests of what a browser makes of them.
package browsertest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Open opens a page in a headless Chromium, and returns what it prints and logs.
func Open(t *testing.T, page string, flags ...string) (out, log string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" || os.Getenv("TIDE_REQUIRE_REDIS") == "1" {
			t.Fatal("this test needs chromium; on Debian: apt-get install chromium")
		}
		t.Skip("this test needs chromium; on Debian: apt-get install chromium")
	}
	cmd := exec.CommandContext(t.Context(), program, append(append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--user-data-dir=" + t.TempDir(),
		"--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
	}, flags...), page)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	return string(text), errs.String()
}
