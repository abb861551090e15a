package config

import (
	"strings"
	"testing"
	"time"
)

func TestShape(t *testing.T) {
	for _, c := range []struct {
		name, shape string
	}{
		{"login", ""},
		{"login (2)", ""},
		{"a.example 5/1m", "a.example 1m ("},
		{"a.example 7/60s", "a.example 1m ("},
		{"a.example 5/1m (2)", "a.example 1m (2"},
		{"a.example 5/1m 9/1h (ad5b17)", "a.example 1m 1h (ad5b17"},
		{"a.example 5/1m (123456)", "a.example 1m (123456"},
		{"a.example 5/1m (123456 3)", "a.example 1m (123456 3"},
		{"5/1m (74caf5)", " 1m (74caf5"},
	} {
		if got := NameShape(c.name); got != c.shape {
			t.Errorf("Shape(%q) = %q, want %q", c.name, got, c.shape)
		}
	}
}

func TestOf(t *testing.T) {
	one := []Rate{{Limit: 5, Window: time.Minute}}
	var many []Rate
	for n := range 10 {
		many = append(many, Rate{Limit: int64(n + 1), Window: time.Duration(n+1) * time.Second})
	}
	for _, c := range []struct {
		site   string
		limits []Rate
		want   string
	}{
		{"", one, "5/1m"},
		{"API.Example.com", one, "api.example.com 5/1m"},
		{"http://bücher.example", one, "http://b%c3%bccher.example 5/1m"},
		{`a"b\c{d}%`, one, "a%22b%5cc%7bd%7d%25 5/1m"},
		{"http://" + strings.Repeat("a", 60) + ".example", one, "http://" + strings.Repeat("a", 48) + "~ef2a567f 5/1m"},
		{"a.example", many, "a.example 1/1s 2/2s 3/3s 4/4s 5/5s 6/6s 7/7s 8/8s ~7d71b9d7"},
	} {
		got := NameOf(c.site, c.limits)
		if got != c.want || CheckName(got) != nil {
			t.Errorf("Of(%q, %v) = %q, want %q, which may be given", c.site, c.limits, got, c.want)
		}
	}
}

func TestNamesThatTellLimitsApart(t *testing.T) {
	name := NameOf("a.example", []Rate{{Limit: 5, Window: time.Minute}})
	hashed := HashedName(name, []byte("by key"))
	if other := HashedName(name, []byte("by host")); hashed == other || NameShape(hashed) == NameShape(other) {
		t.Errorf("Hashed = %q and %q, want two shapes", hashed, other)
	}
	for _, first := range []string{name, hashed} {
		second := NumberedName(first, 2)
		if second == first || NameShape(second) == NameShape(first) {
			t.Errorf("Numbered(%q) = %q, want a shape of its own", first, second)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, want := range map[string]string{
		"login": "", "a b": "", strings.Repeat("a", 128): "", strings.Repeat("a", 129): "longer than 128", "": "empty",
		"ä": "not printable ASCII", "a\nb": "not printable ASCII", `a"b`: "a quote or a backslash", `a\b`: "a quote or a backslash",
	} {
		if err := CheckName(name); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Check(%q) = %v, want %s", name, err, want)
		}
	}
}
