package sim

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Link is the loop of a ratesync.Replicator for one table of a node, driven by the events of a
// network.
type Link struct {
	// Waker is that of the table.
	cycle.Waker
	// Rate is the sync_rate.
	Rate time.Duration
	// Send brings a call to the store and its answer back; Join sets one by which none is lost.
	Send func(*Call)
	// Carried says what goes along with a call about keys: what happens at the store, nil for
	// nothing. It may be nil.
	Carried func(ids []keys.ID) (exchange func())

	net   *Network
	name  string
	seq   int64
	table table.Synced
	limit algorithms.Params
	loop  cycle.State
	timer int // the number of the one that the loop waits for
}

// Join links a table to the store: that of a node, by its name, which syncs every rate. The table
// is to be configured with the link's Waker. p are those of its limit.
func (w *Network) Join(name string, t table.Synced, rate time.Duration, p algorithms.Params) *Link {
	n := &Link{net: w, name: name, table: t, Waker: cycle.NewWaker(), Rate: rate, limit: p}
	n.Send = n.send
	w.links = append(w.links, n)
	return n
}

// Start begins to sync. The first tick comes at a random time within a sync_rate.
func (n *Link) Start() {
	n.table.SetMissedTwice(0)
	n.table.SetClock(n.net.now, 0, 0)
	first := time.Duration(n.net.Rand.Float64() * float64(n.Rate))
	n.loop.Due = n.net.Since() + first
	n.wait(first)
}

// wait has the loop tick after a while, unless something else happens before.
func (n *Link) wait(d time.Duration) {
	n.timer++
	timer := n.timer
	n.net.After(d, func() {
		if n.timer == timer {
			n.on(cycle.Event{Kind: cycle.Tick})
		}
	})
}

// on gives the loop an event, and does what it returns.
func (n *Link) on(e cycle.Event) {
	var action cycle.Action
	var wait time.Duration
	n.loop, action, wait = n.loop.Next(e, n.net.Since(), n.Rate)
	switch action {
	case cycle.Await:
		n.wait(wait)
	case cycle.SyncUrgent, cycle.SyncAll:
		n.timer++ // the loop waits for the sync
		n.sync(action == cycle.SyncUrgent)
	}
}

// sync is one call of the script, unless there is nothing to say.
func (n *Link) sync(urgent bool) {
	if !urgent {
		n.table.MakeOutgoing()
	}
	if c := n.Call(urgent); c != nil {
		n.Send(c)
	} else {
		n.Ended(true)
	}
}

// send takes a journey each way.
func (n *Link) send(c *Call) {
	n.net.After(n.net.Journey(), func() {
		c.Arrive()
		n.net.After(n.net.Journey(), func() {
			c.Merge()
			n.Ended(true)
		})
	})
}

// Ended gives the loop and the table the result of a sync.
func (n *Link) Ended(ok bool) {
	e := cycle.Event{Kind: cycle.Reply, Urgent: n.table.Urgent()}
	if !ok {
		e.Kind, e.Missed = cycle.Failed, cycle.AllShards
	}
	n.on(e)
	n.table.SetMissedTwice(n.loop.MissedTwice)
}

// Resend sends all again, as the store has forgotten it. The way of a few keys is too short to
// spread them.
func (n *Link) Resend() {
	n.table.Forgotten(n.net.now, true)
	n.table.ResendRest()
}

// A Call is what a link says at once, fixed for whenever that arrives.
type Call struct {
	link     *Link
	updates  []table.Update
	exchange func()

	replies []cell.Reply
	at      int64 // when it arrived first
}

// Call takes out what the table has to say, nil for nothing.
func (n *Link) Call(urgent bool) *Call {
	n.seq++
	c := &Call{link: n, updates: n.table.TakeUpdates(n.net.now, n.seq, 1<<20, urgent, nil)}
	if n.Carried != nil {
		ids := make([]keys.ID, len(c.updates))
		for i := range c.updates {
			ids[i] = c.updates[i].ID
		}
		c.exchange = n.Carried(ids)
	}
	if len(c.updates) == 0 && c.exchange == nil {
		return nil
	}
	return c
}

// Arrive is what happens at the store, each time that the call comes there.
func (c *Call) Arrive() {
	n := c.link
	replies := n.net.Store.Apply(n.net.now, n.name, n.limit, c.updates)
	if c.at != 0 {
		return
	}
	c.replies, c.at = replies, n.net.now
	if c.exchange != nil {
		c.exchange()
	}
}

// Merge has the table take in the answer.
func (c *Call) Merge() {
	if c.link.table.Merge(c.link.net.now, c.at, c.updates, c.replies) {
		c.link.Resend()
	}
}

// Fail gives the call up.
func (c *Call) Fail() { c.link.table.Unanswered(c.updates) }
