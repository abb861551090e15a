package ratesync

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const slotLimit = 4

// slotNode is a node with one table.
type slotNode struct {
	wire  *wire
	table *gauge.Table
	src   *SlotSyncer
	rep   *Replicator
	sync  *Slots

	mu    sync.Mutex
	slots map[string][]gauge.Slot
}

// newSlotNode is one that Redis has so long for to answer.
func newSlotNode(client redis.UniversalClient, timeout, rate time.Duration, decides bool) *slotNode {
	n := &slotNode{table: gauge.New(1_000_000), slots: map[string][]gauge.Slot{}}
	n.rep = NewReplicator(client, "test", 2*timeout, wallClock, zap.NewNop())
	n.sync = NewSlots(n.rep, timeout)
	n.src = NewSlotSyncer(n.table, "z")
	n.table.Configure(gauge.Config{Shared: true, Early: !decides, Strict: decides, Nodes: n.src.Nodes, Waker: n.src.Waker}, 1_000_000)
	n.sync.Attach(n.src, rate)
	return n
}

// slotNodeOf is one that has a network of its own to a store.
func slotNodeOf(st *luaStore, seed uint64, rate time.Duration, decides bool) *slotNode {
	w := &wire{net: &network{random: rand.New(rand.NewPCG(seed, 3)), way: 10 * time.Millisecond}, store: st}
	n := newSlotNode(w, 100*time.Millisecond, rate, decides)
	n.wire = w
	return n
}

func askOf(key string) *gauge.Ask {
	return &gauge.Ask{Key: keys.KeyOf([]byte(key)), Raw: []byte(key), Now: wallClock(), Limit: slotLimit, Alone: slotLimit}
}

func (n *slotNode) take(key string) gauge.State {
	slot, s := n.table.Take(askOf(key))
	n.keep(key, slot, s)
	return s
}

func (n *slotNode) keep(key string, slot gauge.Slot, s gauge.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.Allowed {
		n.slots[key] = append(n.slots[key], slot)
	}
}

func (n *slotNode) has(key string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.slots[key])
}

func (n *slotNode) free(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if all := n.slots[key]; len(all) > 0 {
		all[0].Free()
		n.slots[key] = all[1:]
	}
}

// end ends a node, in order or at once.
func (n *slotNode) end(kill bool) {
	if kill {
		n.wire.cut()
	}
	n.src.Detach()
	n.rep.Close()
}

// slotHash is the name of a key in the store.
func slotHash(key string) string {
	return NewKeyspace("test").Zone("z", "concurrent").Of(keys.IDOf([]byte(key)))
}

// gauges are the gauges above 0 of a key that still count, by node.
func (s *luaStore) gauges(key string) map[string]int64 { return s.gaugesAt(key, s.time()) }

// gaugesAt are those that count at an instant, as far as nothing is written until then.
func (s *luaStore) gaugesAt(key string, at time.Time) map[string]int64 {
	all := map[string]int64{}
	s.Do("EXISTS", key) // what has expired goes
	for node, value := range s.Hash(key) {
		parts := strings.Fields(value)
		if gauge := first(parts[1]); gauge > 0 && first(parts[2]) > at.UnixMilli() {
			all[node] = gauge
		}
	}
	return all
}

// A slotSchedule is some nodes and a store, and what happens to them.
type slotSchedule struct {
	t      *testing.T
	random *rand.Rand
	store  *luaStore
	nodes  []*slotNode
	keys   []string
	rate   time.Duration
	seed   uint64
	born   uint64
	back   time.Duration // by how much the store's clock was set back, in all
}

func newSlotSchedule(t *testing.T, seed uint64) *slotSchedule {
	random := rand.New(rand.NewPCG(seed, 7))
	rates := []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}
	s := &slotSchedule{t: t, random: random, store: newLuaStore(t), rate: rates[random.IntN(len(rates))], seed: seed, keys: []string{"a", "b"}}
	for range 2 + random.IntN(2) {
		s.join(false)
	}
	return s
}

