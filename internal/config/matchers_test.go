package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// at returns a dispenser at the option that a text begins with.
func at(text string) *caddyfile.Dispenser {
	d := caddyfile.NewTestDispenser(text)
	d.Next()
	return d
}

// Outside of a site there are no named matchers; all else is as in one.
func TestOutsideOfASite(t *testing.T) {
	for text, want := range map[string]string{
		"except 10.0.0.1 fe80::1%eth0":              `{"client_ip":{"ranges":["10.0.0.1","fe80::1%eth0"]}}`,
		"except {env.OFFICE}":                       `{"client_ip":{"ranges":["{env.OFFICE}"]}}`,
		"except method GET POST":                    `{"method":["GET","POST"]}`,
		"except {\nmethod GET\npath /a\npath /b\n}": `{"method":["GET"],"path":["/a","/b"]}`,
		"except": `{}`,
	} {
		set, err := ParseOrAddresses(at(text), nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, _ := json.Marshal(set); string(got) != want {
			t.Errorf("%q = %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"match @a": "named matchers are known in the sites of a Caddyfile only", "match pth /a": "did you mean path?", "match 10.0.0.0/8": "there is no",
	} {
		if set, err := ParseMatchers(at(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q = %v, %v, want an error with %q", text, set, err, want)
		}
	}
	if _, err := ParseOrAddresses(at("except private_ranges, 10.0.0.0/8"), nil); err == nil {
		t.Error("a range with a comma is accepted")
	}
}

// Slips that load as something else elsewhere, or that Caddy has an error without a place for.
func TestSlips(t *testing.T) {
	for text, want := range map[string]string{
		"except {\nprivate_ranges\n}":         "write `client_ip private_ranges` here, or `except private_ranges` on a line of its own, at Testfile:2",
		"except {\nmethod GET\n10.0.0.0/8\n}": "write `client_ip 10.0.0.0/8` here, or `except 10.0.0.0/8` on a line of its own, at Testfile:3",
		"match private_ranges":                "write `client_ip private_ranges` here, at Testfile:1",
		"except not private_ranges":           "write `client_ip private_ranges` here, at Testfile:1",
		"except {\n@a\n}":                     "write `except @a` on a line of its own, or what @a consists of, at Testfile:2",
		"match {\npath /a\n@a\n}":             "write `match @a` on a line of its own, or what @a consists of, at Testfile:3",
		"except not @a":                       "write `match @a` on a line of its own",
		"match {\nnot @a\n}":                  "write `except @a` on a line of its own, which does the opposite, or what @a consists of, at Testfile:2",
		"match {\nnot {\nnot pth /a\n}\n}":    "did you mean path?, at Testfile:3",
		"match *":                             "there is no matcher * here",
		"except *":                            "there is no matcher * here",
		"match /health":                       "write `path /health`",
		"except path":                         "path has no value, so it matches nothing; write one, like `path /health`",
		"except not path":                     "path has no value",
		"match host \"\"":                     "host has no value, so it matches nothing",
		"except path_regexp \"\"":             "path_regexp has no value, so it matches everything; write one, like `path_regexp ^/api/`",
		"except {\nmethod GET\nclient_ip\n}":  "client_ip has no value, so it matches nothing; write one, like `client_ip 203.0.113.0/24`, or remove it, at Testfile:3",
		"except private_ranges path /a":       "write `except path /a` on another one",
		"except 10.0.0.0/8 @a":                "write `except @a` on another one",
		"except `10.0.0.0/33`":                "is neither an address",
	} {
		set, err := ParseOrAddresses(at(text), nil)
		if strings.HasPrefix(text, "match") {
			set, err = ParseMatchers(at(text), nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") || strings.Count(err.Error(), ", at ") > 1 {
			t.Errorf("%q = %v, %v, want an error with %q", text, set, err, want)
		}
	}
}

// An expression in backticks is one after except as well, also where it has characters of
// addresses.
func TestExpressions(t *testing.T) {
	for text, want := range map[string]string{
		"except `path('/a')`": `{"expression":"path('/a')"}`, "match `path('/a')`": `{"expression":"path('/a')"}`,
		"except `{path} == '/a'`": `{"expression":"{path} == '/a'"}`, "except {\nnot `path('/a')`\n}": `{"not":[{"expression":"path('/a')"}]}`,
		"except \"10.0.0.1\"": `{"client_ip":{"ranges":["10.0.0.1"]}}`,
	} {
		set, err := ParseOrAddresses(at(text), nil)
		if strings.HasPrefix(text, "match") {
			set, err = ParseMatchers(at(text), nil)
		}
		buf := new(strings.Builder)
		encoder := json.NewEncoder(buf)
		encoder.SetEscapeHTML(false)
		if encoder.Encode(set); err != nil || strings.TrimSpace(buf.String()) != want {
			t.Errorf("%q = %s, %v, want %s", text, buf, err, want)
		}
	}
}
