package lifecycle

import (
	"errors"
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
}

// A directory in the place of the file is told, however it is written.
func TestADirectoryIsNoFileToKeepIn(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, dir + "/", dir + "/."} {
		k, err := OpenKeeper(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Load(t.Context()); !errors.Is(err, ErrForeign) {
			t.Errorf("persist %s: %v, want %v", path, err, ErrForeign)
		}
	}
}
