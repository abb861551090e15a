package behaviour_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// loginSite is a site whose handler knows the password.
func loginSite(s *sitetest.Site) *sitetest.Site {
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		switch r.Header.Get("Password") {
		case "wrong":
			w.WriteHeader(http.StatusUnauthorized)
		case "right":
			w.Header().Set("Location", "/")
			w.WriteHeader(http.StatusSeeOther)
		}
		_, err := io.WriteString(w, "xx")
		return err
	}
	return s
}

var rightPassword = sitetest.Header("Password", "right")

const forgivingZone = "key {http.request.header.User}\nempty_key skip\nlimit 5/30d 7/60d\ncount_responses 401 403\nforgive_responses 303\n"

// A right login with two names clears nothing: the second one may be a guesser's own.
func TestARightLoginWithTwoNamesClearsNothing(t *testing.T) {
	s := loginSite(sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("two-names", forgivingZone)))
	both := func(r *http.Request) { r.Header["User"] = []string{"mallory", "alice"} }
	for i, password := range []string{"wrong", "wrong", "wrong", "wrong", "right", "wrong", "wrong"} {
		want := map[string]int{"wrong": http.StatusUnauthorized, "right": http.StatusSeeOther}[password]
		if i == 6 {
			want = http.StatusTooManyRequests
		}
		if got := s.Get("203.0.113.9", both, sitetest.Header("Password", password)).Status; got != want {
			t.Errorf("request %d: %d, want %d", i, got, want)
		}
	}
}

// HEAD and OPTIONS, which log nobody in, clear nothing. A GET does, and it is told that the page
// may need no account.
func TestWhatIsNoLoginClearsNothing(t *testing.T) {
	for _, c := range []struct {
		method string
		clears bool
		told   int
	}{{http.MethodPost, true, 0}, {http.MethodGet, true, 1}, {http.MethodHead, false, 0}, {http.MethodOptions, false, 0}} {
		s := loginSite(sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("no-login", forgivingZone)))
		logs, alice, left := s.Watched(), sitetest.Header("User", "alice"), http.StatusTooManyRequests
		for range 4 {
			s.Get("203.0.113.9", alice, wrongPassword)
		}
		s.Get("203.0.113.9", alice, rightPassword, sitetest.Method(c.method))
		s.Get("203.0.113.9", alice, wrongPassword)
		if c.clears {
			left = http.StatusUnauthorized
		}
		if got := s.Get("203.0.113.9", alice, wrongPassword).Status; got != left {
			t.Errorf("%s: then %d, want %d", c.method, got, left)
		}
		if got := sitetest.Coded(logs, warning.ForgivesGuesser); got != c.told {
			t.Errorf("%s: told %d times, want %d", c.method, got, c.told)
		}
		s.End()
	}
}

// A right login clears what wrong ones of its user have spent in all limits of the zone: alone, at
// an interval, in strict, and in shadow mode. Another response doesn't, nor that of another user,
// nor a right login that is denied.
func TestARightLoginClearsTheCount(t *testing.T) {
	server := redistest.Start(t)
	for _, mode := range []string{"sync_rate local", "sync_rate 1s", "sync_rate strict", "sync_rate local\nenforce off"} {
		for _, algorithm := range settledAlgorithms {
			app := sitetest.AppWith(server)
			app.Namespace = strings.NewReplacer(" ", "-", "\n", "-").Replace(mode + algorithm)
			s := loginSite(sitetest.NewSite(t, app, sitetest.ZoneBlock("login", forgivingZone+"algorithm "+algorithm+"\n"+mode)))
			shadow := strings.Contains(mode, "enforce off")
			alice, bob := sitetest.Header("User", "alice"), sitetest.Header("User", "bob")
			expect := func(what string, want int, change ...func(*http.Request)) {
				t.Helper()
				if got := s.Get("203.0.113.9", change...).Status; got != want && !(shadow && want == http.StatusTooManyRequests) {
					t.Errorf("%s, %s: %s: %d, want %d", algorithm, mode, what, got, want)
				}
			}
			left := func(what string, user func(*http.Request), want string) {
				t.Helper()
				r := s.Request("203.0.113.9", user)
				s.Send(r)
				if got := sitetest.ValueOf(r, "http.rate_limit.login.remaining"); got != want {
					t.Errorf("%s, %s: %s: %s are left, want %s", algorithm, mode, what, got, want)
				}
			}
			for range 4 {
				expect("a wrong password", http.StatusUnauthorized, alice, wrongPassword)
				expect("a wrong password of another", http.StatusUnauthorized, bob, wrongPassword)
			}
			expect("another response", http.StatusOK, alice)
			left("before", alice, "0")
			expect("the right one", http.StatusSeeOther, alice, rightPassword)
			left("another user", bob, "0")
			for range 5 { // of the second limit 7 would leave but 3
				expect("a wrong password since", http.StatusUnauthorized, alice, wrongPassword)
			}
			expect("one too many", http.StatusTooManyRequests, alice, wrongPassword)
			expect("the right one, which is denied", http.StatusTooManyRequests, alice, rightPassword)
			if !shadow {
				expect("still", http.StatusTooManyRequests, alice, wrongPassword)
			}
			s.End()
		}
	}
}

