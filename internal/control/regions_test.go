package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Three regions of two nodes, and the links between their Redises.
type places struct {
	names []string
	redis []*redistest.Server
	nodes [][]*cnode
	links map[string]*faultproxy.Proxy // "ab" from a to b
}

func startPlaces(t *testing.T) *places {
	p := &places{names: []string{"a", "b", "c"}, links: make(map[string]*faultproxy.Proxy)}
	for range p.names {
		p.redis = append(p.redis, redistest.Start(t))
	}
	for i, here := range p.names {
		p.nodes = append(p.nodes, nil)
		for j, there := range p.names {
			if i != j {
				p.links[here+there] = faultproxy.Start(t, p.redis[j].Addr)
			}
		}
		for k := range 2 {
			n := newNode(p.redis[i], fmt.Sprint(here, k))
			others := map[string]redis.UniversalClient{}
			for _, there := range p.names {
				if there != here {
					through := *p.redis[i]
					through.Addr = p.links[here+there].Addr
					others[there] = through.Client()
				}
			}
			n.rep.Relay(ratesync.Regions{Here: here, Others: others, Interval: time.Second})
			n.rep.Start()
			t.Cleanup(n.rep.Close)
			p.nodes[i] = append(p.nodes[i], n)
		}
	}
	redistest.Eventually(t, "all nodes are there and know of the other regions", func() bool {
		return !slices.ContainsFunc(slices.Concat(p.nodes...), func(n *cnode) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.rep.Nodes() != 2 || len(n.regions) != 2
		})
	})
	return p
}

// set sets a fault of the links between two regions.
func (p *places) set(a, b string, fault faultproxy.Fault) {
	p.links[a+b].Set(fault)
	p.links[b+a].Set(fault)
}

func (p *places) heal(a, b string) {
	p.set(a, b, faultproxy.Reset)
	p.set(a, b, faultproxy.None)
}

// change asks a node for a share of a zone, and holds the answer to what it should say. Where
// regions can't be told it is given when it has waited long enough, and with a machine that stalls
// others may not have been told by then: it asks again.
func (p *places) change(t *testing.T, n *cnode, zone string, s float64, untold ...string) {
	t.Helper()
	ch := Change{Target: Target{Zone: zone}, Body: share(s), For: time.Hour, Who: "test"}
	if s < 0 {
		ch.Body = Body{}
	}
	n.waitFor = redistest.Patience
	if len(untold) > 0 {
		n.waitFor = 2 * time.Second
	}
	redistest.Eventually(t, fmt.Sprintf("both nodes have applied a change, and all regions were told but %v", untold), func() bool {
		o, err := n.Change(context.Background(), ch)
		told := func(region string) bool { return !slices.Contains(o.Untold, region) }
		if err != nil || o.Nodes != 2 || o.Regions != 2 || o.Told+len(o.Untold) != 2 || slices.ContainsFunc(untold, told) {
			t.Fatalf("Change = %+v, %v, want 2 nodes, 2 regions, and untold %v", o, err, untold)
		}
		return o.Applied == 2 && slices.Equal(o.Untold, untold)
	})
}

// await waits until all nodes of some regions see a share of a zone, -1 for none.
func (p *places) await(t *testing.T, zone string, s float64, regions ...int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("the nodes of regions %v see %v for %s", regions, s, zone), func() bool {
		for _, i := range regions {
			for _, n := range p.nodes[i] {
				if !n.sees(zone, s) {
					return false
				}
			}
		}
		return true
	})
}

// What an operator says in one region holds in all, and the answer says how many have been told. An
// entry that comes by a third region is taken though it is older than what is there.
func TestRegionsShareTheControlRecord(t *testing.T) {
	t.Parallel()
	p := startPlaces(t)
	for i, here := range p.nodes {
		for k, n := range here { // one of them is the relay
			p.change(t, n, "z", float64(10*i+k)/100)
			p.await(t, "z", float64(10*i+k)/100, 0, 1, 2)
		}
	}
	p.change(t, p.nodes[1][0], "z", -1)
	p.await(t, "z", -1, 0, 1, 2)

	p.set("a", "b", faultproxy.Blackhole)
	p.set("a", "c", faultproxy.Blackhole)
	p.change(t, p.nodes[0][0], "old", .5, "b", "c")
	p.change(t, p.nodes[1][0], "new", .6, "a")
	p.await(t, "new", .6, 1, 2)
	p.heal("a", "c")
	p.await(t, "old", .5, 0, 1, 2)
	p.await(t, "new", .6, 0, 1, 2)
	p.redis[1].Do("FLUSHALL")
	p.heal("a", "b")
	p.change(t, p.nodes[0][1], "after", .7)
	p.await(t, "after", .7, 0, 1, 2)
	p.await(t, "old", .5, 0, 1, 2)
}

// What is read of the record of another region counts as read when the Redis here has it.
func TestWhatWasNotWrittenIsNotRead(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	n := newNode(r, "a")
	n.Beat = func() {}
	other, now := n.OfRegion(), time.Unix(0, n.Now())
	e := Entry{ID: "enforcement:z", Stamp: now.UnixMicro(), Until: now.Add(time.Hour).UnixMilli(), Keep: now.Add(time.Hour).UnixMilli(), Length: 3_600_000, Body: `{"share":0}`}
	for range 3 {
		if other.Receive("7 5", []any{e.ID, "6 " + e.value()}); other.Version() != "7 5" || other.Revision() != 0 {
			t.Fatalf("version %q, up to %d, before it was written here", other.Version(), other.Revision())
		}
	}
	n.rep.Start()
	t.Cleanup(n.rep.Close)
	redistest.Eventually(t, "it is written", func() bool {
		other.Receive("7 5", nil)
		return other.Revision() == 7
	})
	if at := r.Client().HGet(t.Context(), n.Keys.Control(), e.ID).Val(); !strings.HasSuffix(at, " "+e.value()) {
		t.Errorf("the record has %q, want %q", at, e.value())
	}
}
