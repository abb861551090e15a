package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../../../"

// The same code writes the same figures, and those of the page are of this code. Tables that take
// long are not held here.
func TestPageHasTheFiguresOfThisCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := tables["small"]()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), body) {
		t.Errorf("section \"small\" is not what this code writes; go run ./internal/sim/cmd/accuracy brings it up to date. Now:\n%s", body)
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
