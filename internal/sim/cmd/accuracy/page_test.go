package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../../../"

// The same code writes the same figures, and those of the pages are of this code. A table that
// takes long is not held here, nor the one whose keys are hashed with a seed of the process.
func TestPageHasTheFiguresOfThisCode(t *testing.T) {
	text := readAll(t)
	for _, name := range []string{"small", "distant"} {
		body, err := tables[name]()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, body) {
			t.Errorf("section %q is not what this code writes; go run ./internal/sim/cmd/accuracy brings it up to date. Now:\n%s", name, body)
		}
	}
}

func TestReplace(t *testing.T) {
	mark := fmt.Sprintf(begins, "a")
	got, err := replace("before\n"+mark+"old\n"+ends+"after\n", "a", "new")
	if want := "before\n" + mark + "\nnew\n\n" + ends + "after\n"; got != want || err != nil {
		t.Errorf("replace() = %q, %v, want %q", got, err, want)
	}
	if _, err := replace(mark+"old\n", "a", "new"); err == nil {
		t.Error("replace() of a section without an end gives no error")
	}
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readAll reads all pages.
func readAll(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, page := range pages {
		text.WriteString(read(t, page))
	}
	return text.String()
}