func (s *slotSchedule) join(decides bool) {
	s.born++
	s.nodes = append(s.nodes, slotNodeOf(s.store, s.seed<<8+s.born, s.rate, decides))
}

// step is one thing that happens, and some time.
//
// bubble: of the schedule.
func (s *slotSchedule) step() {
	i := s.random.IntN(len(s.nodes))
	n, key := s.nodes[i], s.keys[s.random.IntN(len(s.keys))]
	switch what := s.random.IntN(100); {
	case what < 50:
		n.take(key)
	case what < 80:
		n.free(key)
	case what < 86:
		n.wire.net.worsen()
	case what < 90:
		n.wire.net.heal()
	case what < 92:
		n.wire.net.become(&n.wire.net.lost, 1)
	case what < 94:
		s.store.Do("FLUSHALL")
	case what < 96:
		by := time.Duration(s.random.Int64N(int64(4*time.Hour))) - 2*time.Hour
		s.store.step(by)
		s.back += max(0, -by)
	case what < 98:
		n.end(s.random.IntN(2) == 0)
		s.nodes = append(s.nodes[:i], s.nodes[i+1:]...)
		s.join(false)
	default:
		n.table.Sweep(wallClock())
	}
	for _, n := range s.nodes {
		for _, key := range s.keys {
			if n.has(key) > slotLimit {
				s.t.Errorf("a node has %d slots of %d", n.has(key), slotLimit)
			}
		}
	}
	time.Sleep(time.Duration(s.random.Int64N(int64(2 * s.rate))))
}

// heal makes all ways good, and waits until what a node has said no longer counts, and one sync
// more. Then everybody is asked once.
//
// bubble: of the schedule.
func (s *slotSchedule) heal() {
	for _, n := range s.nodes {
		n.wire.net.heal()
	}
	// A late message may take 8 s.
	time.Sleep(gauge.Lease + 8*time.Second + time.Second + min(s.rate, gauge.Refresh))
}

// agree checks that everybody knows what is in use, to the slot.
func (s *slotSchedule) agree() {
	s.t.Helper()
	for _, key := range s.keys {
		stored, want := s.store.gauges(slotHash(key)), map[string]int64{}
		for _, n := range s.nodes {
			if has := n.has(key); has > 0 {
				want[n.src.Node()] = int64(has)
			}
		}
		if len(want) == 0 {
			s.dropEnded(key, stored)
		}
		if fmt.Sprint(stored) != fmt.Sprint(want) {
			s.t.Errorf("%s: the store has %v, want %v", key, stored, want)
		}
		for _, n := range s.nodes {
			others := int64(0)
			for node, gauge := range want {
				if node != n.src.Node() {
					others += gauge
				}
			}
			n.table.Each(wallClock(), func(g gauge.Gauge) {
				if g.ID == keys.IDOf([]byte(key)) && g.Own > 0 && (g.Own != want[n.src.Node()] || g.Others != others) {
					s.t.Errorf("%s: a node has %d and knows of %d, want %d and %d", key, g.Own, g.Others, want[n.src.Node()], others)
				}
			})
		}
	}
}

// dropEnded drops the gauges of nodes that have ended, of a key that nobody has slots of: a hash
// that nobody writes to any more lives longer by what the clock was set back since.
func (s *slotSchedule) dropEnded(key string, stored map[string]int64) {
	later := s.store.gaugesAt(slotHash(key), s.store.time().Add(s.back))
	for node := range stored {
		lives := slices.ContainsFunc(s.nodes, func(n *slotNode) bool { return n.src.Node() == node })
		if _, stays := later[node]; !lives && !stays {
			delete(stored, node)
		}
	}
}

