package redis_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A quota ends when its calendar says, and clients are told so: at the end of a day, and of a month
// that ends in two days.
func TestAQuotaEndsWithItsCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		berlin, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		from := time.Unix(0, clock.Now()).In(berlin).AddDate(0, 0, 2).Day()
		of := func(window time.Duration) algorithms.Span {
			c, err := calendar.Of(window, "Europe/Berlin", from)
			if err != nil {
				t.Fatal(err)
			}
			return c.At(clock.Now())
		}
		block := fmt.Sprintf("limit 3/day 5/month\ncalendar Europe/Berlin from %d\nheaders ietf kong", from)
		s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("plan", block))
		defer s.End()
		month := of(algorithms.Month)
		length := (month.End - month.Begin) / int64(time.Second)
		for date, want := range []int{3, 2} {
			day := of(algorithms.Day)
			s.Admits("1.2.3.4", 4, want)
			time.Sleep(time.Duration(day.End - clock.Now() - int64(1500*time.Millisecond)))
			reply := s.Get("1.2.3.4")
			if reply.Status != http.StatusTooManyRequests || reply.Header.Get("Retry-After") != "2" {
				t.Fatalf("on day %d: %d, Retry-After %s, want 429 and 2", date, reply.Status, reply.Header.Get("Retry-After"))
			}
			policy := fmt.Sprintf(`"plan-day";q=3;w=86400, "plan-month";q=5;w=%d`, length)
			if got := reply.Header.Get("RateLimit-Policy"); got != policy {
				t.Errorf("the policy is %s, want %s", got, policy)
			}
			if left := reply.Header.Get("X-RateLimit-Remaining-Month"); left != []string{"2", "0"}[date] {
				t.Errorf("on day %d %s are left of the month", date, left)
			}
			time.Sleep(1500*time.Millisecond - time.Nanosecond)
			s.Admits("1.2.3.4", 1, 0)
			time.Sleep(time.Nanosecond)
		}
		if now := clock.Now(); now < month.End {
			t.Fatalf("the month ends in %v", time.Duration(month.End-now))
		}
		s.Admits("1.2.3.4", 4, 3)
	})
}

// A quota goes together with every other option, on a node alone, at an interval and where Redis
// decides.
func TestQuotasWithOtherOptions(t *testing.T) {
	server := redistest.Start(t)
	for name, rate := range map[string]string{"local": "local", "interval": "100ms", "strict": "strict"} {
		t.Run(name, func(t *testing.T) {
			app := sitetest.AppWith(server)
			app.Namespace = "quotas-" + name
			zone := func(name, options string) string {
				return sitetest.ZoneBlock(name, "match path /"+name+"*\nkey {http.request.header.X-Plan}\nsync_rate "+rate+"\n"+options)
			}
			s := sitetest.NewSite(t, app, zone("tokens", "limit 100/year\ncost 10\nresponse_cost header X-Cost")+
				zone("banned", "limit 2/year\nban 1h after 2/30d")+
				zone("shadow", "limit 1/year\nenforce off")+
				zone("logins", "limit 2/year\ncount_responses 404")+
				zone("both", "limit 4/30d 2/year\nalgorithm fixed_window")+
				zone("plan", "limit {http.request.header.X-Limit}/year\nlimit_default 2/year"))
			get := func(path, key string, count, want int) {
				t.Helper()
				s.Admits("1.2.3.4", count, want, sitetest.To("/"+path), sitetest.Plan(key))
			}
			get("tokens", "a", 11, 10) // a response without X-Cost has cost what was estimated
			get("banned", "a", 3, 2)
			get("banned", "a", 1, 0)
			if reply := s.Get("1.2.3.4", sitetest.To("/banned"), sitetest.Plan("a")); !strings.Contains(reply.Body, "abnormal") {
				t.Errorf("after two denials there is no ban: %s", reply.Body)
			}
			get("shadow", "a", 3, 3)
			get("logins", "a", 4, 4) // none is 404
			get("both", "a", 5, 2)
			s.Admits("1.2.3.4", 5, 3, sitetest.To("/plan"), sitetest.Plan("a"), sitetest.Header("X-Limit", "3"))

			sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"both","key":"a","limit":"3/year"}`)
			get("both", "a", 5, 1)
			if status, text := sitetest.Ask(http.MethodPost, sitetest.Overrides, `{"zone":"both","key":"a","limit":"3/365d"}`); status != http.StatusBadRequest || !strings.Contains(text, "30d, year") {
				t.Errorf("an override of another window is %d %s", status, text)
			}
			if status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, `{"zone":"both","key":"a"}`); status != http.StatusOK || !strings.Contains(text, `"until":"`) || strings.Count(text, `"until"`) != 1 {
				t.Errorf("explain says %d %s", status, text)
			}
			sitetest.Changed(t, http.MethodPost, operate.ResetPath, `{"zone":"both","key":"a"}`)
			get("both", "a", 5, 3)
		})
	}
}

// What was counted of a year is there after a restart: from a file, from Redis where it was
// restarted as well, and from the nodes where it has forgotten.
func TestQuotasOutliveRestarts(t *testing.T) {
	block := sitetest.ZoneBlock("plan", "limit 10/year\ncalendar America/St_Johns")
	t.Run("persist", func(t *testing.T) {
		h := sitetest.NewHome(t, "storage")
		s := h.BootIn(t.Name(), block)
		s.Admits("1.2.3.4", 7, 7)
		s.End()
		h.BootIn(t.Name(), block).Admits("1.2.3.4", 7, 3)
	})
	for _, rate := range []string{"100ms", "strict"} {
		t.Run(rate, func(t *testing.T) {
			server := durable(t)
			block := sitetest.ZoneBlock("plan-"+rate, "limit 10/year\ncalendar America/St_Johns\nsync_rate "+rate)
			s := sitetest.NewSite(t, sitetest.AppWith(server), block)
			s.Admits("1.2.3.4", 4, 4)
			server.Do("FLUSHALL")
			redistest.Eventually(t, "the node has told what was forgotten", func() bool { return sitetest.SumIn(t, server, "plan-"+rate) == 4 })
			s.Admits("1.2.3.4", 3, 3)
			s.End()
			server.Kill()
			server.Restart()
			s = sitetest.NewSite(t, sitetest.AppWith(server), block)
			s.Admits("1.2.3.4", 1, 1)
			if rate != "strict" {
				sitetest.Shows(t, "plan-"+rate, "has what others counted", func(l operate.LimitState) bool { return l.Remote == 7 })
			}
			s.Admits("1.2.3.4", 7, 2)
			s.End()
		})
	}
}
