package ratesync

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// twoStores are the script and the simulator's store, and what random nodes say to both.
type twoStores struct {
	t       *testing.T
	random  *rand.Rand
	client  redis.UniversalClient
	flush   func() // of the script's store
	model   *sim.Store
	p       algorithms.Params
	nodes   []*TableSyncer
	late    []oneCall
	updates map[string]cell.State // the last, by node and key
	calls   int
}

// oneCall is a call of the script, which may arrive more than once.
type oneCall struct {
	by      *TableSyncer
	seq     int64
	updates []table.Update
}

func newTwoStores(t *testing.T, seed uint64, client redis.UniversalClient, flush func(), p algorithms.Params) *twoStores {
	s := &twoStores{t: t, random: rand.New(rand.NewPCG(seed, 11)), client: client, flush: flush, model: sim.NewStore(), p: p, updates: make(map[string]cell.State)}
	for range 3 {
		s.nodes = append(s.nodes, NewTableSyncer(nil, SpecOf("z", p)))
	}
	return s
}

// step is one thing that happens: a message, one that comes late or once more, or a store that
// forgets.
func (s *twoStores) step() {
	switch n := s.random.IntN(100); {
	case n < 70:
		c := s.message()
		if s.random.IntN(4) == 0 {
			s.late = append(s.late, c)
			return // it comes later, or never
		}
		s.arrive(c)
		if s.random.IntN(4) == 0 {
			s.late = append(s.late, c)
		}
	case n < 98 && len(s.late) > 0:
		i := s.random.IntN(len(s.late))
		s.arrive(s.late[i])
		if s.random.IntN(2) == 0 {
			s.late = slices.Delete(s.late, i, i+1)
		}
	case n >= 98:
		s.flush()
		s.model = sim.NewStore()
	}
}

// message is what a node says of some keys.
func (s *twoStores) message() oneCall {
	c := oneCall{by: s.nodes[s.random.IntN(len(s.nodes))]}
	c.seq = NextSeq(c.by)
	for _, key := range s.random.Perm(4)[:1+s.random.IntN(3)] {
		raw := []byte(fmt.Sprint("key", key))
		name := c.by.Node() + string(raw)
		m := table.Update{Key: keys.KeyOf(raw), ID: keys.IDOf(raw), Size: 100, Rate: 1 + s.random.Int64N(5), Decided: s.random.IntN(2) == 0}
		if m.State = s.updates[name]; s.p.Kind.Traits().Draining {
			s.spend(&m.State)
		} else {
			s.count(&m.State)
		}
		m.State.Seq = c.seq
		s.updates[name] = m.State
		c.updates = append(c.updates, m)
	}
	return c
}

// count has a node spend some in an epoch, or refund it.
func (s *twoStores) count(state *cell.State) {
	epoch := wallClock() / int64(s.p.Epoch())
	was := *state
	state.Epoch, state.Totals = epoch, nil
	for age := range int64(s.p.Compile().History + 1) {
		state.Totals = append(state.Totals, was.At(epoch-age))
	}
	state.Totals[0] = max(0, state.Totals[0]+s.random.Int64N(12)-2)
	state.Reserved = s.random.Int64N(state.Totals[0] + 1)
}

// spend has a node spend some of a bucket, or refund it.
func (s *twoStores) spend(state *cell.State) {
	more := s.random.Int64N(12) - 2
	if state.Incarnation == 0 || s.random.IntN(10) == 0 {
		*state = cell.State{Incarnation: state.Incarnation + 1}
	}
	state.Total = max(0, state.Total+more)
	state.Unacked, state.UnackedFor, state.AnsweredSeq = max(0, more), s.random.Int64N(2_000_000), 1<<52
	state.Whole, state.Rest = state.Unacked+s.random.Int64N(40), s.random.Int64N(s.p.Window.Microseconds())
}

// arrive makes a call at both stores and compares what they say.
func (s *twoStores) arrive(c oneCall) {
	s.t.Helper()
	s.calls++
	call := NewPushCall(c.seq)
	defer call.Free()
	for i := range c.updates {
		call.Push(c.by, NewKeyspace("test").Cells(c.by.spec), &c.updates[i], false)
	}
	if err := call.Send(context.Background(), s.client); err != nil {
		s.t.Fatalf("call %d: %v", s.calls, err)
	}
	want := s.model.Apply(wallClock(), c.by.Node(), s.p, c.updates)
	for i, got := range call.Answer.Cells {
		if !s.isAlike(&got, &want[i]) {
			s.t.Fatalf("call %d of node %s, number %d, message %d: the script says\n%+v, the simulator's store\n%+v", s.calls, c.by.Node(), c.seq, i, got, want[i])
		}
	}
}

// isAlike reports whether two answers say the same of what counts.
func (s *twoStores) isAlike(a, b *cell.Reply) bool {
	if s.p.Kind.Traits().Draining {
		level := func(h *cell.Reply) float64 {
			return float64(h.Sum.Whole) + float64(h.Sum.Rest)/float64(s.p.Window.Microseconds())
		}
		return a.Previous.Total == b.Previous.Total && a.Sum.Total == b.Sum.Total && a.Sum.Rate == b.Sum.Rate && math.Abs(level(a)-level(b)) < .001
	}
	epoch := wallClock() / int64(s.p.Epoch())
	for age := range int64(s.p.Compile().History + 1) {
		if a.Sum.In(epoch-age) != b.Sum.In(epoch-age) || a.Previous.At(epoch-age) != b.Previous.At(epoch-age) {
			return false
		}
	}
	return true
}

// The store of the simulator answers as the script does, whatever comes late, twice or never, and
// whenever it forgets.
//
// bubble: it runs the stores in one.
func TestTheSimulatorsStoreIsTheScript(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]algorithms.Params{
		"fixed window":   {Kind: algorithms.FixedWindow, Limit: 100},
		"sliding window": {Kind: algorithms.SlidingWindow, Limit: 100},
		"sub-windows":    {Kind: algorithms.SlidingWindow, Limit: 100, SubWindows: 4},
		"log":            {Kind: algorithms.SlidingLog, Limit: 100},
		"bucket":         {Kind: algorithms.TokenBucket, Limit: 100},
	} {
		t.Run(name, func(t *testing.T) {
			p.Window = 10 * time.Second
			for seed := range redistest.Seeds(20, 200) {
				synctest.Test(t, func(t *testing.T) {
					w := newWire(t)
					w.net.slow(1) // it takes no time
					s := newTwoStores(t, seed, w, func() { w.store.forget(0, true) }, p)
					for range 150 {
						s.step()
						if s.random.IntN(10) == 0 {
							time.Sleep(time.Duration(s.random.IntN(30_000)) * time.Millisecond)
						} else {
							time.Sleep(time.Duration(s.random.IntN(50)) * time.Millisecond)
						}
					}
				})
			}
		})
	}
}

// The same for windows in a real Redis, whose time is the wall clock's.
func TestTheSimulatorsStoreIsRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 100, Window: 1000 * time.Hour}
	s := newTwoStores(t, 1, r.Client(), func() { r.Do("FLUSHALL") }, p)
	for range 500 {
		s.step()
	}
}
