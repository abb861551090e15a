package main

import (
	"strings"
	"testing"
)

func TestCommentIsTakenApart(t *testing.T) {
	f := newField("Burst", "Burst is how many requests may come\nat once. Range: 1 or more. Default: the limit. Since: 0.2.0.\n")
	if *f != (field{"How many requests may come at once.", "the limit", "1 or more", "0.2.0"}) {
		t.Errorf("got %+v", *f)
	}
	if got, want := wrap(strings.Repeat("word ", 19)+"`a b c`", "  "), strings.Repeat("word ", 19)+"\n  `a b c`\n"; got != strings.ReplaceAll(want, " \n", "\n") {
		t.Errorf("wrap = %q", got)
	}
}
