package table

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A fleet is nodes that share a bucket of one client.
type fleet struct {
	store *store
	limit algorithms.Limit
	key   []byte
	nodes []*talker[algorithms.BucketState]
}

func newFleet(p algorithms.Params, size int) *fleet {
	f := &fleet{store: newStore(), limit: p.Compile(), key: []byte("client")}
	for i := range size {
		n := &talker[algorithms.BucketState]{Table: of[algorithms.BucketState](p, 10), name: string(rune('a' + i))}
		n.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		n.SetMissedTwice(^uint64(0)) // it makes no estimate
		f.nodes = append(f.nodes, n)
	}
	return f
}

func (f *fleet) take(i int, now, n int64) Taken {
	return f.nodes[i].Take(f.limit, keys.KeyOf(f.key), f.key, now, n, allWaits)
}

// ask has a node say how its bucket stands, and hear of the others.
func (f *fleet) ask(i int, now int64) {
	f.take(i, now, 0)
	f.nodes[i].sync(f.store, now)
}

// level is what a node knows to be in the bucket.
func (f *fleet) level(i int, now int64) (level float64) {
	f.nodes[i].With(keys.KeyOf(f.key), func(s *algorithms.BucketState) {
		level, _ = f.nodes[i].machine.Level(s, f.limit, now)
	})
	return level
}

// drawBucket makes up a limit by a bucket. Its times are whole microseconds, as those of stores.
func drawBucket(t *rapid.T) algorithms.Params {
	kind := rapid.SampledFrom([]algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket}).Draw(t, "kind")
	size := rapid.SampledFrom([]int64{1, 2, 7, 40}).Draw(t, "size")
	return algorithms.Params{Kind: kind, Limit: rapid.Int64Range(1, 30).Draw(t, "limit"), Window: 30 * time.Second, Burst: size, Queue: size - 1}
}

// Nodes that sync before and after each request decide as one does alone, whoever gets them.
func TestNodesThatSyncAtOnceAreOneBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawBucket(t)
		f, alone := newFleet(p, 3), newFleet(p, 1)
		now := t0
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			now += int64(time.Microsecond) * rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 3e6), rapid.Int64Range(0, 4e7)).Draw(t, "pause")
			i, n := rapid.IntRange(0, 2).Draw(t, "node"), rapid.Int64Range(0, 4).Draw(t, "n")
			f.ask(i, now)
			got, want := f.take(i, now, n), alone.take(0, now, n)
			if got.Decision != want.Decision {
				t.Fatalf("node %d, %d units at %d: %+v, want what one decides alone, %+v", i, n, now, got.Decision, want.Decision)
			}
			if got.Allowed && rapid.IntRange(0, 4).Draw(t, "refunded") == 0 {
				f.nodes[i].Refund(f.limit, keys.KeyOf(f.key), got, n)
				alone.nodes[0].Refund(alone.limit, keys.KeyOf(f.key), want, n)
			}
			f.ask(i, now)
		}
	})
}

// A hitch is a message that is under way for long.
type hitch struct {
	node    int
	updates []Update
}

// A weather is what happens to the messages of a fleet whose bucket drains next to nothing.
type weather struct {
	*rapid.T
	*fleet
	now      int64
	spent    int64
	late     []hitch
	copied   *store // a replica that is behind
	lossless bool
	// known is what any node knew when the store lost something, and doubt what was on its way
	// then: others may have heard of it. What was refunded others may know as spent, so then
	// nothing is.
	known float64
	doubt int64
}

