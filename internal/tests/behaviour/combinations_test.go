package behaviour_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// guessing is a site whose handler answers 401 to a wrong password. Others wait in it until they
// are told a status.
type guessing struct {
	s     *sitetest.Site
	under chan struct{}
	begin chan int
	ended sync.WaitGroup
}

func guesses(s *sitetest.Site) *guessing {
	g := &guessing{s: s, under: make(chan struct{}), begin: make(chan int)}
	g.answer(s)
	return g
}

// answer has a site answer so.
func (g *guessing) answer(s *sitetest.Site) {
	g.s = s
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		if r.Header.Get("Password") == "wrong" {
			w.WriteHeader(http.StatusUnauthorized)
			return nil
		}
		g.under <- struct{}{}
		w.WriteHeader(<-g.begin)
		return nil
	}
}

// hold sends requests that wait in the handler.
func (g *guessing) hold(count int, change ...func(*http.Request)) {
	s := g.s
	for range count {
		g.ended.Go(func() { s.Get("203.0.113.9", change...) })
		<-g.under
	}
}

// end has as many answered with a status.
func (g *guessing) end(count, status int) {
	for range count {
		g.begin <- status
	}
	g.ended.Wait()
}

// reached sends wrong guesses and wants so many to reach the handler. What is denied then is denied
// by what is only reserved, or for good.
func (g *guessing) reached(what string, count, want int, reserved bool, change ...func(*http.Request)) {
	g.s.T.Helper()
	got := 0
	var last sitetest.Reply
	for range count {
		if last = g.s.Get("203.0.113.9", append(change, wrongPassword)...); last.Status == http.StatusUnauthorized {
			got++
		}
	}
	if got != want {
		g.s.T.Errorf("%s: %d of %d guesses reached the handler, want %d", what, got, count, want)
	}
	if got < count && (last.Header.Get("Retry-After") == "1") != reserved {
		g.s.T.Errorf("%s: denied with Retry-After %s, want a denial by what is reserved: %v", what, last.Header.Get("Retry-After"), reserved)
	}
}

// With reserve and count_responses, others reserve no more units than their share, and who pays
// finds the rest. What is refunded goes to whoever sees it.
func TestReserveOfReservations(t *testing.T) {
	redis := redistest.Start(t)
	for _, rate := range []string{"local", "1h", "strict"} {
		for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
			t.Run(rate+" "+algorithm, func(t *testing.T) {
				app := &ratelimit.App{}
				if rate != "local" {
					app = sitetest.AppWith(redis)
				}
				name := `"reserved units ` + rate + " " + algorithm + `"`
				g := guesses(reservedSite(t, app, sitetest.ZoneBlock(name, "key all\nlimit 10/3650d\ncount_responses 401\nsync_rate "+rate+"\nalgorithm "+algorithm), "paying", 20))
				g.hold(8)
				g.reached("others beside 8 of theirs", 2, 0, true)
				g.hold(1, class("paying"))
				g.reached("who pays beside 9", 2, 1, true, class("paying"))
				g.end(9, http.StatusOK)
				g.reached("others with one spent", 9, 7, false)
				g.reached("who pays with 8 spent", 3, 2, false, class("paying"))
			})
		}
	}
}

// A share that is changed by a reload holds at once, also for what was used before.
func TestAReserveOverAReload(t *testing.T) {
	block := sitetest.ZoneBlock("reserve-reloaded", "key all\nlimit 10/3650d")
	s := reservedSite(t, &ratelimit.App{}, block, "paying", 20)
	s.Admits("1.1.1.1", 3, 3)
	next := reservedSite(t, &ratelimit.App{}, block, "paying", 50)
	s.End()
	next.Admits("1.1.1.1", 5, 2)
	last := sitetest.NewSite(t, &ratelimit.App{}, block)
	next.End()
	last.Admits("1.1.1.1", 9, 5)
}

// Keys beyond max_keys reserve units as others do: what doesn't count is refunded in the sketch.
func TestReservationsBeyondMaxKeys(t *testing.T) {
	for _, algorithm := range settledAlgorithms {
		t.Run(algorithm, func(t *testing.T) {
			g := guesses(sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("beyond", "limit 3/30d\nkey {http.request.header.K}\nmax_keys 1\ncount_responses 401\nalgorithm "+algorithm)))
			g.reached("a key with a counter", 1, 1, false, sitetest.Header("K", "first"))
			beyond := sitetest.Header("K", "beyond")
			g.hold(3, beyond)
			g.reached("beside three", 1, 0, true, beyond)
			g.end(3, http.StatusOK)
			g.reached("after three that don't count", 5, 3, false, beyond)
			g.s.End()
		})
	}
}

// Where Redis decides, denials by what is reserved begin no ban, also not over a reload, and those
// that are for good do. The ban goes on over another one.
func TestReservedAndBannedOverAReload(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			app := sitetest.AppWith(redistest.Start(t))
			block := sitetest.ZoneBlock("reserved-banned", "limit 2/30d\ncount_responses 401\nban 1h\nsync_rate strict\nalgorithm "+algorithm)
			first := sitetest.NewSite(t, app, block)
			g := guesses(first)
			g.hold(1)
			g.reached("beside one", 4, 1, true)
			second := sitetest.NewSite(t, app, block)
			first.End()
			g.answer(second)
			g.reached("after a reload, beside one of before", 3, 0, true)
			g.end(1, http.StatusUnauthorized)
			if a := second.Get("203.0.113.9"); !strings.Contains(a.Body, abnormal) {
				t.Errorf("with all spent: %d %v %s, want a ban to begin", a.Status, a.Header, a.Body)
			}
			third := sitetest.NewSite(t, app, block)
			second.End()
			if a := third.Get("203.0.113.9"); !strings.Contains(a.Body, abnormal) || a.Header.Get("RateLimit") != "" {
				t.Errorf("after another reload: %d %v %s, want the ban", a.Status, a.Header, a.Body)
			}
			third.End()
		})
	}
}

