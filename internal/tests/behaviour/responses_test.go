package behaviour_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// answers has a site answer with a status that the request brings, 200 for none.
func answers(s *sitetest.Site) *sitetest.Site {
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		if r.Header.Get("Password") == "wrong" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return nil
	}
	return s
}

var wrongPassword = sitetest.Header("Password", "wrong")

const loginZone = "limit 5/30d\ncount_responses 401 403"

var settledAlgorithms = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"}

// eachLogin runs a test for each algorithm, with counts that are this node's, synced, or in Redis.
func eachLogin(t *testing.T, options string, f func(*testing.T, *sitetest.Site)) {
	for _, rate := range []string{"local", "1s", "strict"} {
		app := new(ratelimit.App)
		if rate != "local" {
			app = sitetest.AppWith(redistest.Start(t))
		}
		for _, algorithm := range settledAlgorithms {
			t.Run(rate+" "+algorithm, func(t *testing.T) {
				f(t, sitetest.NewSite(t, app, sitetest.ZoneBlock("reserving", options+"\nalgorithm "+algorithm+"\nsync_rate "+rate)))
			})
		}
	}
}

func TestOnlyResponsesThatMatchCount(t *testing.T) {
	eachLogin(t, loginZone, func(t *testing.T, s *sitetest.Site) {
		answers(s)
		for i := range 4 {
			if got := s.Get("203.0.113.9", wrongPassword).Status; got != http.StatusUnauthorized {
				t.Fatalf("wrong guess %d got %d", i+1, got)
			}
			for range 20 {
				if got := s.Get("203.0.113.9"); got.Status != http.StatusOK || got.Err != nil {
					t.Fatalf("a right password after %d guesses got %d %v", i+1, got.Status, got.Err)
				}
			}
		}
		s.Get("203.0.113.9", wrongPassword)
		got := s.Get("203.0.113.9")
		if got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "1" {
			t.Errorf("after five guesses a request got %d, Retry-After %q", got.Status, got.Header.Get("Retry-After"))
		}
	})
}

// What is left may come back with any response, so the client is told to try again soon.
func TestADenialByWhatIsReserved(t *testing.T) {
	eachLogin(t, loginZone, func(t *testing.T, s *sitetest.Site) {
		under, begin := make(chan struct{}), make(chan int)
		s.Next = func(w http.ResponseWriter, _ *http.Request) error {
			under <- struct{}{}
			w.WriteHeader(<-begin)
			under <- struct{}{}
			return nil
		}
		for range 5 {
			go s.Get("203.0.113.9")
			<-under
		}
		before := sitetest.DecidedAs(t, "reserving", "reserved")
		got := s.Get("203.0.113.9")
		if got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "1" || !strings.Contains(got.Header.Get("Ratelimit"), ";t=1") {
			t.Errorf("beside five requests another one got %d %v, want 429 with Retry-After 1", got.Status, got.Header)
		}
		if after := sitetest.DecidedAs(t, "reserving", "reserved"); after != before+1 {
			t.Errorf("%v denials are reserved, want one more than %v", after, before)
		}
		for range 4 {
			begin <- http.StatusForbidden
			<-under
		}
		if got := s.Get("203.0.113.9"); got.Header.Get("Retry-After") != "1" {
			t.Errorf("beside one request and four that count, Retry-After is %q, want 1", got.Header.Get("Retry-After"))
		}
		begin <- http.StatusForbidden
		<-under
		if got := s.Get("203.0.113.9"); got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "1" {
			t.Errorf("after five that count, another got %d, Retry-After %q", got.Status, got.Header.Get("Retry-After"))
		}
	})
}
