//go:build unix

package calendar

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/caddy-tide/ratelimit/algorithms"
)

func TestNamesOfCalendars(t *testing.T) {
	for _, text := range []string{"day-Europe/Berlin", "week-UTC", "month-Etc/GMT-3-15", "month-America/Port-au-Prince-1", "year-America/Port-au-Prince"} {
		c, err := Parse(text)
		if err != nil || Text(c) != text {
			t.Errorf("%s is read as %v, %v", text, c, err)
		}
		if again, _ := Parse(text); again != c {
			t.Errorf("there are two calendars %s", text)
		}
	}
	for _, text := range []string{"", "hour-UTC", "month", "month-UTC", "month-UTC-x", "month-UTC-32", "day-", "day-Local", "day-Europe/Berln"} {
		if c, err := Parse(text); err == nil {
			t.Errorf("%q is read as %s", text, Text(c))
		}
	}
	for from, want := range map[int]bool{0: false, 1: true, 31: true, 32: false, -1: false} {
		if _, err := Of(algorithms.Month, "UTC", from); (err == nil) != want {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

// A system may have no zone data, as small containers don't: the program has its own.
func TestWithoutZoneData(t *testing.T) {
	if os.Getenv("TIDE_TEST_NO_ZONES") != "" {
		if _, err := os.Stat("/usr/share/zoneinfo"); err == nil {
			t.Fatal("the system has zone data")
		}
		for _, zone := range []string{"Europe/Berlin", "Antarctica/Casey"} {
			if _, err := Of(algorithms.Day, zone, 1); err != nil {
				t.Error(err)
			}
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can run a program without the files of the system")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	program, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "test"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/test", "-test.run", t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	c.Dir, c.Env = "/", []string{"TIDE_TEST_NO_ZONES=1"}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
