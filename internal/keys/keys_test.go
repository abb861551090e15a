package keys

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// keyOfVar asks a process of this test to print what it makes of a key, and to do nothing else.
const keyOfVar = "TIDE_TEST_KEY"

func TestMain(m *testing.M) {
	if raw := os.Getenv(keyOfVar); raw != "" {
		fmt.Printf("%x %x\n", KeyOf([]byte(raw)), IDOf([]byte(raw)))
		return
	}
	os.Exit(m.Run())
}

// Nobody outside can find two keys that meet in a table: each process hashes them its own way.
// Between nodes a key has one name.
func TestEachProcessHashesItsOwnWay(t *testing.T) {
	var keys, ids []string
	for range 2 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), keyOfVar+"=1.2.3.4")
		out, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}
		key, id, _ := strings.Cut(strings.TrimSpace(string(out)), "} ")
		keys, ids = append(keys, key), append(ids, id)
	}
	if keys[0] == keys[1] || len(keys[0]) < 20 {
		t.Errorf("two processes make %q and %q of one key, want different hashes", keys[0], keys[1])
	}
	if want := fmt.Sprintf("%x", IDOf([]byte("1.2.3.4"))); ids[0] != want || ids[1] != want {
		t.Errorf("two processes name one key %q and %q, want both %q", ids[0], ids[1], want)
	}
}
