package ratelimit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
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

func TestCountersEndWithTheLastConfiguration(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("end", "limit 1/30d"))
	s.Admits("1.2.3.4", 2, 1)
	s.End()
	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("end", "limit 1/30d"))
	s.Admits("1.2.3.4", 2, 1)
}