// step is a request, a refund, or a message that gets through, is late, comes twice, or is lost.
func (w *weather) step() {
	w.now += int64(time.Microsecond) * rapid.Int64Range(0, 2e6).Draw(w.T, "pause")
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(w.T, "node")
	n := w.nodes[i]
	switch rapid.IntRange(0, 11).Draw(w.T, "what") {
	case 0, 1, 2, 3:
		units := rapid.Int64Range(1, 5).Draw(w.T, "n")
		taken := w.take(i, w.now, units)
		if !taken.Allowed {
			return
		}
		if w.spent += units; w.lossless && rapid.IntRange(0, 3).Draw(w.T, "refunded") == 0 {
			if rapid.Bool().Draw(w.T, "said before") {
				n.sync(w.store, w.now)
			}
			n.Refund(w.limit, keys.KeyOf(w.key), taken, units)
			w.spent -= units
		}
	case 4, 5:
		w.ask(i, w.now)
	case 6: // the answer is lost
		n.MakeOutgoing()
		updates := n.takeOut(w.now, false)
		n.deliver(w.store, w.now, updates)
		n.Unanswered(updates)
	case 7: // it never arrives, or late
		n.MakeOutgoing()
		updates := n.takeOut(w.now, false)
		n.Unanswered(updates)
		w.late = append(w.late, hitch{i, updates})
	case 8:
		for _, late := range w.late {
			w.nodes[late.node].deliver(w.store, w.now, late.updates)
		}
		w.late = nil
	case 9: // requests come while it is under way
		n.MakeOutgoing()
		updates := n.takeOut(w.now, false)
		if w.take(i, w.now, 1).Allowed {
			w.spent++
		}
		heard := n.deliver(w.store, w.now, updates)
		n.deliver(w.store, w.now, updates) // twice
		n.mergeOne(w.now, updates, heard)
	case 10:
		w.copied = w.store.copied()
	case 11:
		w.lose(rapid.Bool().Draw(w.T, "all"))
	}
}

// lose is a FLUSHALL, or a failover to a replica that is behind.
func (w *weather) lose(all bool) {
	switch {
	case w.lossless:
		return
	case all:
		w.store, w.copied = newStore(), nil // of a replica as well
	case w.copied == nil:
		return
	default:
		w.store, w.copied = w.copied, nil
	}
	w.late = nil
	for i := range w.nodes {
		w.known = max(w.known, w.level(i, w.now))
		w.nodes[i].With(keys.KeyOf(w.key), func(s *algorithms.BucketState) {
			c := w.nodes[i].machine.Ledger(s).Cur
			w.doubt += c.Own - c.Acked
		})
	}
}

// Whatever becomes of messages, in the end each node and the store know exactly what was spent.
// After a loss of the store that is what any node had known at least, and no more than all, and
// what was on its way then once more.
func TestABucketIsExactWhateverBecomesOfMessages(t *testing.T) {
	for name, lossless := range map[string]bool{"the store loses nothing": true, "the store loses something": false} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Window: 8 * 24 * time.Hour, Burst: 1000}
				w := &weather{T: t, fleet: newFleet(p, 3), now: t0, lossless: lossless}
				for range rapid.IntRange(1, 50).Draw(t, "steps") {
					if w.step(); w.spent < 0 {
						t.Fatal("more is refunded than was spent")
					}
				}
				for round := range 4 {
					for i, n := range w.nodes {
						w.take(i, w.now, 0)
						if round == 0 && !lossless {
							n.Resend() // a heartbeat has told
						}
						n.sync(w.store, w.now)
					}
				}
				most := float64(w.spent+w.doubt) + .1
				for i := range w.nodes {
					got := w.level(i, w.now)
					if least := float64(w.spent) - .1; lossless && (got < least || got > most) {
						t.Fatalf("node %d: level %v, want %d", i, got, w.spent)
					}
					if got > most || got < min(w.known, float64(w.spent))-.1 {
						t.Fatalf("node %d: level %v, want %v at most, and the %v that were known when the store lost something", i, got, most, w.known)
					}
					if other := w.level(0, w.now); math.Abs(got-other) > .001 {
						t.Fatalf("node %d: level %v, that of another one is %v", i, got, other)
					}
				}
				if got := w.store.total(w.key); lossless && got != w.spent {
					t.Fatalf("the store has a total of %d, want %d", got, w.spent)
				}
			})
		})
	}
}

