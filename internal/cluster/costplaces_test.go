//go:build chaos && unix

package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// In a Redis Cluster keys of all shards settle exactly, though their slots move meanwhile.
func TestSettlementsInARedisCluster(t *testing.T) {
	t.Parallel()
	r := redistest.StartCluster(t, 3)
	p := startPayers(t, 2, "redis "+r.URL+"\nstrict_timeout 20s")
	var keys []string
	var ends []func()
	for i := range 6 {
		keys = append(keys, fmt.Sprint("key", i))
		for node := range p.Nodes {
			ends = append(ends, p.hold(node, keys[i]))
		}
	}
	p.settles(0, keys[0], 4*paid, 2*paid)
	var slots []int
	for _, s := range r.Nodes {
		for _, key := range s.Do("KEYS", "*:fixed_window-strict:*").([]any) {
			if slot := r.Slot(key.(string)); !slices.Contains(slots, slot) {
				slots = append(slots, slot)
			}
		}
	}
	if len(slots) != len(keys) {
		t.Fatalf("%d keys are in %d slots", len(keys), len(slots))
	}
	for i, slot := range slots {
		from := r.Owner(slot)
		r.Move(slot, from, (from+1+i%2)%len(r.Nodes), func() {
			ends[2*i]()
			ends[2*i+1]()
		})
	}
	p.open.Wait()
	for _, key := range keys {
		for node := range p.Nodes {
			p.settles(node, key, 2*(less+more), less+more)
		}
	}
}

// A node that persists its counts ends and is started again: what was settled stays so, and what
// was reserved stays spent. Of what it has settled while Redis was away it keeps what it counts
// alone: `persist` is about no other zones, and they neither count anything twice for it.
func TestSettlementsOverRestartsWithPersist(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.Start(t, redistest.Start(t).Addr)
	p := startPayers(t, 1, "redis redis://"+proxy.Addr+"?timeout=20s\nstrict_timeout 2s\npersist")
	p.hold(0, "settled")()
	p.settles(0, "settled", less+more, less+more)
	p.hold(0, "cut")
	again := func() {
		t.Helper()
		if err := p.Nodes[0].Stop(); err != nil {
			t.Fatal(err)
		}
		p.open.Wait()
		proxy.Set(faultproxy.None)
		restart(t, p.Nodes[0], p.site)
		p.knowsOfRedis(true)
	}
	again()
	p.settles(0, "settled", less+more, less+more)
	p.settles(0, "cut", 2*paid, 2*paid)
	p.synced()
	proxy.Set(faultproxy.Reset)
	p.knowsOfRedis(false)
	p.hold(0, "alone")()
	again()
	p.settles(0, "alone", 0, less+more)
	p.hold(0, "killed")
	p.settles(0, "killed", 2*paid, 2*paid)
	p.synced()
	p.Nodes[0].Kill()
	p.open.Wait()
	restart(t, p.Nodes[0], p.site)
	p.settles(0, "killed", 2*paid, 0)
	p.settles(0, "settled", less+more, less+more)
}

// synced waits until Redis has all that the first node has counted so far.
func (p *payers) synced() {
	p.t.Helper()
	for _, zone := range p.zones {
		z := status(p.t, p.Nodes[0], zone)
		if z.SyncRate != "200ms" {
			continue
		}
		eventually(p.t, "two more sync cycles of "+zone, func() error {
			if now := status(p.t, p.Nodes[0], zone); now.Sync == nil || now.Sync.Cycles < z.Sync.Cycles+2 {
				return fmt.Errorf("%+v", now.Sync)
			}
			return nil
		})
	}
}
