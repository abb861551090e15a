package ratelimit

import (
	"net/http"
	"strings"
	"testing"
)

// answers has a site answer with a status that the request brings, 200 for none.
func (s *site) answers() *site {
	s.next = func(w http.ResponseWriter, r *http.Request) error {
		if r.Header.Get("Password") == "wrong" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return nil
	}
	return s
}

var wrongPassword = header("Password", "wrong")

const loginZone = "limit 5/1h\nsync_rate local\ncount_responses 401 403"

func TestOnlyResponsesThatMatchCount(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		s := newSite(t, new(App), zoneBlock("login", loginZone+"\nalgorithm "+algorithm)).answers()
		for i := range 4 {
			if got := s.get("203.0.113.9", wrongPassword).status; got != http.StatusUnauthorized {
				t.Fatalf("%s: wrong guess %d got %d", algorithm, i+1, got)
			}
			for range 20 {
				if got := s.get("203.0.113.9"); got.status != http.StatusOK || got.err != nil {
					t.Fatalf("%s: a right password after %d guesses got %d %v", algorithm, i+1, got.status, got.err)
				}
			}
		}
		s.get("203.0.113.9", wrongPassword)
		got := s.get("203.0.113.9")
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "1" {
			t.Errorf("%s: after five guesses a request got %d, Retry-After %q", algorithm, got.status, got.header.Get("Retry-After"))
		}
		s.end()
	}
}

// What is left may come back with any response, so the client is told to try again soon.
func TestADenialByWhatIsReserved(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"} {
		s := newSite(t, new(App), zoneBlock("reserving", loginZone+"\nalgorithm "+algorithm))
		under, begin := make(chan struct{}), make(chan int)
		s.next = func(w http.ResponseWriter, _ *http.Request) error {
			under <- struct{}{}
			w.WriteHeader(<-begin)
			under <- struct{}{}
			return nil
		}
		for range 5 {
			go s.get("203.0.113.9")
			<-under
		}
		before := decidedAs(t, "reserving", "reserved")
		got := s.get("203.0.113.9")
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" || !strings.Contains(got.header.Get("Ratelimit"), ";t=1") {
			t.Errorf("%s: beside five requests another one got %d %v, want 429 with Retry-After 1", algorithm, got.status, got.header)
		}
		if after := decidedAs(t, "reserving", "reserved"); after != before+1 {
			t.Errorf("%s: %v denials are reserved, want one more than %v", algorithm, after, before)
		}
		for range 4 {
			begin <- http.StatusForbidden
			<-under
		}
		if got := s.get("203.0.113.9"); got.header.Get("Retry-After") != "1" {
			t.Errorf("%s: beside one request and four that count, Retry-After is %q, want 1", algorithm, got.header.Get("Retry-After"))
		}
		begin <- http.StatusForbidden
		<-under
		if got := s.get("203.0.113.9"); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "1" {
			t.Errorf("%s: after five that count, another got %d, Retry-After %q", algorithm, got.status, got.header.Get("Retry-After"))
		}
		s.end()
	}
}
