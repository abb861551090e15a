package zonename

import "testing"

func TestShape(t *testing.T) {
	for _, c := range []struct {
		name, shape string
		numbered    bool
	}{
		{"login", "", false},
		{"login (2)", "", false},
		{"a.example 5/1m", "a.example 1m (", false},
		{"a.example 7/60s", "a.example 1m (", false},
		{"a.example 5/1m (2)", "a.example 1m (2", true},
		{"a.example 5/1m 9/1h (ad5b17)", "a.example 1m 1h (ad5b17", false},
		{"a.example 5/1m (123456)", "a.example 1m (123456", false},
		{"a.example 5/1m (123456 3)", "a.example 1m (123456 3", true},
		{"5/1m (87dffb)", " 1m (87dffb", false},
	} {
		if got := Shape(c.name); got != c.shape {
			t.Errorf("Shape(%q) = %q, want %q", c.name, got, c.shape)
		}
		if got := IsNumbered(c.name); got != c.numbered {
			t.Errorf("IsNumbered(%q) = %t, want %t", c.name, got, c.numbered)
		}
	}
}