// A replica that is behind gets what it lacks of a bucket, and counts once what a node says to it
// before the node has found the loss. An answer that is lost meanwhile does not hide it.
func TestAFailoverCountsABucketOnce(t *testing.T) {
	for _, unsaid := range []int64{0, 3} {
		for _, answered := range []bool{true, false} {
			f := newFleet(algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Window: 8 * 24 * time.Hour, Burst: 1000}, 1)
			f.take(0, t0, 20)
			f.ask(0, t0)
			behind := f.store.copied()
			f.take(0, t0, 5)
			f.ask(0, t0)
			f.ask(0, t0)
			f.store = behind
			n := f.nodes[0]
			if f.take(0, t0, unsaid); !answered {
				n.MakeOutgoing()
				updates := n.takeOut(t0, false)
				n.deliver(f.store, t0, updates)
				n.Unanswered(updates)
			}
			n.Forgotten(t0, true) // as a heartbeat tells
			n.ResendRest()
			for range 3 {
				n.sync(f.store, t0)
			}
			if got, want := f.level(0, t0), float64(25+unsaid); got != want {
				t.Errorf("%d unsaid, answered %t: level %v, want %v", unsaid, answered, got, want)
			}
		}
	}
}

// After a silence in which its lease has ended, a node can't tell whether the store has forgotten.
// What others have refunded meanwhile stays refunded, and what is gone is said again.
func TestASilenceBringsNoRefundBack(t *testing.T) {
	for _, gone := range []bool{false, true} {
		f := newFleet(algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Window: 8 * 24 * time.Hour, Burst: 1000}, 2)
		f.take(0, t0, 5)
		f.ask(0, t0)
		taken := f.take(1, t0, 10)
		f.ask(1, t0)
		f.ask(0, t0)
		if got := f.level(0, t0); got != 15 {
			t.Fatalf("level %v, want 15", got)
		}
		f.nodes[1].Refund(f.limit, keys.KeyOf(f.key), taken, 10)
		f.ask(1, t0)
		want := 5.
		if gone {
			f.store, want = newStore(), 15 // the most that a node knows
		}
		f.nodes[0].Forgotten(t0, false)
		f.nodes[0].ResendRest()
		for range 3 {
			f.nodes[0].sync(f.store, t0)
		}
		if got := f.level(0, t0); got != want {
			t.Errorf("gone %t: level %v, want %v", gone, got, want)
		}
	}
}

// A step of the server's clock neither frees nor locks out the client of a bucket that nodes share:
// what was in it is in it, whether they notice before they sync or after it.
func TestAStepOfTheClockLeavesASharedBucket(t *testing.T) {
	const second = int64(time.Second)
	for run := range 8 {
		by, first := []time.Duration{time.Hour, -time.Hour, 3 * time.Second, -3 * time.Second}[run/2], run%2 == 0
		f := newFleet(algorithms.Params{Kind: algorithms.TokenBucket, Limit: 60, Window: time.Minute, Burst: 100}, 2)
		now := t0
		for i, n := range f.nodes {
			n.SetClock(now, 0, 0)
			f.take(i, now, 45)
			n.sync(f.store, now)
		}
		f.ask(0, now)
		for round := range 5 {
			now += second
			for i, n := range f.nodes {
				if n.ahead = by; round > i || first {
					n.ahead = 0
					n.SetClock(now, by, 0)
				}
				f.ask(i, now)
			}
		}
		for i := range f.nodes {
			if got := f.take(i, now, 0).Remaining; got < 14 || got > 16 {
				t.Errorf("a step of %v, noticed first %t: node %d: %d are left, want the 10 there were and 5 that have drained", by, first, i, got)
			}
		}
	}
}

// Where a bucket drains slower from a request on, what was spent in the same interval before and
// after does not count as drained at the rate of before.
func TestALowerRateLeavesWhatWasSpentSince(t *testing.T) {
	const second = int64(time.Second)
	f := newFleet(algorithms.Params{Kind: algorithms.TokenBucket, Limit: 5, Window: 30 * 24 * time.Hour, Burst: 5}, 2)
	slow, fast := f.limit, algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1_300_000_000, Window: 30 * 24 * time.Hour, Burst: 5}.Compile()
	f.limit = fast
	f.take(0, t0, 5)
	f.ask(0, t0)
	f.take(0, t0+second/2, 2)
	f.limit = slow
	f.take(0, t0+second*9/10, 5)
	for i, want := range []float64{5, 5} {
		if f.ask(i, t0+second); math.Abs(f.level(i, t0+second)-want) > .001 {
			t.Errorf("node %d: level %v, want the %v that were spent at the lower rate", i, f.level(i, t0+second), want)
		}
	}
}
