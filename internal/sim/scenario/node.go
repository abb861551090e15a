package scenario

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/sim"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	// timeout is what ratesync.Replicator gives a call by default.
	timeout  = time.Second
	mostKeys = 100_000
)

// A world is the network and the nodes of one run.
type world[S any] struct {
	*sim.Network
	sc    Scenario[S]
	nodes []*node[S]   // nil where one is away
	is    []Parameters // of each node, now

	clients []key
	flushes int // how often the store has forgotten everything
	calls   int
}

func newWorld[S any](sc Scenario[S]) *world[S] {
	w := &world[S]{Network: sim.NewNetwork(epoch, sc.Latency, sc.Seed), sc: sc, clients: keysOf(sc.Clients)}
	w.nodes, w.is = make([]*node[S], sc.Nodes), make([]Parameters, sc.Nodes)
	for i := range w.nodes {
		w.is[i] = sc.parameters(i)
		if !sc.away(i, 0) {
			w.newNode(i, 0)
		}
	}
	for _, a := range sc.Away {
		w.After(a.From, func() {
			if n := w.nodes[a.Node]; n != nil {
				n.stop(true)
				w.nodes[a.Node] = nil
			}
		})
		w.After(a.To, func() { w.newNode(a.Node, a.To) })
	}
	for _, s := range sc.Steps {
		w.After(s.At, func() { w.nodes[s.Node].stepped += s.By })
	}
	for _, r := range sc.Reloads {
		w.After(r.At, func() {
			w.is[r.Node] = w.is[r.Node].with(r.Parameters)
			if n := w.nodes[r.Node]; n != nil {
				n.configure()
			}
		})
	}
	for _, at := range sc.Flushes {
		w.After(at, func() {
			w.flushes++
			*w.Store = *sim.NewStore()
		})
	}
	for _, r := range sc.Restarts {
		w.After(r.At, func() {
			w.nodes[r.Node].stop(r.Clean)
			w.newNode(r.Node, r.At)
		})
	}
	return w
}

// A node is a real table and its link to the store, on which calls may get lost. The table hears of
// the store what the model lets it know.
type node[S any] struct {
	*table.Table[S]
	w       *world[S]
	link    *sim.Link
	index   int
	ended   bool
	stepped time.Duration // of its clock, since it started
	flushes int           // as of the last heartbeat
}

// newNode starts a node, some time after the run began.
func (w *world[S]) newNode(index int, at time.Duration) {
	n := &node[S]{Table: table.New[S](w.sc.Algorithm.Kind, mostKeys), w: w, index: index, flushes: w.flushes}
	w.nodes[index] = n
	n.link = w.Join(fmt.Sprintf("node %d from %v", index, at), n, 0, w.sc.Algorithm)
	n.link.Send = n.send
	n.configure()
	n.heartbeat()
	n.link.Start()
}

// configure gives the table the node's parameters.
func (n *node[S]) configure() {
	is := n.w.is[n.index]
	n.link.Rate = is.Rate
	n.Configure(table.SyncConfig{
		Params: is.Algorithm, Interval: is.Rate, Early: n.w.sc.Model.Early, Waker: n.link.Waker, After: n.w.After,
	}, mostKeys)
}

// clock is what the node takes the time for.
func (n *node[S]) clock() int64 {
	now := n.w.Now() + int64(n.stepped)
	if n.w.sc.Skew == nil {
		return now
	}
	return now + int64(n.w.sc.Skew[n.index])
}

func (n *node[S]) take(of int) table.Taken {
	k := &n.w.clients[of]
	return n.Take(n.w.is[n.index].Algorithm.Compile(), k.key, k.raw, n.clock(), n.w.sc.cost(), 0)
}

// Urgent, Say, Merge and Forgotten are the table's, by the node's clock, and nothing once it has
// ended.
func (n *node[S]) Urgent() bool { return !n.ended && n.Table.Urgent() }

func (n *node[S]) TakeUpdates(_, seq int64, most int, early bool, dst []table.Update) []table.Update {
	if n.ended {
		return dst
	}
	updates := n.Table.TakeUpdates(n.clock(), seq, most, early, dst)
	n.w.calls += (len(updates) + cycle.BatchSize - 1) / cycle.BatchSize
	return updates
}

func (n *node[S]) Merge(_, server int64, updates []table.Update, replies []cell.Reply) (forgot bool) {
	return !n.ended && n.Table.Merge(n.clock(), server, updates, replies)
}

func (n *node[S]) Forgotten(_ int64, sure bool) (keys int) { return n.Table.Forgotten(n.clock(), sure) }

// SetMissedTwice has all shards lost all the time where the model makes no estimate.
func (n *node[S]) SetMissedTwice(shards uint64) {
	if !n.w.sc.Model.Estimate {
		shards = cycle.AllShards
	}
	n.Table.SetMissedTwice(shards)
}

// SetClock does nothing: a heartbeat sets the clock.
func (n *node[S]) SetClock(int64, time.Duration, time.Duration) {}

// heartbeat sets the clock by the store's, as the heartbeat of a ratesync.Replicator does, and
// again a second later. It notices a store that has forgotten.
func (n *node[S]) heartbeat() {
	if n.ended {
		return
	}
	n.w.After(cycle.Heartbeat, n.heartbeat)
	if n.isCut() {
		return
	}
	there, back := n.w.Journey(), n.w.Journey()
	uncertainty := (there + back) / 2
	n.Table.SetClock(n.clock(), time.Duration(n.w.Now()-n.clock())+there-uncertainty, uncertainty)
	if n.flushes != n.w.flushes {
		n.flushes = n.w.flushes
		n.link.Resend()
	}
}

// isCut reports that the node can't reach the store.
func (n *node[S]) isCut() bool {
	for _, c := range n.w.sc.Cuts {
		if since := n.w.Since(); c.Node == n.index && since >= c.From && since < c.To {
			return true
		}
	}
	return false
}

// send brings a call to the store, or loses it or its answer.
func (n *node[S]) send(c *sim.Call) {
	w, over := n.w, false
	w.After(cycle.CallTime(timeout, n.link.Rate, max(1, 2*w.sc.Latency)), func() {
		if !over {
			over = true
			c.Fail()
			n.link.Ended(false)
		}
	})
	if n.isCut() {
		return
	}
	w.After(w.Journey(), func() {
		c.Arrive()
		if w.Rand.Float64() < w.sc.Duplicates {
			w.After(10*w.Journey(), c.Arrive)
		}
		if w.Rand.Float64() < w.sc.LostReplies {
			return
		}
		w.After(w.Journey(), func() {
			if !over {
				over = true
				c.Merge()
				n.link.Ended(true)
			}
		})
	})
}

// stop ends a node: at once, or after one more call.
func (n *node[S]) stop(clean bool) {
	if clean {
		n.MakeOutgoing()
		if c := n.link.Call(false); c != nil {
			n.w.After(n.w.Journey(), c.Arrive)
		}
	}
	n.ended = true
}
