package sim

import (
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

// A node is a real table and the loop of a ratesync.Replicator, driven by the world's events.
type node[S any] struct {
	w     *world[S]
	index int
	name  string
	seq   int64
	table *table.Table[S]
	dead  bool

	loop    cycle.State
	timer   int           // the number of the one that the loop waits for
	stepped time.Duration // of its clock, since it started
	flushed int           // how often the store had forgotten everything, as of the last heartbeat
}

// newNode starts a node. Its first tick comes at a random time within a sync_rate; its clock is set
// before that.
func (w *world[S]) newNode(index int, name string) *node[S] {
	n := &node[S]{w: w, index: index, name: name, table: table.New(algorithms.MachineOf[S](w.sc.Algorithm.Kind), mostKeys), flushed: w.store.flushed}
	n.configure()
	n.setLost()
	n.heartbeat()
	first := time.Duration(w.rng.Float64() * float64(n.is().Rate))
	n.loop.Due = w.sinceStart() + first
	n.wait(first)
	return n
}

// configure gives the table the node's parameters.
func (n *node[S]) configure() {
	is := n.is()
	n.table.Configure(table.SyncConfig{
		Params: is.Algorithm, Rate: is.Rate, Early: n.w.sc.Model.Early, Wake: n.wake,
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

// setLost gives the table the shards that are lost. One that makes no estimate has all lost all the
// time.
func (n *node[S]) setLost() {
	lost := n.loop.Unreachable
	if !n.w.sc.Model.Estimate {
		lost = cycle.AllShards
	}
	n.table.SetLost(lost)
}

// wake is called from within Take.
func (n *node[S]) wake() {
	n.w.after(0, func() { n.on(cycle.Event{Kind: cycle.Wake}) })
}

// wait has the loop tick after a while, unless something else happens before.
func (n *node[S]) wait(d time.Duration) {
	n.timer++
	timer := n.timer
	n.w.after(d, func() {
		if n.timer == timer {
			n.on(cycle.Event{Kind: cycle.Tick})
		}
	})
}

// on gives the loop an event, and does what it returns.
func (n *node[S]) on(e cycle.Event) {
	if n.dead {
		return
	}
	var action cycle.Action
	var wait time.Duration
	n.loop, action, wait = n.loop.Next(e, n.w.sinceStart(), n.is().Rate)
	switch action {
	case cycle.Await:
		n.wait(wait)
	case cycle.SyncUrgent, cycle.SyncAll:
		n.timer++ // the loop waits for the sync
		n.sync(action == cycle.SyncUrgent)
	}
}

// ended gives the loop and the table the result of a sync.
func (n *node[S]) ended(ok bool) {
	e := cycle.Event{Kind: cycle.Reply, Urgent: n.table.Urgent()}
	if !ok {
		e.Kind, e.Lost = cycle.Failed, cycle.AllShards
	}
	n.on(e)
	n.setLost()
}

// sync is one call of the script, unless there is nothing to say.
func (n *node[S]) sync(urgent bool) {
	if !urgent {
		n.table.Tick()
	}
	messages := n.table.Drain(n.clock(), 1<<20, urgent, nil)
	if len(messages) == 0 {
		n.ended(true)
		return
	}
	n.seq++
	call := n.call(messages)
	w := n.w
	w.count(messages)
	over := false
	w.after(cycle.CallTime(timeout, n.is().Rate), func() {
		if over || n.dead {
			return
		}
		over = true
		n.table.Fail(messages)
		n.ended(false)
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
			if over || n.dead {
				return
			}
			over = true
			if n.table.Ack(n.clock(), answers) {
				n.table.Resend()
			}
			n.ended(true)
		})
	})
}

// call fixes what a message says, for whenever it arrives.
func (n *node[S]) call(messages []table.Message) func() []table.Answer {
	seq, live, rate, w := n.seq, n.w.sc.Algorithm.Compile().History, n.is().Rate, n.w
	return func() []table.Answer { return w.store.Push(w.now, n.name, seq, live, rate, messages) }
}

// stop ends a node: at once, or after one more sync.
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

// heartbeat sets the clock by the store's, as the heartbeat of a ratesync.Replicator does, and
// again a second later. It notices a store that has forgotten.
func (n *node[S]) heartbeat() {
	if n.dead {
		return
	}
	n.w.after(cycle.Heartbeat, n.heartbeat)
	if n.w.cut(n.index) {
		return
	}
	there, back := n.w.journey(), n.w.journey()
	uncertainty := (there + back) / 2
	n.table.SetClock(n.clock(), time.Duration(n.w.now-n.clock())+there-uncertainty, uncertainty)
	if n.flushed != n.w.store.flushed {
		n.flushed = n.w.store.flushed
		n.table.Resend()
	}
}
