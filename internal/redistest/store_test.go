package redistest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// string.match of the store finds in each script's patterns what that of the library finds.
func TestMatchesAreThoseOfTheLibrary(t *testing.T) {
	state, library := NewStore(t, func() time.Time { return time.Time{} }).state, lua.NewState()
	defer library.Close()
	patterns := map[string]bool{}
	for _, dir := range []string{"sync", "sync/strict", "internal/cell", "internal/control"} {
		files, _ := filepath.Glob("../../" + dir + "/*.lua")
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`match\([^']*'([^']*)'`).FindAllSubmatch(text, -1) {
				patterns[string(m[1])] = true
			}
		}
	}
	if len(patterns) < 5 {
		t.Fatalf("the scripts have the patterns %v", patterns)
	}
	texts := []string{"", "0", "-1", "12 34 56 78", "12 34 56 78 {\"a\": 1}", "1.5 2", " 1", "1 ", "a", "a1", "7~8", "12:3", "é 1", "1\n2", "c-day-Europe/Berlin", "\xff 1 2"}
	one := regexp.MustCompile(`%[adS]|[0-9]|\.`)
	for pattern := range patterns {
		texts = append(texts, one.ReplaceAllString(pattern, "1"), one.ReplaceAllString(pattern, "x y"))
	}
	find := func(l *lua.LState, text, pattern string) (found string) {
		top := l.GetTop()
		if err := l.CallByParam(lua.P{Fn: l.GetField(l.GetGlobal("string"), "match"), NRet: lua.MultRet, Protect: true}, lua.LString(text), lua.LString(pattern)); err != nil {
			t.Fatal(err)
		}
		for i := top + 1; i <= l.GetTop(); i++ {
			found += fmt.Sprintf("%q ", l.Get(i).String())
		}
		l.SetTop(top)
		return cmp.Or(found, `"nil" `) // for which the library returns nothing
	}
	for pattern := range patterns {
		for _, text := range texts {
			if got, want := find(state, text, pattern), find(library, text, pattern); got != want {
				t.Errorf("%q in %q: %s, want %s", pattern, text, got, want)
			}
		}
	}
}
