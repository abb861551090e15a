package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// class has a request be of a class, by a header.
func class(name string) func(*http.Request) { return header("X-Class", name) }

// reservedSite is a site with zones, each of which has these reserves for classes. Pairs of a class
// and its share in per cent.
func reservedSite(t *testing.T, app *App, block string, reserves ...any) *site {
	t.Helper()
	h := new(Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\n" + block + "\n}")); err != nil {
		t.Fatal(err)
	}
	for _, z := range h.RateLimits {
		for i := 0; i < len(reserves); i += 2 {
			match, err := json.Marshal(map[string][]string{"X-Class": {reserves[i].(string)}})
			if err != nil {
				t.Fatal(err)
			}
			z.Reserve = append(z.Reserve, Reserve{float64(reserves[i+1].(int)) / 100, caddyhttp.RawMatcherSets{{"header": match}}})
		}
	}
	s, err := tryHandler(t, new(caddy.Config), app, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// Whoever it is for finds the reserve, and others never take it, under every algorithm and wherever
// counts are.
func TestReserve(t *testing.T) {
	redis := redistest.Start(t)
	for _, algorithm := range algorithms.KindNames() {
		if algorithm == "leaky_bucket" {
			continue
		}
		for _, rate := range []string{"local", "1h", "strict"} {
			t.Run(algorithm+" "+rate, func(t *testing.T) {
				app, n := &App{}, 0
				if rate != "local" {
					app = appWith(redis)
				}
				with := func(limit string, reserves ...any) *site {
					n++
					name := fmt.Sprintf(`"reserve %s %s %d"`, algorithm, rate, n)
					return reservedSite(t, app, zoneBlock(name, "key all\nlimit "+limit+"\nsync_rate "+rate+"\nalgorithm "+algorithm), reserves...)
				}
				others, paying, staff := class(""), class("paying"), class("staff")
				s := with("10/3650d", "paying", 20)
				s.admits("1.1.1.1", 9, 8, others)
				s.admits("1.1.1.1", 5, 2, paying)
				s.admits("1.1.1.1", 2, 0, others)
				s = with("10/3650d", "paying", 20) // use by those that pay counts as well
				s.admits("1.1.1.1", 7, 7, paying)
				s.admits("1.1.1.1", 3, 1, others)
				s.admits("1.1.1.1", 3, 2, paying)
				s = with("10/3650d", "paying", 20, "staff", 15) // 2 and 2
				s.admits("1.1.1.1", 9, 6, others)
				s.admits("1.1.1.1", 9, 2, staff)
				s.admits("1.1.1.1", 9, 0, paying) // they see 8, and the count is of all
				s.admits("1.1.1.1", 9, 2, func(r *http.Request) { r.Header["X-Class"] = []string{"paying", "staff"} })
				s = with("3/3650d", "paying", 90) // others have one, where nobody pays
				s.admits("1.1.1.1", 3, 1, others)
				s.admits("1.1.1.1", 3, 2, paying)
				s = with("1/3650d", "paying", 50)
				s.admits("1.1.1.1", 3, 1, others)
				s = with("0/3650d", "paying", 50)
				s.admits("1.1.1.1", 3, 0, others)
				s.admits("1.1.1.1", 3, 0, paying)
				s = with("100/3650d 10/365d", "paying", 7) // 7 and 1
				s.admits("1.1.1.1", 11, 9, others)
				s.admits("1.1.1.1", 3, 1, paying)
				s = with("100/3650d", "paying", 7)
				s.admits("1.1.1.1", 100, 93, others)
				s.admits("1.1.1.1", 100, 7, paying)
			})
		}
	}
}

// A burst is reserved from, and the drain of the bucket stays whole.
func TestReserveOfABurst(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "gcra"} {
		s := reservedSite(t, &App{}, zoneBlock("burst-"+algorithm, "key all\nlimit 1000/3650d\nburst 10\nalgorithm "+algorithm), "paying", 20)
		s.admits("1.1.1.1", 10, 8, class(""))
		whole := reservedSite(t, &App{}, zoneBlock("whole-"+algorithm, "key all\nlimit 1000/3650d\nburst 8\nalgorithm "+algorithm))
		whole.admits("1.1.1.1", 10, 8)
		if got, want := s.get("1.1.1.1").header.Get("Retry-After"), whole.get("1.1.1.1").header.Get("Retry-After"); got != want || got == "" {
			t.Errorf("%s: Retry-After %s with a reserve, %s of a bucket of that size", algorithm, got, want)
		}
		s.admits("1.1.1.1", 3, 2, class("paying"))
	}
}

