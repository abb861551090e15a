package ratelimit

import (
	"strings"
	"testing"
)

// Two sites of one address that bind to others never share an unnamed limit, also when one of them
// is gone.
func TestUnnamedLimitsOfSitesThatBindElsewhere(t *testing.T) {
	one, two := ":8080 {\nbind 127.0.0.1\nrate_limit 2/1h\n}\n", ":8080 {\nbind 127.0.0.2 {\nprotocols h1\n}\nrate_limit 2/1h\n}\n"
	for _, text := range []string{one + two, two + one, two} {
		config, err := adapt(text)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{`":8080@127.0.0.2 2/1h"`: true, `":8080@127.0.0.1 2/1h"`: text != two, `(2)`: false} {
			if strings.Contains(string(config), name) != want {
				t.Errorf("%s: the name %s is there: %v, want %v", text, name, !want, want)
			}
		}
	}
}
