//go:build chaos

package behaviour_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// While Redis decides on a strict zone, others take the places behind a request in a queue: also
// those begin no closer than its pace.
func TestQueueKeepsItsPaceBesideStrictZones(t *testing.T) {
	const pace = 400 * time.Millisecond
	for name, block := range map[string]string{
		"a queue of this node": sitetest.ZoneBlock("queue-a", "sync_rate local\nlimit 5/2s\nalgorithm leaky_bucket\nqueue 50\nkey all") +
			sitetest.ZoneBlock("queue-b", "sync_rate strict\nlimit 1/1h\nkey {http.request.header.K}"),
		"a strict queue": sitetest.ZoneBlock("queue-a", "sync_rate strict\nlimit 5/2s\nalgorithm leaky_bucket\nqueue 50\nkey all") +
			sitetest.ZoneBlock("queue-b", "sync_rate strict\nlimit 1/1h\nkey {http.request.header.K}"),
		"two strict queues": sitetest.ZoneBlock("queue-a", "sync_rate strict\nlimit 5/2s\nalgorithm leaky_bucket\nqueue 50\nkey all") +
			sitetest.ZoneBlock("queue-b", "sync_rate strict\nlimit 1/1h\nalgorithm leaky_bucket\nqueue 0\nkey {http.request.header.K}"),
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.Start(t)
			proxy := faultproxy.Start(t, r.Addr)
			proxy.SetDelay(30 * time.Millisecond)
			app := sitetest.AppWith(r)
			app.Redis.Address = []string{proxy.Addr}
			app.Redis.PoolSize = 64
			s := sitetest.NewSite(t, app, strings.ReplaceAll(block, "queue-", strings.ReplaceAll(name, " ", "-")+"-"))
			var begun starts
			s.Next = begun.next
			came, lateness := time.Now(), measureLateness()
			s.Admits("1.2.3.4", 1, 1, sitetest.Header("K", "spent"))
			var waiting sync.WaitGroup
			for i := range 4 {
				var denied sync.WaitGroup
				before := proxy.Requests()
				denied.Go(func() { s.Admits("1.2.3.4", 1, 0, sitetest.Header("K", "spent")) })
				redistest.Eventually(t, "Redis is asked", func() bool { return proxy.Requests() > before })
				waiting.Go(func() { s.Get("1.2.3.4", sitetest.Header("K", fmt.Sprint("behind ", i))) })
				denied.Wait()
				// before Redis has what was refunded, and after it
				redistest.Pause(time.Duration(i) * 20 * time.Millisecond)
				waiting.Go(func() { s.Get("1.2.3.4", sitetest.Header("K", fmt.Sprint("later ", i))) })
			}
			waiting.Wait()
			// One that begins late, as on a busy machine, is closer to the next one. No more ever
			// begin than the pace allows since the first one came.
			got, late := begun.closest(), lateness()
			if got < pace/2 && got < pace-2*late || len(begun.at) != 9 {
				t.Errorf("%d requests begin, %v from each other, on a machine that is late by %v; want 9, about %v", len(begun.at), got, late, pace)
			}
			for i, at := range begun.at {
				if early := time.Duration(i)*pace - at.Sub(came); early > 10*time.Millisecond {
					t.Errorf("request %d begins %v before its turn", i+1, early)
				}
			}
		})
	}
}

// measureLateness begins to measure how late a goroutine goes on after a pause, and returns what
// ends that and says how late at most.
func measureLateness() (end func() time.Duration) {
	const pause = 5 * time.Millisecond
	done, most := make(chan struct{}), make(chan time.Duration)
	go func() {
		late, last, ticks := time.Duration(0), time.Now(), time.NewTicker(pause)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				now := time.Now()
				late, last = max(late, now.Sub(last)-pause), now
			case <-done:
				most <- late
				return
			}
		}
	}()
	return func() time.Duration {
		close(done)
		return <-most
	}
}
