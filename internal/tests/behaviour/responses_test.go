package behaviour_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

var wrongPassword = sitetest.Header("Password", "wrong")

var settledAlgorithms = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"}

// A bucket drains faster when an operator raises its rate. What was reserved before has drained
// with it, and is not refunded in place of what others spent since.
func TestAUnitEndsSoonerAtAHigherRate(t *testing.T) {
	for _, rate := range []string{"local", "1s", "strict"} {
		t.Run(rate, func(t *testing.T) {
			app := &ratelimit.App{Namespace: t.Name()}
			if rate != "local" {
				app = sitetest.AppWith(redistest.Start(t))
			}
			g := guesses(sitetest.NewSite(t, app, sitetest.ZoneBlock("raised", "limit 5/30d\nburst 5\nalgorithm token_bucket\ncount_responses 401\nkey all\nsync_rate "+rate)))
			g.hold("203.0.113.9", 5)
			// 500 a second.
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"raised","key":"all","limit":"1300000000/30d"}`)
			for range 2 {
				redistest.Eventually(t, "a guess is admitted", func() bool { return g.s.Get("203.0.113.9", wrongPassword).Status == http.StatusUnauthorized })
				redistest.Eventually(t, "the bucket has drained", func() bool {
					_, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"raised","key":"all"}`)
					return strings.Contains(text, `"used":0,`)
				})
			}
			sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"raised","key":"all"}`)
			g.reached("at the rate of before", 5, 5, false)
			g.end(5, http.StatusOK)
			g.reached("after the responses of before", 5, 0, false)
		})
	}
}

// uncountedZones are three by their paths: one whose responses never count, one with the first of
// its responses counting, and one whose upstream never answers.
const uncountedZones = `
zone never {
	match path /never*
	limit 5/30d
	count_responses 401 4xx
}
zone costs {
	match path /never*
	limit 5000/30d
	count_responses 401
	response_cost header X-Cost
}
zone once {
	match path /once*
	limit 5/30d
	count_responses 200 401
}
zone gone {
	match path /gone*
	limit 5000/30d
	count_responses 401
}
`

// A zone that has counted none of its first thousand responses is told of once, with what they
// were.
func TestAZoneThatCountsNothingIsTold(t *testing.T) {
	s := sitetest.NewSite(t, new(ratelimit.App), uncountedZones)
	defer s.End()
	logs, n := s.Watched(), 0
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		n++
		switch {
		case strings.HasPrefix(r.URL.Path, "/gone"):
			return caddyhttp.HandlerError{StatusCode: http.StatusBadGateway, Err: io.ErrUnexpectedEOF}
		case n%4 == 0:
			w.WriteHeader(http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/once") && n > 1:
			w.WriteHeader(http.StatusNoContent)
		}
		return nil
	}
	for i, path := range []string{"/once", "/gone", "/never"} {
		n = 0
		for range 999 {
			s.Get("203.0.113.9", sitetest.OnPath(path))
		}
		if i < 2 {
			s.Get("203.0.113.9", sitetest.OnPath(path))
		}
		if got := sitetest.Coded(logs, warning.NothingCounted); got != 0 {
			t.Fatalf("%s: %d warnings, want none yet", path, got)
		}
	}
	for range 3 {
		s.Get("203.0.113.9", sitetest.OnPath("/never"))
	}
	lines := logs.FilterField(zap.String("code", warning.NothingCounted)).All()
	if len(lines) != 2 {
		t.Fatalf("%d warnings, want one of never and one of costs", len(lines))
	}
	slices.SortFunc(lines, func(a, b observer.LoggedEntry) int { return cmp.Compare(b.Message, a.Message) })
	for i, want := range []string{"zone \"never\": it has limited nobody, as `count_responses 401 4xx` matched none of its first 1000 responses", "zone \"costs\": it has limited nobody, as `count_responses 401` matched"} {
		if line := lines[i]; !strings.Contains(line.Message, want) || line.ContextMap()["statuses"] != "200: 750, 302: 250" {
			t.Errorf("logged %s %v, want %s", line.Message, line.ContextMap(), want)
		}
	}
	for zone, want := range map[string]operate.ResponseState{"never": {All: 1002}, "once": {All: 1000, Counted: 1}, "gone": {}} {
		sitetest.Shows(t, zone, fmt.Sprint(want), func(l operate.LimitState) bool { return *l.Responses == want })
	}
}

// The responses of a zone that two handlers have are added up, and it is told of once.
func TestResponsesOfTwoHandlers(t *testing.T) {
	zone := "rate_limit {\nzone twice {\nmatch path /*\nlimit 5/30d\ncount_responses 200\n}\n}\n"
	s := sitetest.StartCaddy(t, "", "handle /a* {\n"+zone+"respond ok\n}\nhandle {\n"+zone+"respond no 404\n}")
	for _, path := range []string{"/a", "/b", "/b"} {
		if _, err := s.Get(t.Context(), "HTTP/1.1", sitetest.OnPath(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range operate.CurrentState().Zones {
		if l.Zone == "twice" && *l.Responses != (operate.ResponseState{All: 3, Counted: 1}) {
			t.Errorf("%s counted, want 1 of 3", l.Responses)
		}
	}
}