// A request sees the limit without what is reserved for others, and so do its handlers.
func TestHeadersOfAReserve(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
		s := reservedSite(t, &App{}, "headers draft kong github\n"+zoneBlock("seen", "key all\nlimit 10/1h\nalgorithm "+algorithm), "paying", 20)
		for _, c := range []struct{ class, policy, remaining, limit string }{
			{"", `"seen";q=8;w=3600`, "7", "8"}, {"paying", `"seen";q=10;w=3600`, "8", "10"}, {"none", `"seen";q=8;w=3600`, "5", "8"},
		} {
			a := s.get("1.1.1.1", class(c.class))
			if got := a.header; got.Get("RateLimit-Policy") != c.policy || !strings.Contains(got.Get("RateLimit"), ";r="+c.remaining+";") ||
				got.Get("X-Ratelimit-Limit") != c.limit || got.Get("Ratelimit-Limit") != c.limit || got.Get("X-Ratelimit-Remaining-Hour") != c.remaining {
				t.Errorf("%s, class %q: %v, want %+v", algorithm, c.class, got, c)
			}
		}
	}
}

// The limit that is reserved from is the one that is in force: that of the request, and the one
// that an operator has set.
func TestReserveOfLimitsThatDiffer(t *testing.T) {
	s := reservedSite(t, &App{}, zoneBlock("varies", "key all\nlimit {http.request.header.X-Plan}/3650d\nlimit_default 5/3650d"), "paying", 20)
	s.admits("1.1.1.1", 9, 4)
	s.admits("1.1.1.1", 9, 4, plan("10"))
	s.admits("1.1.1.1", 9, 2, plan("10"), class("paying"))
	s.admits("1.1.1.1", 9, 9, plan("unlimited"))
	s.admits("1.1.1.1", 9, 0, plan("0"), class("paying"))
	s.end()

	s = reservedSite(t, &App{Namespace: "reserve overrides"}, zoneBlock("set", "key {http.request.header.K}\nlimit 5/3650d"), "paying", 20)
	key := header("K", "a")
	changed(t, http.MethodPost, overrides, `{"zone":"set","key":"a","limit":"10"}`)
	s.admits("1.1.1.1", 9, 8, key)
	s.admits("1.1.1.1", 9, 2, key, class("paying"))
	changed(t, http.MethodPost, overrides, `{"zone":"set","key":"a","limit":"unlimited"}`)
	s.admits("1.1.1.1", 9, 9, key)
	changed(t, http.MethodPost, overrides, `{"zone":"set","key":"a","limit":"deny"}`)
	if a := s.get("1.1.1.1", key, class("paying")); a.status != http.StatusForbidden {
		t.Errorf("a key of which all is denied is answered %d to who pays", a.status)
	}
	changed(t, http.MethodDelete, overrides, `{"zone":"set","key":"a"}`)
	s.admits("1.1.1.1", 9, 0, key, class("paying"))
	changed(t, http.MethodPost, "/rate_limit/reset", `{"zone":"set","key":"a"}`)
	s.admits("1.1.1.1", 9, 4, key)
	s.admits("1.1.1.1", 9, 1, key, class("paying"))
}

