package ratelimit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
