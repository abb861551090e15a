package behaviour_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A settlements is a site whose zone reserves 10 of 100 for each request, until a header of its
// response says what it has cost. Requests can be held in the handler.
type settlements struct {
	*sitetest.Site
	t       *testing.T
	zone    string
	under   chan struct{}
	release chan string
	reached int
	mu      sync.Mutex
	ended   sync.WaitGroup
}

func newSettlements(t *testing.T, zone, block string, app *ratelimit.App, reserves ...any) *settlements {
	c := &settlements{t: t, zone: zone, under: make(chan struct{}), release: make(chan string)}
	c.Site = reservedSite(t, app, block, reserves...)
	t.Cleanup(c.ended.Wait)
	c.Next = func(w http.ResponseWriter, r *http.Request) error {
		cost := r.Header.Get("Costs")
		c.mu.Lock()
		c.reached++
		c.mu.Unlock()
		if cost == "" {
			c.under <- struct{}{}
			cost = <-c.release
		}
		w.Header().Set("X-Cost", cost)
		return nil
	}
	return c
}

// cost sends a request that costs so much in truth.
func (c *settlements) cost(n int, change ...func(*http.Request)) int {
	return c.Get("192.0.2.1", append(change, sitetest.Header("Costs", fmt.Sprint(n)))...).Status
}

// hold sends requests that wait in the handler, and end has as many answered.
func (c *settlements) hold(count int) {
	for range count {
		c.ended.Go(func() { c.Get("192.0.2.1") })
		<-c.under
	}
}

func (c *settlements) end(count, cost int) {
	for range count {
		c.release <- fmt.Sprint(cost)
	}
}

// uses waits until a zone says that so much of the limit is used.
func (c *settlements) uses(zone, what string, want int) {
	c.t.Helper()
	got := -1
	redistest.Eventually(c.t, fmt.Sprintf("%s: %d are used", what, want), func() bool {
		status, text := sitetest.Ask(http.MethodPost, operate.ExplainPath, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, zone))
		var x operate.Explained
		if err := json.Unmarshal([]byte(text), &x); err != nil || status != http.StatusOK {
			c.t.Fatalf("explain = %d %s", status, text)
		}
		got = int(x.Zones[0].Limits[len(x.Zones[0].Limits)-1].Used)
		return got == want
	})
}

// What a response costs, with what else a zone can do: on one node and in Redis, under each
// algorithm.
func TestSettlementsWithOtherOptions(t *testing.T) {
	server := redistest.Start(t)
	for _, rate := range []string{"local", "strict"} {
		for _, algorithm := range settling {
			for name, test := range settlementCases {
				t.Run(rate+"/"+algorithm+"/"+name, func(t *testing.T) {
					app := &ratelimit.App{}
					if rate == "strict" {
						app = sitetest.AppWith(server)
					}
					zone := strings.Join([]string{name, rate, algorithm}, "-")
					block := sitetest.ZoneBlock(zone, "limit 100/80000h\nsync_rate "+rate+"\nalgorithm "+algorithm+"\ncost 10\nresponse_cost header X-Cost\n"+test.options) + test.more
					test.run(newSettlements(t, zone, block, app, test.reserves...))
				})
			}
		}
	}
}

var settlementCases = map[string]struct {
	options, more string
	reserves      []any
	run           func(c *settlements)
}{
	"shadow": {options: "enforce off", run: func(c *settlements) {
		c.cost(95)
		if c.uses(c.zone, "the first", 95); c.cost(70) != http.StatusOK {
			c.t.Error("a zone that is not enforced denies")
		}
		c.uses(c.zone, "what would be denied takes and settles nothing", 95)
	}},
	"override": {run: func(c *settlements) {
		c.hold(1)
		sitetest.Changed(c.t, http.MethodPost, sitetest.Overrides, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1","limit":"1000/80000h"}`, c.zone))
		c.end(1, 99)
		c.uses(c.zone, "after a charge under an override", 99)
		if status := c.cost(40); status != http.StatusOK {
			c.t.Errorf("with an override the next one gets %d", status)
		}
		c.uses(c.zone, "and the next one", 139)
	}},
	"reset": {run: func(c *settlements) {
		c.hold(2)
		reset(c.t, fmt.Sprintf(`{"zone":%q,"key":"192.0.2.1"}`, c.zone))
		c.end(1, 80)
		c.end(1, 0)
		c.cost(7)
		c.uses(c.zone, "what was taken before a reset settles nothing after it", 7)
	}},
	"another-zone-denies": {more: sitetest.ZoneBlock("small", "limit 1/80000h"), run: func(c *settlements) {
		if a, b := c.cost(30), c.cost(30); a != http.StatusOK || b != http.StatusTooManyRequests {
			c.t.Errorf("answers are %d and %d, want 200 and 429", a, b)
		}
		c.uses(c.zone, "of what another zone denied all is refunded", 30)
	}},
	"reserve": {reserves: []any{"paying", 20}, run: func(c *settlements) {
		c.cost(71)
		c.uses(c.zone, "others", 71)
		if a, b := c.cost(1), c.cost(5, sitetest.Header("X-Class", "paying")); a != http.StatusTooManyRequests || b != http.StatusOK {
			c.t.Errorf("others get %d and who pays %d, want 429 and 200", a, b)
		}
		c.uses(c.zone, "and who pays", 76)
	}},
	"concurrent": {options: "concurrent 1", run: func(c *settlements) {
		if c.hold(1); c.cost(50) != http.StatusTooManyRequests {
			c.t.Error("a second request has a place")
		}
		c.end(1, 33)
		c.uses(c.zone, "the one that had a place", 33)
		redistest.Eventually(c.t, "its place is free", func() bool { return inUse(c.t, c.zone) == 0 })
		if c.cost(4) != http.StatusOK {
			c.t.Error("the place is not free")
		}
		c.uses(c.zone, "and the next one", 37)
	}},
	"ban": {options: "ban 1h after 2/30d", run: func(c *settlements) {
		c.hold(10)
		for range 4 {
			if status := c.cost(1); status != http.StatusTooManyRequests {
				c.t.Errorf("beside ten estimates: %d", status)
			}
		}
		c.end(10, 0)
		redistest.Eventually(c.t, "who was denied by what was reserved is not banned", func() bool { return c.cost(1) == http.StatusOK })
	}},
	"a-hundred-at-once": {run: func(c *settlements) {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { c.Get("192.0.2.1") })
		}
		for range 10 {
			<-c.under
		}
		for range 10 {
			c.release <- "10"
		}
		all.Wait()
		if c.reached != 10 {
			c.t.Errorf("%d of 100 have reached the handler, which ten estimates are left for", c.reached)
		}
		c.uses(c.zone, "ten that cost their estimate", 100)
	}},
}
