package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"burst", "algorithm", "limit", "queue", "key", "match", "max_keys"}
	for word, want := range map[string]string{
		"burts": "burst", "algoritm": "algorithm", "limits": "limit", "xyz": "", "": "", "db": "", "quee": "queue", "BURTS": "burst",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	long := strings.Repeat("x", 65)
	for s, want := range map[string]string{"": "", "login": "login", long[1:]: long[1:], long: long[1:] + "…"} {
		if got := Clip(s); got != want {
			t.Errorf("Clip(%q) = %q, want %q", s, got, want)
		}
	}
}
