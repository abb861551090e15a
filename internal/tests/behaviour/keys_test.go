package behaviour_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// twice adds a second line of a header, or a second value of a query parameter.
func twice(name, value string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header[name] = append(r.Header[name], value)
		r.URL.RawQuery += "&" + name + "=" + value
	}
}

// A client that adds a second value, another one with each request, gets one count for all of them,
// and so do all other such clients, wherever they come from and whatever is done about an empty
// key. Nobody is banned for it, and it is told once.
func TestASecondValueIsNoNewCount(t *testing.T) {
	for i, options := range []string{"", "empty_key skip", "empty_key deny", "ban 1h", "sync_rate local\nalgorithm token_bucket", "count_denied", "except header User bob"} {
		for _, key := range []string{"{http.request.header.User}", "{http.request.uri.query.User}", "{http.request.header.User}{http.request.uri.path}", "{client_ip}{http.request.header.User}"} {
			zone := fmt.Sprintf("twice-%d-%d", i, len(key))
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock(zone, "key \""+key+"\"\nlimit 3/30d\n"+options))
			logs, admitted := s.Watched(), 0
			for n := range 20 {
				if s.Get(fmt.Sprintf("192.0.2.%d", n), twice("User", "alice"), twice("User", fmt.Sprint(n))).Status == http.StatusOK {
					admitted++
				}
			}
			if admitted != 3 {
				t.Errorf("%s %s: %d of 20 requests with a second value admitted, want 3", key, options, admitted)
			}
			s.Admits("192.0.2.1", 5, 3, twice("User", "alice"))
			if n := sitetest.Coded(logs, warning.AmbiguousKey); n != 1 {
				t.Errorf("%s %s: warned %d times of several values, want once", key, options, n)
			}
			if bans := s.Handler.Zones()[0].Bans(); bans != nil && bans.Count() != 1 {
				t.Errorf("%s: %d bans, want that of alice alone", key, bans.Count())
			}
			s.End()
		}
	}
}

// Two sites of one address that bind to others never share an unnamed limit, also when one of them
// is gone.
//
// no clock: configurations are adapted, and nothing runs.
func TestUnnamedLimitsOfSitesThatBindElsewhere(t *testing.T) {
	one, two := ":8080 {\nbind 127.0.0.1\nrate_limit 2/1h\n}\n", ":8080 {\nbind 127.0.0.2 {\nprotocols h1\n}\nrate_limit 2/1h\n}\n"
	for _, text := range []string{one + two, two + one, two} {
		config, err := sitetest.Adapt(text)
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
