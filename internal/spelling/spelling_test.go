package spelling

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"burst", "algorithm", "limit", "queue", "key", "match", "max_keys"}
	for word, want := range map[string]string{
		"burts": "burst", "algoritm": "algorithm", "limits": "limit", "xyz": "", "": "", "db": "", "quee": "queue",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
