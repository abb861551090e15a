package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

func TestWhatADenialSendsTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock(t.Name(), "limit 2/1m\nalgorithm sliding_log"))
		s.Admits("1.2.3.4", 2, 2)
		time.Sleep(10*time.Second + time.Millisecond)
		a := s.Get("1.2.3.4")
		if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "50" || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("third request: %d %v, want 429 with Retry-After 50 and no-store", a.Status, a.Header)
		}
		if got := a.Header.Get("Content-Type"); got != "application/problem+json" || !strings.Contains(a.Body, t.Name()) {
			t.Errorf("body of type %s: %s, want problem details that name the policy", got, a.Body)
		}
		s.Admits("1.2.3.5", 1, 1)
		time.Sleep(49 * time.Second)
		s.Admits("1.2.3.4", 1, 0)
		time.Sleep(time.Second)
		s.Admits("1.2.3.4", 3, 2)
		s.End()
	})
}

// Retry-After is held to both sides through the whole handler: a client that waits that long is
// admitted, a second earlier it is not.
//
// bubble: time is that of a bubble.
func TestRetryAfterFromBothSides(t *testing.T) {
	for _, options := range []string{
		"limit 7/30d", "limit 3/17s\nalgorithm sliding_window\nbuckets 5", "limit 7/30d\nalgorithm fixed_window", "limit 7/59s\nalgorithm sliding_log",
		"limit 7/30d\nalgorithm token_bucket\nburst 3", "limit 7/61s\nalgorithm gcra", "limit 1/30d\nalgorithm leaky_bucket\nqueue 0",
	} {
		for _, early := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("z", options))
				defer s.End()
				time.Sleep(1234 * time.Millisecond)
				var a sitetest.Reply
				for range 20 {
					if a = s.Get("1.2.3.4"); a.Status != http.StatusOK {
						break
					}
					time.Sleep(77 * time.Millisecond)
				}
				seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
				if err != nil || a.Status != http.StatusTooManyRequests {
					t.Fatalf("%s: %d %v, want a denial", options, a.Status, a.Header)
				}
				wait, want := time.Duration(seconds)*time.Second, http.StatusOK
				if early {
					wait, want = wait-time.Second, http.StatusTooManyRequests
				}
				time.Sleep(wait)
				if got := s.Get("1.2.3.4").Status; got != want {
					t.Errorf("%s: after %v of Retry-After %d: %d, want %d", options, wait, seconds, got, want)
				}
			})
		}
	}
}

func TestADeniedRequestConsumesNothingInOtherZones(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		t.Run(algorithm, func(t *testing.T) {
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("wide"+algorithm, "limit 10/30d 100/300d\nalgorithm "+algorithm)+
				sitetest.ZoneBlock("narrow"+algorithm, "key {http.request.header.K}\nlimit 1/30d\nalgorithm "+algorithm))
			s.Admits("1.2.3.4", 50, 1, sitetest.Header("K", "a"))
			for i := range 9 {
				s.Admits("1.2.3.4", 1, 1, sitetest.Header("K", fmt.Sprint(i)))
			}
			s.Admits("1.2.3.4", 1, 0, sitetest.Header("K", "last"))
			a := s.Get("1.2.3.4", sitetest.Header("K", "a"))
			longest := 0 // of the waits of the limits that deny
			for _, m := range regexp.MustCompile(`r=0;t=(\d+)`).FindAllStringSubmatch(a.Header.Get("Ratelimit"), -1) {
				t, _ := strconv.Atoi(m[1])
				longest = max(longest, t)
			}
			if seconds, _ := strconv.Atoi(a.Header.Get("Retry-After")); seconds < longest || longest == 0 {
				t.Errorf("both zones deny: Retry-After %d, want the longer wait %d", seconds, longest)
			}
		})
	}
}

