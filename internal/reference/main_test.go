package main

import (
	"os"
	"strings"
	"testing"
)

// The pages are what this writes of the code, and every text of it is there.
func TestPagesAreWhatTheCodeSays(t *testing.T) {
	t.Chdir("../..")
	written, err := pages()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range written {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not what the code says (%v); run `go run ./internal/reference`", name, err)
		}
		if strings.Contains(want, "**: .") || strings.Contains(want, "<value>`") {
			t.Errorf("%s has an entry without its default or its example", name)
		}
	}
}

func TestCommentIsTakenApart(t *testing.T) {
	f := newField("Burst", "Burst is how many requests may come\nat once. Range: 1 or more. Default: the limit. Since: 0.2.0.\n")
	if *f != (field{"How many requests may come at once.", "the limit", "1 or more", "0.2.0"}) {
		t.Errorf("got %+v", *f)
	}
	if got, want := wrap(strings.Repeat("word ", 19)+"`a b c`", "  "), strings.Repeat("word ", 19)+"\n  `a b c`\n"; got != strings.ReplaceAll(want, " \n", "\n") {
		t.Errorf("wrap = %q", got)
	}
}
