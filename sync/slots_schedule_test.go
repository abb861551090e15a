package ratesync

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const slotLimit = 4

// slotNode is a node with one table.
type slotNode struct {
	wire  *slotWire
	table *gauge.Table
	src   *SlotSource
	rep   *Replicator
	sync  *Slots
	rate  time.Duration

	mu    sync.Mutex
	slots map[string][]gauge.Slot
}

func newSlotNode(st *slotStore, seed uint64, rate time.Duration, decides bool) *slotNode {
	n := &slotNode{
		wire: &slotWire{store: st, random: rand.New(rand.NewPCG(seed, 3))}, table: gauge.New(100), rate: rate, slots: map[string][]gauge.Slot{},
	}
	n.rep = NewReplicator(n.wire, "test", 200*time.Millisecond, wallClock, zap.NewNop())
	n.sync = NewSlots(n.rep, 100*time.Millisecond)
	n.src = NewSlotSource(n.table, "z")
	n.table.Configure(gauge.Config{Shared: true, Early: !decides, Strict: decides, Nodes: n.src.Nodes, Waker: n.src.Waker}, 100)
	n.sync.Attach(n.src, rate)
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
		n.wire.set(func() { n.wire.ended = true })
	}
	n.src.Detach()
	n.rep.Close()
}

// slotHash is the name of a key in the store.
func slotHash(key string) string {
	return NewKeyspace("test").Zone("z", "concurrent").Of(keys.IDOf([]byte(key)))
}

// A slotSchedule is some nodes and a store, and what happens to them.
type slotSchedule struct {
	t      *testing.T
	random *rand.Rand
	store  *slotStore
	nodes  []*slotNode
	keys   []string
	rate   time.Duration
	seed   uint64
	born   uint64
}

func newSlotSchedule(t *testing.T, seed uint64) *slotSchedule {
	random := rand.New(rand.NewPCG(seed, 7))
	rates := []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}
	s := &slotSchedule{t: t, random: random, store: newSlotStore(t), rate: rates[random.IntN(len(rates))], seed: seed, keys: []string{"a", "b"}}
	for range 2 + random.IntN(2) {
		s.join(false)
	}
	return s
}

func (s *slotSchedule) join(decides bool) {
	s.born++
	s.nodes = append(s.nodes, newSlotNode(s.store, s.seed<<8+s.born, s.rate, decides))
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
		n.wire.set(func() {
			n.wire.lost, n.wire.mute, n.wire.late, n.wire.twice = s.random.Float64(), s.random.Float64(), s.random.Float64(), s.random.Float64()
		})
	case what < 90:
		n.wire.set(func() { n.wire.lost, n.wire.mute, n.wire.late, n.wire.twice, n.wire.cut = 0, 0, 0, 0, false })
	case what < 92:
		n.wire.set(func() { n.wire.cut = true })
	case what < 94:
		s.store.Do("FLUSHALL")
	case what < 96:
		s.store.step(time.Duration(s.random.Int64N(int64(4*time.Hour))) - 2*time.Hour)
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
		n.wire.set(func() { n.wire.lost, n.wire.mute, n.wire.late, n.wire.twice, n.wire.cut = 0, 0, 0, 0, false })
	}
	// A late message may take 5 s.
	time.Sleep(gauge.Lease + 5*time.Second + time.Second + min(s.rate, gauge.Refresh))
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
	later := s.store.gaugesAt(slotHash(key), s.store.time().Add(time.Duration(s.store.back.Load())))
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
	s.store.step(time.Duration(s.store.back.Load()))
	time.Sleep(gauge.Lease + slotsTTL)
	for _, n := range s.nodes {
		if n.table.Sweep(wallClock()); n.table.Totals(wallClock()) != (gauge.Totals{}) {
			s.t.Errorf("a node still has %+v", n.table.Totals(wallClock()))
		}
	}
	before, _ := s.store.count()
	beats := 0
	for range s.nodes {
		beats += 61
	}
	time.Sleep(time.Minute)
	after, hashes := s.store.count()
	if nodes := 2; hashes > nodes || after-before > beats { // their leases, and how many there are
		s.t.Errorf("the store still has %d hashes, and idle keys cost %d calls a minute", hashes, after-before)
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
			st := newSlotStore(t)
			var nodes []*slotNode
			for i := range uint64(3) {
				nodes = append(nodes, newSlotNode(st, seed<<8+i, time.Second, true))
			}
			var inUse, most, granted atomic.Int64
			var wg sync.WaitGroup
			for i, n := range nodes {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				n.wire.set(func() {
					n.wire.lost, n.wire.mute, n.wire.late, n.wire.twice = .2*random.Float64(), .2*random.Float64(), .1*random.Float64(), .2
				})
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
				n.wire.set(func() { n.wire.lost, n.wire.mute, n.wire.late, n.wire.twice = 0, 0, 0, 0 })
			}
			time.Sleep(gauge.Lease + 7*time.Second)
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
