package runs

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

const (
	namespace = "run"
	zone      = "zone"
	timeout   = 200 * time.Millisecond // of a call
)

// A node is one with a zone, whose limit, bans and slots are shared as in the product.
type node struct {
	name   string
	wire   *wire
	redis  *limits.Redis
	params algorithms.Params

	table *table.Table[algorithms.WindowState]
	sync  *ratesync.TableSyncer
	bans  *ban.Register

	gauges     *gauge.Table
	gaugesSync *ratesync.SlotSyncer
	slots      map[string][]gauge.Slot
	reserved   map[string][]table.Reserved
}

// startNode has a node join.
func startNode(name string, s *store, z settings) *node {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: z.limit, Window: z.window, Reserves: z.reserves}
	n := &node{
		name: name, wire: connect(s), params: p, table: table.New[algorithms.WindowState](p.Kind, 100),
		bans: new(ban.Register), gauges: gauge.New(100),
		slots: map[string][]gauge.Slot{}, reserved: map[string][]table.Reserved{},
	}
	n.redis = limits.BorrowRedis(n.wire.client, limits.RedisOptions{
		Namespace: namespace, Timeout: timeout, StrictTimeout: timeout, Logger: zap.NewNop(),
	})
	n.sync = ratesync.NewTableSyncer(n.table, ratesync.SpecOf(zone, p))
	n.gaugesSync = ratesync.NewSlotSyncer(n.gauges, zone)
	n.bans.Configure(100, 0)
	n.redis.Replicator.StartAndWait(time.Second)
	n.redis.Control.Follow(zone, n.table)
	n.redis.Control.Follow(zone, n.bans)
	n.redis.ShareBans(n.bans, n.sync, zone, z.rate == 0)
	rate := cmp.Or(z.rate, time.Second) // where Redis decides, of what it has not heard
	n.table.Configure(table.SyncConfig{Params: p, Interval: rate, StoreDecides: z.rate == 0, Waker: n.sync.Waker}, 100)
	n.redis.Replicator.Attach(n.sync, rate)
	n.wire.set(func() { n.wire.runs = true })
	if z.rate == 0 {
		return n
	}
	n.gauges.Configure(gauge.Config{Shared: true, Nodes: n.gaugesSync.Nodes, Waker: n.gaugesSync.Waker}, 100)
	n.redis.Slots.Attach(n.gaugesSync, z.rate)
	return n
}

// end ends a node in order, as far as it is not cut off.
func (n *node) end() {
	n.gaugesSync.Detach()
	n.sync.Detach()
	n.redis.Close()
	_ = n.wire.client.Close()
}

// take asks for n units at once.
func (n *node) take(key string, units int64, want algorithms.Want) table.Taken {
	return n.table.Take(n.params.Compile(), keys.KeyOf([]byte(key)), []byte(key), clock.Now(), units, want)
}

// reserve takes units one by one, each of which a response settles.
func (n *node) reserve(key string, units int) (allowed bool) {
	for range units {
		t := n.take(key, 1, table.Reserve|algorithms.WantReset)
		if !t.Allowed {
			return false
		}
		n.reserved[key] = append(n.reserved[key], n.table.ReservationOf(n.params.Compile(), keys.KeyOf([]byte(key)), t))
	}
	return true
}

// settle has the oldest responses begin. They refund their units or not.
func (n *node) settle(key string, units int, refunds bool) {
	cost := int64(1)
	if refunds {
		cost = 0
	}
	for range units {
		n.table.Settle(keys.KeyOf([]byte(key)), n.reserved[key][0], clock.Now(), cost)
		n.reserved[key] = n.reserved[key][1:]
	}
}

// counts are the units of a key in the current window: this node's, and what it knows of others.
func (n *node) counts(key string) (own, others int64) {
	n.table.With(keys.KeyOf([]byte(key)), func(s *algorithms.WindowState) {
		now := clock.Now() + int64(n.table.Offset())
		c, _ := algorithms.MachineOf[algorithms.WindowState](n.params.Kind).Ledger(s).At(now / int64(n.params.Window))
		own, others = c.Own, c.Remote
	})
	return own, others
}

// ask has Redis decide.
func (n *node) ask(key string) string {
	all, err := n.redis.Strict.Ask(context.Background(), zone, &strict.Request{
		Counters: []strict.Counter{{Table: n.table, Syncer: n.sync}}, Limits: []algorithms.Limit{n.params.Compile()},
		Key: keys.KeyOf([]byte(key)), Raw: []byte(key), N: 1,
	}, nil)
	switch {
	case err != nil:
		return "no answer"
	case all[0].Allowed:
		return fmt.Sprintf("admitted, %d left", all[0].Remaining)
	}
	return "denied"
}

func (n *node) reset(key string) error {
	id := keys.IDOf([]byte(key))
	_, _, err := n.redis.Control.Reset(context.Background(), control.Change{
		Target: control.Target{Zone: zone, Key: &id}, For: time.Hour, Who: "an operator",
	})
	return err
}

// takeSlot takes a slot of a key, of so many.
func (n *node) takeSlot(key string, of int64) bool {
	slot, s := n.gauges.Take(&gauge.Ask{Key: keys.KeyOf([]byte(key)), Raw: []byte(key), Now: clock.Now(), Limit: of, Alone: of})
	if s.Allowed {
		n.slots[key] = append(n.slots[key], slot)
	}
	return s.Allowed
}

func (n *node) freeSlot(key string) {
	n.slots[key][0].Free()
	n.slots[key] = n.slots[key][1:]
}