// empty frees all, and checks that nothing is left.
func (s *slotSchedule) empty() {
	for _, n := range s.nodes {
		for _, key := range s.keys {
			for n.has(key) > 0 {
				n.free(key)
			}
		}
	}
	// A hash that nobody writes to any more lives longer by what the clock was set back since.
	s.store.step(s.back)
	time.Sleep(gauge.Lease + slotsTTL)
	for _, n := range s.nodes {
		if n.table.Sweep(wallClock()); n.table.Totals(wallClock()) != (gauge.Totals{}) {
			s.t.Errorf("a node still has %+v", n.table.Totals(wallClock()))
		}
	}
	before := s.store.Asked()["TIME"] // once in each script
	time.Sleep(time.Minute)
	s.store.Do("EXISTS", "") // what has expired goes
	calls, hashes := s.store.Asked()["TIME"]-before, len(s.store.Hashes())
	if hashes > 2 || calls > 61*len(s.nodes) { // the nodes' leases, and how many there are
		s.t.Errorf("the store still has %d hashes, and idle keys cost %d calls a minute", hashes, calls)
	}
}

func (s *slotSchedule) close() {
	for _, n := range s.nodes {
		n.end(false)
	}
}

// Whatever happens to messages, replies, nodes, the store and its clock: a node never gives out
// more than the limit, and once all is well again, the store and each node know what is in use, to
// the slot, and nothing of dead ones. When all is free nothing is left, and costs nothing.
func TestEverySlotSchedule(t *testing.T) {
	for seed := range redistest.Seeds(4, 500) {
		inBubble(t, seed, func(t *testing.T) {
			s := newSlotSchedule(t, seed)
			for range 100 {
				s.step()
			}
			s.heal()
			s.agree()
			s.empty()
			s.close()
		})
	}
}

// Where Redis decides, all nodes together never give out more than the limit, also when replies are
// lost, late or come twice; and when all is free again, as many can be had as before.
func TestEveryStrictSlotSchedule(t *testing.T) {
	for seed := range redistest.Seeds(4, 500) {
		inBubble(t, seed, func(t *testing.T) {
			st := newLuaStore(t)
			var nodes []*slotNode
			for i := range uint64(3) {
				nodes = append(nodes, slotNodeOf(st, seed<<8+i, time.Second, true))
			}
			var inUse, most, granted atomic.Int64
			var wg sync.WaitGroup
			for i, n := range nodes {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				net := n.wire.net
				net.become(&net.lost, .2*random.Float64())
				net.become(&net.unanswered, .2*random.Float64())
				net.become(&net.late, .1*random.Float64())
				net.become(&net.two, .2)
				for range 4 { // requests at once
					random := rand.New(rand.NewPCG(seed, random.Uint64()))
					wg.Go(func() {
						for range 120 {
							slot, s, err := n.sync.Take(t.Context(), n.src, askOf("k"))
							if err == nil && s.Allowed {
								most.Store(max(most.Load(), inUse.Add(1)))
								granted.Add(1)
								time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
								inUse.Add(-1)
								slot.Free()
							}
							time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
						}
					})
				}
			}
			wg.Wait()
			if most.Load() > slotLimit || granted.Load() < 50 {
				t.Errorf("%d at once, of %d granted; want at most %d, and 50 granted", most.Load(), granted.Load(), slotLimit)
			}
			for _, n := range nodes {
				n.wire.net.heal()
			}
			time.Sleep(gauge.Lease + 10*time.Second)
			var slots []gauge.Slot
			for i := range 2 * slotLimit {
				slot, s, err := nodes[i%3].sync.Take(t.Context(), nodes[i%3].src, askOf("k"))
				if err != nil || s.Allowed != (i < slotLimit) {
					t.Errorf("request %d: %+v, %v", i, s, err)
				}
				slots = append(slots, slot)
			}
			for i, slot := range slots {
				if slot.Free(); i < len(nodes) {
					nodes[i].end(false)
				}
			}
		})
	}
}