func TestConcurrentRequestsAdmitExactlyTheLimit(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("concurrent", "limit 100/30d")+sitetest.ZoneBlock("concurrent2", "limit 150/60d\nalgorithm sliding_log"))
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if s.Get("1.2.3.4").Status == http.StatusOK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// a request that is about to be denied by one zone may take a place in the other for an
	// instant
	if got := admitted.Load(); got > 100 || got < 95 {
		t.Errorf("800 concurrent requests: %d admitted, want 100", got)
	}
}

func TestDenyAll(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("deny", "limit 0/30d"))
	a := s.Get("1.2.3.4")
	if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "2592000" {
		t.Errorf("limit 0: %d, Retry-After %s, want 429 and the window", a.Status, a.Header.Get("Retry-After"))
	}
}

func TestClientIPGrouping(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("grouping", "limit 2/30d"))
	s.Admits("2001:db8:1:2::1", 1, 1)
	s.Admits("2001:db8:1:2:3::4", 2, 1) // the same /64
	s.Admits("2001:db8:1:3::1", 1, 1)
	s.Admits("9.9.9.9", 1, 1)
	s.Admits("::ffff:9.9.9.9", 2, 1)
	s.Admits("9.9.9.8", 1, 1)
	s.Admits("", 3, 2) // no address: limited all the same
}

func TestEmptyKey(t *testing.T) {
	// of 3 requests from one address, then of 3 from another
	for policy, want := range map[string][2]int{
		"client_ip": {2, 2}, "share": {2, 0}, "skip": {3, 3}, "deny": {0, 0},
	} {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("empty-"+policy, "key {http.request.header.X-Api-Key}\nlimit 2/30d\nempty_key "+policy))
		s.Admits("1.2.3.4", 3, want[0])
		s.Admits("1.2.3.5", 3, want[1])
		s.Admits("1.2.3.4", 3, 2, sitetest.Header("X-Api-Key", "k"))
	}
}

func TestCountDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("count", "limit 5/1m\nalgorithm sliding_log\ncount_denied"))
		defer s.End()
		s.Admits("1.2.3.4", 10, 5)
		time.Sleep(59 * time.Second)
		s.Admits("1.2.3.4", 10, 0)
		time.Sleep(2 * time.Second)
		s.Admits("1.2.3.4", 10, 0) // what was denied counts as well
		time.Sleep(61 * time.Second)
		s.Admits("1.2.3.4", 10, 5)
	})
}

// A client that waits for Retry-After is admitted, also where the denial that it came with was
// charged.
//
// bubble: time is that of a bubble.
func TestCountDeniedAdmitsWhoWaits(t *testing.T) {
	for _, options := range []string{"limit 2/4s\nalgorithm token_bucket", "limit 2/4s", "limit 2/4s\nalgorithm fixed_window", "limit 2/4s\nalgorithm sliding_log"} {
		synctest.Test(t, func(t *testing.T) {
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("waits", options+"\ncount_denied"))
			defer s.End()
			s.Admits("1.2.3.4", 2, 2)
			for range 3 {
				s.Admits("1.2.3.4", 1, 0)
			}
			seconds, _ := strconv.Atoi(s.Get("1.2.3.4").Header.Get("Retry-After"))
			time.Sleep(time.Duration(seconds) * time.Second)
			if got := s.Get("1.2.3.4").Status; got != http.StatusOK {
				t.Errorf("%s: after Retry-After %d: %d, want 200", options, seconds, got)
			}
		})
	}
}

// Where nobody sees how admitted requests leave the limits, that isn't worked out. A denial shows
// the same as everywhere, also of the limits that would have admitted.
func TestAHandlerWithoutHeadersDeniesInFull(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 0"} {
		for _, denied := range []string{"", "\ncount_denied"} {
			var shown []string
			for _, options := range []string{"headers off\n", "headers off\ndisable_placeholders\n"} {
				synctest.Test(t, func(t *testing.T) {
					s := sitetest.NewSite(t, &ratelimit.App{}, options+sitetest.ZoneBlock("first", "limit 1/1h\nalgorithm "+algorithm+denied)+sitetest.ZoneBlock("second", "limit 0/1m"))
					defer s.End()
					time.Sleep(1234 * time.Millisecond)
					r := s.Request("1.2.3.4")
					a := s.Send(r)
					repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
					shown = append(shown, repl.ReplaceAll("{http.rate_limit.first.remaining} of {http.rate_limit.first.limit} {http.rate_limit.first.reset} "+
						"{http.rate_limit.second.reset} {http.rate_limit.exceeded.wait} ", "")+a.Header.Get("Retry-After")+a.Body)
				})
			}
			if shown[0] != shown[1] || denied != "" && strings.Contains(shown[0], "0 of 1 0 ") {
				t.Errorf("%s%s: a handler without placeholders denies with %s, another one with %s", algorithm, denied, shown[1], shown[0])
			}
		}
	}
}

func TestLeakyBucketDelaysAndForgetsWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("leaky", "limit 1/10s\nalgorithm leaky_bucket\nqueue 2"))
		defer s.End()
		start := time.Now()
		var at [3]time.Duration
		var wg sync.WaitGroup
		for i := range at {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				s.Admits("1.2.3.4", 1, 1)
				at[i] = time.Since(start).Round(time.Second)
			})
		}
		time.Sleep(10 * time.Millisecond)
		s.Admits("1.2.3.4", 1, 0) // one in service, two wait
		wg.Wait()
		if want := [3]time.Duration{0, 10 * time.Second, 20 * time.Second}; at != want {
			t.Errorf("admitted after %v, want %v", at, want)
		}
		time.Sleep(time.Minute)

		s.Admits("1.2.3.4", 1, 1)
		ctx, leave := context.WithCancel(context.Background())
		s.Next = func(http.ResponseWriter, *http.Request) error { t.Error("a client that left was served"); return nil }
		wg.Go(func() {
			a := s.Get("1.2.3.4", func(r *http.Request) { *r = *r.WithContext(ctx) })
			if a.Err == nil {
				t.Error("a client that left: no error")
			}
		})
		synctest.Wait()
		leave()
		wg.Wait()
		s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		before := time.Now()
		s.Admits("1.2.3.4", 1, 1)
		if waited := time.Since(before).Round(time.Second); waited != 10*time.Second {
			t.Errorf("after the last in line left, the next waited %v, want its place, 10s", waited)
		}
	})
}

func TestARequestThatComesBackThroughAnErrorRouteIsCountedOnce(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("errors", "limit 2/30d"))
	failure := caddyhttp.Error(http.StatusBadGateway, errors.New("upstream"))
	for range 2 {
		r := s.Request("1.2.3.4")
		s.Next = func(http.ResponseWriter, *http.Request) error { return failure }
		if a := s.Send(r); a.Err == nil {
			t.Fatal("the next handler's error is lost")
		}
		s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, failure))
		if a := s.Send(r); a.Status != http.StatusOK {
			t.Errorf("on the error route: %d, want it counted once", a.Status)
		}
	}
	s.Admits("1.2.3.4", 1, 0)
}

func TestTwoHandlersOnOneWayAreEachCountedOnce(t *testing.T) {
	outer := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("outer", "limit 2/30d"))
	inner := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("inner", "limit 2/30d"))
	failure := caddyhttp.Error(http.StatusBadGateway, errors.New("upstream"))
	outer.Next = func(w http.ResponseWriter, r *http.Request) error { return inner.Handler.ServeHTTP(w, r, inner.Next) }
	for range 2 {
		r := outer.Request("1.2.3.4")
		inner.Next = func(http.ResponseWriter, *http.Request) error { return failure }
		outer.Send(r)
		inner.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		if a := outer.Send(r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, failure))); a.Status != http.StatusOK {
			t.Errorf("on the error route: %d, want it counted once in both", a.Status)
		}
	}
}

func TestMatchersSelect(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("match", "match {\npath /login\n}\nlimit 1/30d"))
	s.Admits("1.2.3.4", 3, 3, sitetest.To("/other"))
	s.Admits("1.2.3.4", 3, 1, sitetest.To("/login"))
}

