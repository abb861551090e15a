package behaviour_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

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

// A site begins with its own count when the one of the same address that binds elsewhere is gone
// after a reload.
func TestASiteThatBindsElsewhereBeginsAfterAReload(t *testing.T) {
	port := redistest.FreePort(t)
	site := func(addr string) string {
		return fmt.Sprintf("http://:%d {\nbind %s\nrate_limit 2/30d\nrespond ok\n}\n", port, addr)
	}
	spend := func(addr string) {
		t.Helper()
		for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
			res, err := http.Get(fmt.Sprintf("http://%s:%d/", addr, port))
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("request %d to %s: %d, want %d", i, addr, res.StatusCode, want)
			}
		}
	}
	const one, two = "127.0.0.1", "127.0.0.2"
	sitetest.LoadSites(t, site(one)+site(two))
	spend(one)
	sitetest.LoadSites(t, site(two))
	spend(two)
	http.DefaultClient.CloseIdleConnections()
}
