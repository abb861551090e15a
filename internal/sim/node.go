package sim

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	// timeout is what ratesync.Replicator gives a call by default.
	timeout  = time.Second
	mostKeys = 100_000
)

// A node is a real table and the loop of ratesync.Replicator.serve, as a machine of events.
type node[S any] struct {
	w     *world[S]
	index int
	name  string
	seq   int64
	table *table.Table[S]
	dead  bool

	next    int64 // when the next tick is due
	waiting bool  // in the select of the loop, for the timer of this number or a wake
	timer   int
	woken   bool
	lost    bool
	failed  int
	clocked bool
	stepped time.Duration // of its clock, since it started
	flushed int           // how often the store had forgotten everything, as of the last beat
}

// newNode starts a node. Its first tick comes at a random time within a sync_rate; its clock is set before that.
func (w *world[S]) newNode(index int, name string) *node[S] {
	n := &node[S]{w: w, index: index, name: name, table: table.New(algorithms.MachineOf[S](w.sc.Algorithm.Kind), mostKeys), flushed: w.store.flushed}
	n.configure()
	n.note(true)
	n.beat()
	n.next = w.now + int64(w.rng.Float64()*float64(n.is().Rate))
	n.wait(time.Duration(n.next - w.now))
	return n
}

// configure gives the table the node's parameters.
func (n *node[S]) configure() {
	is := n.is()
	n.table.Configure(table.Background{
		Params: is.Algorithm, Rate: is.Rate, Early: n.w.sc.Model.Early, Lagging: !is.Algorithm.Kind.Draining(), Wake: n.wake,
	}, mostKeys)
}

// is the parameters of the node.
func (n *node[S]) is() Parameters { return n.w.is[n.index] }

// clock is what the node takes the time for.
func (n *node[S]) clock() int64 {
	now := n.w.now + int64(n.stepped)
	if n.w.sc.Skew == nil {
		return now
	}
	return now + int64(n.w.sc.Skew[n.index])
}

func (n *node[S]) take(of int) table.Taken {
	k := &n.w.clients[of]
	return n.table.Take(n.is().Algorithm.Compile(), k.key, k.raw, n.clock(), 1, 0)
}

// note tells the table of the second failure in a row. One that makes no estimate is told that the store is lost all the time.
func (n *node[S]) note(ok bool) {
	n.lost = !ok
	n.failed++
	if ok {
		n.failed = 0
	}
	lost := uint64(0)
	if n.failed > 1 || !n.w.sc.Model.Estimate {
		lost = math.MaxUint64
	}
	n.table.SetLost(lost)
}

// wake is called from within Take.
func (n *node[S]) wake() {
	n.woken = true
	n.w.after(0, n.heed)
}

func (n *node[S]) heed() {
	if n.waiting && n.woken {
		n.turn()
	}
}

// wait is the select of the loop.
func (n *node[S]) wait(d time.Duration) {
	n.timer++
	timer := n.timer
	n.waiting = true
	n.w.after(d, func() {
		if n.waiting && n.timer == timer {
			n.turn()
		}
	})
	n.heed()
}

// turn is one turn of the loop.
func (n *node[S]) turn() {
	n.waiting, n.woken = false, false
	if n.dead {
		return
	}
	early, due := cycle.Turn(time.Duration(n.next-n.w.now), n.is().Rate)
	n.next = n.w.now + int64(due)
	if early && n.lost {
		n.wait(time.Duration(n.next - n.w.now))
		return
	}
	n.exchange(early, func(ok bool) {
		n.note(ok)
		if !ok {
			n.next = n.w.now + int64(cycle.Retry(n.is().Rate, n.failed == 1))
		}
		again := ok && n.table.Urgent()
		n.w.after(cycle.Gap, func() {
			if again {
				n.wait(cycle.Gap)
				return
			}
			n.wait(time.Duration(n.next - n.w.now))
		})
	})
}

// exchange is one call of the script, unless there is nothing to say.
func (n *node[S]) exchange(urgent bool, done func(ok bool)) {
	if !urgent {
		n.table.Tick()
	}
	messages := n.table.Drain(n.clock(), 1<<20, urgent, nil)
	if len(messages) == 0 {
		done(true)
		return
	}
	n.seq++
	call := n.call(messages)
	w := n.w
	w.count(messages)
	settled := false
	w.after(cycle.CallTime(timeout, n.is().Rate), func() {
		if settled || n.dead {
			return
		}
		settled = true
		n.table.Fail(messages)
		done(false)
	})
	if w.cut(n.index) {
		return
	}
	w.after(w.journey(), func() {
		answers := call()
		if w.rng.Float64() < w.sc.Duplicates {
			w.after(10*w.journey(), func() { call() })
		}
		if w.rng.Float64() < w.sc.LostReplies {
			return
		}
		w.after(w.journey(), func() {
			if settled || n.dead {
				return
			}
			settled = true
			if n.table.Settle(n.clock(), answers) {
				n.table.Resend()
			}
			done(true)
		})
	})
}

// call fixes what a message says, for whenever it arrives.
func (n *node[S]) call(messages []table.Message) func() []table.Answer {
	seq, live, rate, w := n.seq, n.w.sc.Algorithm.Compile().History, n.is().Rate, n.w
	return func() []table.Answer { return w.store.Push(w.now, n.name, seq, live, rate, messages) }
}

// stop ends a node: at once, or after one more exchange.
func (n *node[S]) stop(clean bool) {
	n.dead = true
	if !clean {
		return
	}
	n.table.Tick()
	n.seq++
	if messages := n.table.Drain(n.clock(), 1<<20, false, nil); len(messages) > 0 {
		call := n.call(messages)
		n.w.after(n.w.journey(), func() { call() })
	}
}

// beat sets the clock by the store's, as ratesync.Source.keepTime does, and again a second later. It notices a store that has forgotten.
func (n *node[S]) beat() {
	if n.dead {
		return
	}
	n.w.after(cycle.Heartbeat, n.beat)
	if n.w.cut(n.index) {
		return
	}
	there, back := n.w.journey(), n.w.journey()
	doubt := (there + back) / 2
	table.Steer(n.table, n.clock(), time.Duration(n.w.now-n.clock())+there-doubt, doubt, n.w.sc.Algorithm.Window, !n.clocked)
	n.clocked = true
	if n.flushed != n.w.store.flushed {
		n.flushed = n.w.store.flushed
		n.table.Resend()
	}
}
