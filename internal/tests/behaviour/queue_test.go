package behaviour_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// starts notes when requests begin.
type starts struct {
	mu sync.Mutex
	at []time.Time
}

// bubble: it is called in one.
func (s *starts) next(http.ResponseWriter, *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	return nil
}

// closest is the least time between two of them.
func (s *starts) closest() time.Duration {
	slices.SortFunc(s.at, time.Time.Compare)
	least := time.Hour
	for i := range s.at[1:] {
		least = min(least, s.at[i+1].Sub(s.at[i]))
	}
	return least
}

// Requests leave a queue one by one, however many of those that came to it were denied by another
// zone, or by another queue.
//
// bubble: each of the sites runs in one.
func TestQueuesBesideEachOtherKeepTheirPace(t *testing.T) {
	const shared = "limit 10/1s\nalgorithm leaky_bucket\nqueue 20\nkey all\n"
	for name, block := range map[string]string{
		"two queues":               sitetest.ZoneBlock("a", shared) + sitetest.ZoneBlock("b", "limit 1/1h\nalgorithm leaky_bucket\nqueue 0\nkey {http.request.header.K}"),
		"two queues, turned round": sitetest.ZoneBlock("b", shared) + sitetest.ZoneBlock("a", "limit 1/1h\nalgorithm leaky_bucket\nqueue 0\nkey {http.request.header.K}"),
		"a queue and a window":     sitetest.ZoneBlock("a", shared) + sitetest.ZoneBlock("b", "limit 1/1h\nkey {http.request.header.K}"),
		"three queues": sitetest.ZoneBlock("a", shared) + sitetest.ZoneBlock("b", "limit 5/1s\nalgorithm leaky_bucket\nqueue 0\nkey {http.request.header.G}") +
			sitetest.ZoneBlock("c", "limit 1/1h\nalgorithm leaky_bucket\nqueue 0\nkey {http.request.header.K}"),
		"one zone with two queues": sitetest.ZoneBlock("a", "limit 10/1s 100/1m\nalgorithm leaky_bucket\nqueue 20\nkey all"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sitetest.NewSite(t, &ratelimit.App{}, block)
				defer s.End()
				var begun starts
				s.Next = begun.next
				random := rand.New(rand.NewPCG(1, 2))
				denied := 0
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range 400 {
					who := fmt.Sprint("spent ", i%3)
					if random.IntN(4) == 0 {
						who = fmt.Sprint(i)
					}
					wg.Go(func() {
						if s.Get("1.2.3.4", sitetest.Header("K", who), sitetest.Header("G", fmt.Sprint(i%2))).Status != http.StatusOK {
							mu.Lock()
							denied++
							mu.Unlock()
						}
					})
					time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					synctest.Wait()
				}
				wg.Wait()
				if got := begun.closest(); got < 100*time.Millisecond {
					t.Errorf("%d of 400 requests denied, the others begin %v from each other, want 100ms at least", denied, got)
				}
				if len(begun.at) < 30 || denied < 100 {
					t.Errorf("%d begin and %d are denied: that shows nothing", len(begun.at), denied)
				}
			})
		})
	}
}

// A request whose client leaves a queue is counted once in the zones beside it: the error route
// that it comes back through does not ask them again.
func TestAClientThatLeavesAQueueIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("beside", "limit 3/1h")+sitetest.ZoneBlock("queue", "limit 1/1m\nalgorithm leaky_bucket\nqueue 5"))
		defer s.End()
		s.Admits("1.2.3.4", 1, 1)
		r := s.Request("1.2.3.4")
		ctx, leave := context.WithCancel(r.Context())
		r = r.WithContext(ctx)
		left := make(chan sitetest.Reply)
		go func() { left <- s.Send(r) }()
		synctest.Wait()
		leave()
		a := <-left
		if a.Err == nil {
			t.Fatalf("%+v for a client that has left", a)
		}
		r = r.WithContext(context.WithValue(context.WithoutCancel(r.Context()), caddyhttp.ErrorCtxKey, a.Err))
		before := time.Now()
		if a := s.Send(r); a.Err != nil || a.Status != http.StatusOK || !time.Now().Equal(before) {
			t.Errorf("on the error route: %d %v after %v, want it let through at once", a.Status, a.Err, time.Since(before))
		}
		s.Admits("1.2.3.4", 2, 1) // of three: the first, the one that left, and this one
	})
}