// Explain says what the request would see, and what a request would that has no class.
func TestExplainOfAReserve(t *testing.T) {
	s := reservedSite(t, &App{Namespace: "reserve explained"}, zoneBlock("told", "key all\nlimit 10/3650d"), "paying", 20)
	s.admits("1.1.1.1", 9, 8)
	for what, want := range map[string]string{
		`{"zone":"told","key":"all"}`: `"limit":8,"window":"3650d","used":8,"remote":0,"remaining":0,"after":0,"decision":"denied"`,
	} {
		status, text := ask(http.MethodPost, "/rate_limit/explain", what)
		if status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", what, status, text, want)
		}
	}
}

// Beyond max_keys, windows and logs keep reserves. A bucket is counted there in whole windows, and
// keeps none.
func TestReserveBeyondMaxKeys(t *testing.T) {
	for algorithm, want := range map[string]int{"sliding_window": 8, "fixed_window": 8, "sliding_log": 8, "token_bucket": 10, "gcra": 10} {
		s := reservedSite(t, &App{}, zoneBlock("full-"+algorithm, "key {http.request.header.K}\nlimit 10/3650d\nmax_keys 1\nalgorithm "+algorithm), "paying", 20)
		s.admits("1.1.1.1", 1, 1, header("K", "first"))
		for i := range 5 {
			key := header("K", fmt.Sprint("beyond", i))
			s.admits("1.1.1.1", 12, want, key)
			s.admits("1.1.1.1", 12, 10-want, key, class("paying"))
		}
	}
}

// In shadow mode nobody is denied, and what would be is counted.
func TestReserveInShadowMode(t *testing.T) {
	s := reservedSite(t, &App{}, zoneBlock("shadow-reserve", "key all\nlimit 10/3650d\nenforce off"), "paying", 20)
	s.admits("1.1.1.1", 12, 12)
	s.admits("1.1.1.1", 4, 4, class("paying"))
	if got := decidedAs(t, "shadow-reserve", "would_deny"); got != 4+2 {
		t.Errorf("%d would be denied, want 4 of the others and 2 that pay", got)
	}
}

// The page's Caddyfile: who doesn't pay is denied first, and who pays finds the reserve.
func TestThePageOfReserves(t *testing.T) {
	upstream, asked := backend(t, "backend")
	global, site := siteInPage(t, "docs/reserve.md", "example.com")
	s := startCaddy(t, global, strings.NewReplacer("localhost:9000", upstream, "100/s", "100/3650d").Replace(site))
	paying := header("X-Api-Key", "5ddc4eb2")
	s.answers("HTTP/1.1", 90, http.StatusOK, 80)
	if a, err := s.get(t.Context(), "HTTP/1.1"); err != nil || a.header.Get("RateLimit-Policy") != `"backend";q=80;w=315360000` {
		t.Errorf("who doesn't pay is told %v, %v", a.header, err)
	}
	if a, err := s.get(t.Context(), "HTTP/1.1", paying); err != nil || a.header.Get("RateLimit-Policy") != `"backend";q=100;w=315360000` {
		t.Errorf("who pays is told %v, %v", a.header, err)
	}
	s.answers("HTTP/1.1", 25, http.StatusOK, 19, paying)
	if asked.Load() != 100 {
		t.Errorf("the backend was asked %d times, want 100", asked.Load())
	}
}

// A reserve where each client has a count of its own is warned of.
func TestAReserveOfOneClientsCountIsWarnedOf(t *testing.T) {
	for key, want := range map[string]int{"": 1, "key {client_ip}": 1, "key {remote_host}": 1, "key {host}-{client_ip}": 1, "key all": 0, "key {host}": 0} {
		config, err := adapt("{\nadmin off\npersist_config off\n}\nhttp://127.0.0.1:0 {\n@paying header X-Plan paid\nrate_limit {\n" +
			zoneBlock("z", "limit 5/1m\n"+key+"\nreserve @paying 20%") + "}\n}")
		if err != nil {
			t.Fatal(err)
		}
		if warned := warnedOf(t, config); len(warned) != want || want == 1 && !strings.Contains(fmt.Sprint(warned), "each client has a count of its own") {
			t.Errorf("%q: warned of %q, want %d", key, warned, want)
		}
	}
}
