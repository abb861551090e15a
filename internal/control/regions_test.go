package control

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"

	"go.uber.org/zap"
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
			client := p.redis[i].Client()
			n := &cnode{rep: ratesync.NewReplicator(client, "test", time.Second, clock.Now, zap.NewNop())}
			n.Control = New(Options{
				Client: client, Keys: ratesync.NewKeyspace("test"), Store: "test", Timeout: time.Second, Now: clock.Now,
				Beat: n.rep.Beat, Name: fmt.Sprint("v1 ", here, k), Logger: zap.NewNop(),
			})
			n.rep.Carry(n.Control)
			others := map[string]redis.UniversalClient{}
			for _, there := range p.names {
				if there != here {
					through := *p.redis[i]
					through.Addr = p.links[here+there].Addr
					others[there] = through.Client()
				}
			}
			n.rep.Relay(ratesync.Regions{Here: here, Others: others, Rate: time.Second})
			n.rep.Start()
			t.Cleanup(n.rep.Close)
			p.nodes[i] = append(p.nodes[i], n)
		}
	}
	redistest.Eventually(t, "all nodes are there", func() bool {
		return !slices.ContainsFunc(p.nodes, func(here []*cnode) bool { return here[0].rep.Nodes() != 2 || here[1].rep.Nodes() != 2 })
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

// change asks a node for a share of a zone, and holds the answer to what it should say.
func (p *places) change(t *testing.T, n *cnode, zone string, s float64, untold ...string) {
	t.Helper()
	ch := Change{Target: Target{Zone: zone}, Body: share(s), For: time.Hour, Who: "test"}
	if s < 0 {
		ch.Body = Body{}
	}
	o, err := n.Change(context.Background(), ch)
	if err != nil || o.Nodes != 2 || o.Applied != 2 || o.Regions != 2 || o.Told != 2-len(untold) || !slices.Equal(o.Untold, untold) {
		t.Errorf("Change = %+v, %v, want 2 of 2 nodes, and untold %v", o, err, untold)
	}
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
