package matchers

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
		if set, err := Parse(at(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q = %v, %v, want an error with %q", text, set, err, want)
		}
	}
	if _, err := ParseOrAddresses(at("except private_ranges, 10.0.0.0/8"), nil); err == nil {
		t.Error("a range with a comma is accepted")
	}
}
