package behaviour_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

const loginZone = "limit 5/30d\ncount_responses 401 403"

var settledAlgorithms = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"}

// A client that resets each stream before the answer gets no guess for nothing: exactly the limit
// reaches a slow backend, whatever it speaks.
func TestResetStreamsGetNoGuessForNothing(t *testing.T) {
	var guesses atomic.Int64
	arrived := make(chan struct{}, 64)
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		guesses.Add(1)
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer backend.Close()
	s := sitetest.StartCaddy(t, "", fmt.Sprintf(`rate_limit {
		zone login {
			match path /HTTP*
			key {path}
			limit 5/30d
			count_responses 401
		}
	}
	reverse_proxy %s`, strings.TrimPrefix(backend.URL, "http://")))
	for _, protocol := range protocols {
		guesses.Store(0)
		for range 12 {
			ctx, reset := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = s.Get(ctx, protocol, func(r *http.Request) { r.URL.Path = "/" + protocol })
			}()
			select {
			case <-arrived:
			case <-ended:
			}
			reset()
			<-ended
		}
		if got := guesses.Load(); got != 5 {
			t.Errorf("%s: of 12 guesses whose streams were reset %d reached the backend, want 5", protocol, got)
		}
	}
}

// Streams, upgrades and uploads are settled when their response begins, not when they end.
func TestAResponseThatGoesOnIsSettledWhenItBegins(t *testing.T) {
	s := sitetest.NewSite(t, new(ratelimit.App), sitetest.ZoneBlock("login", "limit 1/30d\ncount_responses 401\nsync_rate local"))
	for name, begin := range map[string]func(http.ResponseWriter, *http.Request){
		"Server-Sent Events": func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() },
		"an upgrade":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) },
		"a gigabyte that is still being sent": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, 1<<16)
			w.WriteHeader(http.StatusOK)
		},
	} {
		begun, end := make(chan struct{}), make(chan struct{})
		s.Next = func(w http.ResponseWriter, r *http.Request) error {
			begin(w, r)
			close(begun)
			<-end
			return nil
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Get("203.0.113.9", func(r *http.Request) {
				r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 1<<30)), 1<<30
			})
		}()
		<-begun
		s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		if got := s.Get("203.0.113.9").Status; got != http.StatusOK {
			t.Errorf("%s: beside it a request got %d, want 200", name, got)
		}
		close(end)
		<-ended
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// What nobody knows the status of stays spent; errors and panics have theirs.
func TestEndsThatCountAndEndsThatDoNot(t *testing.T) {
	for name, test := range map[string]struct {
		next   caddyhttp.HandlerFunc
		counts bool
	}{
		"a handler that never writes": {func(http.ResponseWriter, *http.Request) error { return nil }, false},
		"an error 401":                {func(http.ResponseWriter, *http.Request) error { return caddyhttp.Error(401, errors.New("no")) }, true},
		"an error 500":                {func(http.ResponseWriter, *http.Request) error { return errors.New("broken") }, false},
		"a panic":                     {func(http.ResponseWriter, *http.Request) error { panic("broken") }, false},
		"an abort":                    {func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) }, true},
		"hints and then 401": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}, true},
		"401 and then 200": {func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusUnauthorized)
			w.WriteHeader(http.StatusOK)
			return nil
		}, true},
	} {
		s := sitetest.NewSite(t, new(ratelimit.App), sitetest.ZoneBlock("login", loginZone+"\nsync_rate local"))
		reached := 0
		s.Next = func(w http.ResponseWriter, r *http.Request) error { reached++; return test.next(w, r) }
		for range 8 {
			func() {
				defer func() { _ = recover() }()
				s.Get("203.0.113.9")
			}()
		}
		want := 8
		if test.counts {
			want = 5
		}
		if reached != want {
			t.Errorf("%s: %d of 8 requests reached the handler, want %d", name, reached, want)
		}
		s.End()
	}
}

// A response that begins after a reload is settled in the counters that the new configuration has.
func TestAReloadBetweenARequestAndItsResponse(t *testing.T) {
	block := sitetest.ZoneBlock("login", "limit 1/30d\ncount_responses 401\nsync_rate local")
	old := sitetest.NewSite(t, new(ratelimit.App), block)
	under, begin, ended := make(chan struct{}), make(chan int), make(chan struct{})
	old.Next = func(w http.ResponseWriter, _ *http.Request) error {
		under <- struct{}{}
		w.WriteHeader(<-begin)
		return nil
	}
	go func() { old.Get("203.0.113.9"); close(ended) }()
	<-under
	s := sitetest.NewSite(t, new(ratelimit.App), block)
	old.End()
	if got := s.Get("203.0.113.9"); got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "1" {
		t.Errorf("after a reload, beside a request of before: %d, Retry-After %q, want 429 and 1", got.Status, got.Header.Get("Retry-After"))
	}
	begin <- http.StatusOK
	<-ended
	if got := s.Get("203.0.113.9").Status; got != http.StatusOK {
		t.Errorf("after the response of before the reload: %d, want 200", got)
	}
}

// A bucket drains faster when an operator raises its rate. What was reserved before has drained
// with it, and is not refunded in place of what others spent since.
func TestAUnitEndsSoonerAtAHigherRate(t *testing.T) {
	for _, rate := range []string{"local", "1s", "strict"} {
		t.Run(rate, func(t *testing.T) {
			app := &ratelimit.App{Namespace: t.Name()}
			if rate != "local" {
				app = sitetest.AppWith(redistest.Start(t))
			}
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock("raised", "limit 5/30d\nburst 5\nalgorithm token_bucket\ncount_responses 401\nkey all\nsync_rate "+rate))
			defer s.End()
			under, begin := make(chan struct{}), make(chan struct{})
			var ended sync.WaitGroup
			s.Next = func(w http.ResponseWriter, r *http.Request) error {
				if r.Header.Get("Password") == "wrong" {
					w.WriteHeader(http.StatusUnauthorized)
					return nil
				}
				under <- struct{}{}
				<-begin
				return nil
			}
			for range 5 {
				ended.Go(func() { s.Get("203.0.113.9") })
				<-under
			}
			// 500 a second.
			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"raised","key":"all","limit":"1300000000/30d"}`)
			for range 2 {
				redistest.Eventually(t, "a guess is admitted", func() bool { return s.Get("203.0.113.9", wrongPassword).Status == http.StatusUnauthorized })
				redistest.Eventually(t, "the bucket has drained", func() bool {
					_, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"raised","key":"all"}`)
					return strings.Contains(text, `"used":0,`)
				})
			}
			sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"raised","key":"all"}`)
			admits401(s, 5, 5)
			for range 5 {
				begin <- struct{}{}
			}
			ended.Wait()
			admits401(s, 5, 0)
		})
	}
}

// admits401 sends wrong guesses, and wants so many to reach the handler.
func admits401(s *sitetest.Site, count, want int) {
	s.T.Helper()
	got := 0
	for range count {
		if s.Get("203.0.113.9", wrongPassword).Status == http.StatusUnauthorized {
			got++
		}
	}
	if got != want {
		s.T.Errorf("of %d guesses %d reached the handler, want %d", count, got, want)
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