func TestChangedLimitAppliesToWhatIsSpent(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"} {
		block := func(n int) string {
			return sitetest.ZoneBlock("changed-"+algorithm, fmt.Sprintf("limit %d/1h\nalgorithm %s", n, algorithm))
		}
		s := sitetest.NewSite(t, &ratelimit.App{}, block(10))
		s.Admits("1.2.3.4", 12, 10)
		s2 := sitetest.NewSite(t, &ratelimit.App{}, block(15))
		s.End()
		s2.Admits("1.2.3.4", 12, 5)
	}
}

func TestChangedNumbersOfAnUnnamedLimitKeepItsCounts(t *testing.T) {
	block := func(n int) string {
		name := config.NameOf("a.example", []config.Rate{{Limit: int64(n), Window: 30 * 24 * time.Hour}})
		return sitetest.ZoneBlock(strconv.Quote(name), fmt.Sprintf("limit %d/1h", n))
	}
	s := sitetest.NewSite(t, &ratelimit.App{}, block(10)+block(1000))
	s.Admits("1.2.3.4", 12, 10)
	s.Admits("1.2.3.5", 12, 10)
	s2 := sitetest.NewSite(t, &ratelimit.App{}, block(15)+block(1000))
	s2.Admits("1.2.3.4", 1, 1) // the new server may serve before the old app has stopped
	s.End()
	s2.Admits("1.2.3.4", 12, 4)
	s3 := sitetest.NewSite(t, &ratelimit.App{}, block(20)+block(1000))
	s2.End()
	s3.Admits("1.2.3.5", 12, 10) // it was quiet all the while
	s4 := sitetest.NewSite(t, &ratelimit.App{Namespace: "another"}, block(20)+block(1000))
	s3.End()
	s4.Admits("1.2.3.4", 12, 5)
}

func TestAFailedReloadChangesNothing(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("failed", "limit 10/30d"))
	s.Admits("1.2.3.4", 4, 4)
	if _, err := sitetest.TrySite(t, &ratelimit.App{}, sitetest.ZoneBlock("failed", "limit 3/30d")+sitetest.ZoneBlock("bad", "key {http.request.nonsense}\nlimit 1/30d")); err == nil {
		t.Fatal("a bad configuration was accepted")
	}
	s.Admits("1.2.3.4", 10, 6)
	// A configuration whose other apps fail to start is stopped again.
	s2 := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("failed", "limit 3/30d"))
	s2.End()
	s.Admits("1.2.3.5", 12, 10)
	s.Admits("1.2.3.4", 1, 0)
}

func TestCountersEndWithTheLastConfiguration(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("end", "limit 1/30d"))
	s.Admits("1.2.3.4", 2, 1)
	s.End()
	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("end", "limit 1/30d"))
	s.Admits("1.2.3.4", 2, 1)
}

func TestHostileKeys(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("hostile", "key {http.request.header.K}\nlimit 1/30d"))
	for _, key := range []string{strings.Repeat("x", 20_000), "\x00\xff\xfe", "{}", "{http.request.host}", "a\r\nSet-Cookie: b"} {
		s.Admits("1.2.3.4", 3, 1, sitetest.Header("K", key))
	}
}

func TestPlaceholdersOfAServedRequest(t *testing.T) {
	for _, headers := range []string{"draft", "off"} {
		zone := "shown_" + headers
		s := sitetest.NewSite(t, &ratelimit.App{}, "headers "+headers+"\n"+sitetest.ZoneBlock(zone, "limit 3/30d\nalgorithm fixed_window"))
		r := s.Request("1.2.3.4")
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		s.Send(r)
		if got := repl.ReplaceAll("{http.rate_limit."+zone+".limit} {http.rate_limit."+zone+".remaining}", "-"); got != "3 2" {
			t.Errorf("%s: limit and remaining = %q, want 3 2", headers, got)
		}
		s.Admits("1.2.3.4", 2, 2)
		r = s.Request("1.2.3.4")
		repl = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		s.Send(r)
		if got := repl.ReplaceAll("{http.rate_limit.exceeded.name}", "-"); got != zone {
			t.Errorf("exceeded.name = %q, want %s", got, zone)
		}
	}
}