// A denial by concurrent begins no ban. A ban ends nothing that runs, and who is banned takes no
// place.
func TestBanBesideConcurrent(t *testing.T) {
	for _, rate := range []string{"local", "100ms", "strict"} {
		app := &ratelimit.App{Namespace: t.Name()}
		if rate != "local" {
			app = sitetest.AppWith(redistest.Start(t))
		}
		s := sitetest.NewSite(t, app, sitetest.ZoneBlock("ban-runs", "limit 4/30d\nconcurrent 2\nban 1h\nsync_rate "+rate))
		r := runs(s)
		r.begin("1.2.3.4", 2)
		s.Admits("1.2.3.4", 5, 0)
		if n := sitetest.DecidedAs(t, "ban-runs", "banned"); n != 0 {
			t.Fatalf("%s: %d requests are banned because others ran", rate, n)
		}
		r.end(1)
		run := s.Next
		s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		s.Admits("1.2.3.4", 3, 2)
		if a := s.Get("1.2.3.4"); !strings.Contains(a.Body, abnormal) {
			t.Errorf("%s: with the limit spent: %d %s, want a ban", rate, a.Status, a.Body)
		}
		if n := inUse(t, "ban-runs"); n != 1 || r.in.Load() != 1 {
			t.Errorf("%s: %d run and %d have a place during a ban, want the one from before", rate, r.in.Load(), n)
		}
		s.Next = run
		r.end(1)
		r.begin("1.2.3.5", 2)
		r.end(2)
		s.End()
	}
}

// Who is banned is answered at once, whatever the bandwidth of his key is taken by. What is open
// goes on at its rate.
func TestBanBesideBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("ban-slow", "limit 1/30d\nban 1h\nbandwidth 20kB/s"))
		s.Next = writes(40_000, 1000)
		done := make(chan sitetest.Reply)
		go func() { done <- s.Get("192.0.2.1") }()
		redistest.Eventually(t, "the response is open", func() bool { return bandwidthOf(t, "ban-slow").Bytes > 0 })
		for range 20 {
			if a := s.Get("192.0.2.1"); !strings.Contains(a.Body, abnormal) {
				t.Errorf("%d %s, want a ban", a.Status, a.Body)
			}
		}
		select {
		case a := <-done:
			t.Errorf("%d bytes at 20 kB/s are there as soon as twenty denials", len(a.Body))
		default:
		}
		if a := <-done; len(a.Body) != 40_000 || a.Status != http.StatusOK {
			t.Errorf("what was open when the ban began: %d with %d bytes, want all", a.Status, len(a.Body))
		}
		if b := bandwidthOf(t, "ban-slow"); b.Bytes != 40_000 || b.Open != 0 {
			t.Errorf("%+v, want only the bytes of what was admitted", b)
		}
	})
}

// A request waits in the queue, has its place meanwhile, and is then slowed.
func TestConcurrentBandwidthAndAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("three", "limit 1/10s\nalgorithm leaky_bucket\nqueue 5\nconcurrent 2\nbandwidth 1kB/s"))
		defer s.End()
		s.Next = writes(20_000, 1000)
		began := time.Now()
		var took [2]time.Duration
		var wg sync.WaitGroup
		for i := range took {
			wg.Go(func() {
				if a := s.Get("1.2.3.4"); a.Status != http.StatusOK || len(a.Body) != 20_000 {
					t.Errorf("%d with %d bytes", a.Status, len(a.Body))
				}
				took[i] = time.Since(began)
			})
			synctest.Wait()
		}
		s.Admits("1.2.3.4", 1, 0) // one is sent, one waits
		if n := inUse(t, "three"); n != 2 {
			t.Errorf("%d have a place, want 2", n)
		}
		wg.Wait()
		// The first one alone has 10 s, then both share the rate until it has 20 kB.
		if took[0] < 29*time.Second || took[0] > 31*time.Second || took[1] < 39*time.Second || took[1] > 41*time.Second {
			t.Errorf("they took %v, want 30 s and 40 s", took)
		}
		if n := inUse(t, "three"); n != 0 || bandwidthOf(t, "three").Open != 0 {
			t.Errorf("%d have a place at the end, and %+v", n, bandwidthOf(t, "three"))
		}
	})
}

// By a key that tells apart who is behind an address, a ban is only of who has overdone it.
func TestABanBehindASharedAddress(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("shared-address", "limit 2/30d\nban 1h\nkey {http.request.header.X-Api-Key}"))
	who := func(name string) func(*http.Request) { return sitetest.Header("X-Api-Key", name) }
	s.Admits("192.0.2.1", 5, 2, who("one"))
	if a := s.Get("192.0.2.1", who("one")); !strings.Contains(a.Body, abnormal) {
		t.Errorf("%d %s, want a ban", a.Status, a.Body)
	}
	for i := range 3 {
		s.Admits("192.0.2.1", 2, 2, who(fmt.Sprint("other", i)))
	}
}