// A right login clears what wrong ones that are under way have reserved, and these count no more
// when they are answered. Slots and bans stay.
func TestWhatARightLoginLeaves(t *testing.T) {
	s := sitetest.NewSite(t, new(ratelimit.App), sitetest.ZoneBlock("login", "key {http.request.header.User}\nempty_key skip\nlimit 3/30d\nconcurrent 3\n"+
		"count_responses 401\nforgive_responses 303\nsync_rate local\nban 30d after 2/30d"))
	alice, answer, begun := sitetest.Header("User", "alice"), make(chan struct{}), make(chan struct{}, 2)
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		switch r.Header.Get("Password") {
		case "right":
			w.WriteHeader(http.StatusSeeOther)
		case "slow":
			begun <- struct{}{}
			<-answer
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
		return nil
	}
	done := make(chan int, 2)
	for range 2 {
		go func() { done <- s.Get("203.0.113.9", alice, sitetest.Header("Password", "slow")).Status }()
		<-begun
	}
	expect := func(what string, want int, change ...func(*http.Request)) {
		t.Helper()
		if got := s.Get("203.0.113.9", append(change, alice)...).Status; got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	expect("a right password beside two guesses", http.StatusSeeOther, rightPassword)
	expect("a wrong one", http.StatusUnauthorized, wrongPassword)
	close(answer)
	for range 2 {
		if got := <-done; got != http.StatusUnauthorized {
			t.Errorf("a guess is answered %d", got)
		}
	}
	expect("a second wrong one", http.StatusUnauthorized, wrongPassword)
	expect("a third", http.StatusUnauthorized, wrongPassword)
	expect("a fourth", http.StatusTooManyRequests, wrongPassword)
	expect("a fifth, which begins a ban", http.StatusTooManyRequests, wrongPassword)
	expect("a right one in the ban", http.StatusTooManyRequests, rightPassword)
	s.End()
}

// In JSON the option is a response matcher, and a figure that the response tells later is forgiven
// with the rest.
func TestForgiveResponsesInJSON(t *testing.T) {
	h := new(ratelimit.Handler)
	text := `{"rate_limits": {"login": {"key": "{http.request.header.User}", "empty_key": "skip", "limits": [{"max_events": 5, "window": "720h"}], "sync_rate": "local",
		"count_responses": {"status_code": [4, 303]}, "forgive_responses": {"status_code": [3], "headers": {"Location": ["/"]}},
		"cost": [{"units": 1}], "response_cost": [{"bytes": true}]}}}`
	if err := json.Unmarshal([]byte(text), h); err != nil {
		t.Fatal(err)
	}
	s, err := sitetest.TryHandler(t, new(caddy.Config), new(ratelimit.App), h)
	if err != nil {
		t.Fatal(err)
	}
	loginSite(s)
	alice := sitetest.Header("User", "alice")
	for _, want := range []int{401, 401, 303, 401, 401, 401, 429} {
		change := wrongPassword
		if want == http.StatusSeeOther {
			change = rightPassword
		}
		if got := s.Get("203.0.113.9", alice, change).Status; got != want {
			t.Errorf("answered %d, want %d", got, want)
		}
	}
	s.End()
}
