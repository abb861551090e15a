package sim

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Replica is a table as its link to the store sees it.
type Replica interface {
	outbox
	follower
}

// outbox is what a table has to send.
type outbox interface {
	Tick()
	Urgent() bool
	Say(now, seq int64, most int, early bool, dst []table.Said) []table.Said
	Merge(now, server int64, said []table.Said, replies []cell.Reply) (forgot bool)
	Unanswered(said []table.Said)
}

// follower is what a table has to know of the store.
type follower interface {
	SetLost(shards uint64)
	SetClock(now int64, ahead, uncertainty time.Duration)
	Forgotten(now int64, sure bool) (keys int)
	ResendRest()
}

// A Link is the loop of a ratesync.Replicator for one table of a node, driven by the events of a
// network.
type Link struct {
	net   *Network
	node  int
	name  string
	seq   int64
	table Replica
	dead  bool
	cycle.Waker

	// rate is the sync_rate, clock what the node takes the time for, and limit the table's.
	// estimates is set where the table estimates
	// what others spent.
	rate      func() time.Duration
	clock     func() int64
	limit     algorithms.Params
	estimates bool

	carried Companion // nil for nothing

	loop    cycle.State
	timer   int // the number of the one that the loop waits for
	flushed int // how often the store had forgotten everything, as of the last heartbeat
}

// Join links a table to the store: that of a node, by its number and name, which syncs every rate.
// The table is to be configured with the link's Waker. p are those of its limit.
func (w *Network) Join(node int, name string, t Replica, rate time.Duration, p algorithms.Params) *Link {
	n := &Link{
		net: w, node: node, name: name, table: t, Waker: cycle.NewWaker(), limit: p, estimates: true,
		rate: func() time.Duration { return rate }, clock: func() int64 { return w.now },
	}
	w.links = append(w.links, n)
	return n
}

// A Companion goes along with the sync of a table: the bans of its zone.
type Companion interface {
	// Ask returns what a call says and asks besides messages about keys, nil for nothing: ask is
	// what happens at the store, and ack what the node does with the answer.
	Ask(ids []keys.ID) (ask func() (ack func()))
}

// Carry has a companion go along. It is for links whose calls are all answered.
func (n *Link) Carry(c Companion) { n.carried = c }

// Start begins to sync. The first tick comes at a random time within a sync_rate; the clock is set
// before that.
func (n *Link) Start() {
	n.flushed = n.net.store.flushed
	n.setLost()
	n.heartbeat()
	first := time.Duration(n.net.rng.Float64() * float64(n.rate()))
	n.loop.Due = n.net.sinceStart() + first
	n.wait(first)
}

// setLost gives the table the shards that are lost. One that makes no estimate has all lost all the
// time.
func (n *Link) setLost() {
	lost := n.loop.Unreachable
	if !n.estimates {
		lost = cycle.AllShards
	}
	n.table.SetLost(lost)
}

// After is for a table that asks before the next cycle.
func (n *Link) After(d time.Duration, f func()) { n.net.after(d, f) }

// wait has the loop tick after a while, unless something else happens before.
func (n *Link) wait(d time.Duration) {
	n.timer++
	timer := n.timer
	n.net.after(d, func() {
		if n.timer == timer {
			n.on(cycle.Event{Kind: cycle.Tick})
		}
	})
}

// on gives the loop an event, and does what it returns.
func (n *Link) on(e cycle.Event) {
	if n.dead {
		return
	}
	var action cycle.Action
	var wait time.Duration
	n.loop, action, wait = n.loop.Next(e, n.net.sinceStart(), n.rate())
	switch action {
	case cycle.Await:
		n.wait(wait)
	case cycle.SyncUrgent, cycle.SyncAll:
		n.timer++ // the loop waits for the sync
		n.sync(action == cycle.SyncUrgent)
	}
}

// ended gives the loop and the table the result of a sync.
func (n *Link) ended(ok bool) {
	e := cycle.Event{Kind: cycle.Reply, Urgent: n.table.Urgent()}
	if !ok {
		e.Kind, e.Lost = cycle.Failed, cycle.AllShards
	}
	n.on(e)
	n.setLost()
}

// A letter is what one call says. deliver is what happens at the store, with which hear takes in
// its answer, and fail gives it up.
type letter struct {
	ids     []keys.ID
	deliver func() (hear func() (forgot bool))
	fail    func()
}

// take takes out what the table has to say, fixed for whenever that arrives.
func (n *Link) take(urgent bool) letter {
	w := n.net
	n.seq++
	var x letter
	said := n.table.Say(n.clock(), n.seq, 1<<20, urgent, nil)
	for i := range said {
		x.ids = append(x.ids, said[i].ID)
	}
	x.fail = func() { n.table.Unanswered(said) }
	x.deliver = func() func() bool {
		server := w.now
		var replies []cell.Reply
		if n.limit.Kind.Traits().Draining {
			replies = w.store.Fill(server, n.name, n.limit.Window, said)
		} else {
			replies = w.store.Say(server, n.name, n.limit.Epoch(), n.limit.Compile().History, said)
		}
		return func() bool { return n.table.Merge(n.clock(), server, said, replies) }
	}
	return x
}

// sync is one call of the script, unless there is nothing to say.
func (n *Link) sync(urgent bool) {
	if !urgent {
		n.table.Tick()
	}
	x := n.take(urgent)
	var ask func() func()
	if n.carried != nil {
		ask = n.carried.Ask(x.ids)
	}
	if len(x.ids) == 0 && ask == nil {
		n.ended(true)
		return
	}
	if ask == nil {
		ask = func() func() { return func() {} }
	}
	w := n.net
	w.count(len(x.ids))
	over := false
	w.after(cycle.CallTime(timeout, n.rate(), max(1, 2*w.latency)), func() {
		if over || n.dead {
			return
		}
		over = true
		x.fail()
		n.ended(false)
	})
	if w.cut(n.node) {
		return
	}
	w.after(w.journey(), func() {
		hear, ack := x.deliver(), ask()
		if w.rng.Float64() < w.duplicates {
			w.after(10*w.journey(), func() { x.deliver() })
		}
		if w.rng.Float64() < w.lostReplies {
			return
		}
		w.after(w.journey(), func() {
			if over || n.dead {
				return
			}
			over = true
			ack()
			if hear() {
				n.resend()
			}
			n.ended(true)
		})
	})
}

// stop ends a node: at once, or after one more sync.
func (n *Link) stop(clean bool) {
	n.dead = true
	if !clean {
		return
	}
	n.table.Tick()
	if x := n.take(false); len(x.ids) > 0 {
		n.net.after(n.net.journey(), func() { x.deliver() })
	}
}

// resend sends all again. The way of a few keys is too short to spread them.
func (n *Link) resend() {
	n.table.Forgotten(n.clock(), true)
	n.table.ResendRest()
}

// heartbeat sets the clock by the store's, as the heartbeat of a ratesync.Replicator does, and
// again a second later. It notices a store that has forgotten.
func (n *Link) heartbeat() {
	if n.dead {
		return
	}
	n.net.after(cycle.Heartbeat, n.heartbeat)
	if n.net.cut(n.node) {
		return
	}
	there, back := n.net.journey(), n.net.journey()
	uncertainty := (there + back) / 2
	n.table.SetClock(n.clock(), time.Duration(n.net.now-n.clock())+there-uncertainty, uncertainty)
	if n.flushed != n.net.store.flushed {
		n.flushed = n.net.store.flushed
		n.resend()
	}
}
