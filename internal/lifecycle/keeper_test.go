package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/certmagic"
)

// persist takes on and off as all options do that are on or off, also by an environment variable.
// No file is named so.
func TestPersistIsOnOrOff(t *testing.T) {
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	inStorage, err := OpenKeeper(InStorage, storage)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"off", "on", "{env.TIDE_TEST_PERSIST}"} {
		t.Setenv("TIDE_TEST_PERSIST", "off")
		k, err := OpenKeeper(value, storage)
		if isOn := value == "on"; err != nil || (k != nil) != isOn || isOn && k.String() != inStorage.String() {
			t.Errorf("persist %s keeps in %v, %v", value, k, err)
		}
	}
	for _, value := range []string{"OFF", "On", "false", "none", "No", "true"} {
		if _, err := OpenKeeper(value, storage); err == nil || !strings.Contains(err.Error(), "write on or off in place of") {
			t.Errorf("persist %s: %v", value, err)
		}
	}
}

// A directory in the place of the file is told, however it is written.
func TestADirectoryIsNoFileToKeepIn(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, dir + "/", dir + "/."} {
		k, err := OpenKeeper(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Load(t.Context()); !errors.Is(err, ErrForeign) || !strings.HasPrefix(err.Error(), dir+": ") {
			t.Errorf("persist %s: %v, want %v", path, err, ErrForeign)
		}
	}
}

// A control record of another version is told, and an empty file is none.
func TestAControlRecordOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kept")
	k, err := OpenKeeper(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]error{"": nil, controlLine + "{}": nil, controlMark + "2\n{}": errVersion} {
		if err := os.WriteFile(path+besideIt, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := k.LoadControl(t.Context()); err != want {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}
