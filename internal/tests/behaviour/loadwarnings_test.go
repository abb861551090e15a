package behaviour_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// Each warning at load, with its place in the Caddyfile.
func TestWarningsAtLoad(t *testing.T) {
	sitetest.Goldens(t, "testdata/warnings/*.caddyfiletest", func(t *testing.T, input string) string {
		config, err := sitetest.Adapt(input)
		if err != nil {
			t.Fatalf("Adapt: %v", err)
		}
		return strings.Join(sitetest.WarnedOf(t, config), "\n")
	})
}

// And in JSON, where there are no lines.
func TestWarningsAtLoadOfJSON(t *testing.T) {
	sitetest.Goldens(t, "testdata/warnings/*.jsontest", func(t *testing.T, input string) string {
		return strings.Join(sitetest.WarnedOf(t, []byte(input)), "\n")
	})
}

// lineOfACaddyfile is one that an error tells to write.
var lineOfACaddyfile = regexp.MustCompile("(write|like|add|line) `[a-z_]+ [^`\"]*`")

// Errors of JSON name the field, and Caddy the handler. They say what to write in JSON.
func TestErrorsInJSONNameTheirPlace(t *testing.T) {
	sitetest.Goldens(t, "testdata/errors/*.jsontest", func(t *testing.T, input string) string {
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON([]byte(input), &c); err != nil {
			t.Fatalf("StrictUnmarshalJSON(%s): %v", input, err)
		}
		err := caddy.Validate(&c)
		if err == nil {
			t.Fatal("Validate = nil, want an error")
		}
		if line := lineOfACaddyfile.FindString(err.Error()); line != "" {
			t.Errorf("it is no Caddyfile: %s", line)
		}
		return err.Error()
	})
}
