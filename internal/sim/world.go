package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A world is the time, the store and the nodes of one run.
type world[S any] struct {
	sc    Scenario[S]
	now   int64
	queue events
	made  int
	rng   *rand.Rand
	store *Store
	nodes []*node[S]   // nil where one is away
	is    []Parameters // of each node, now

	clients     []key
	calls, keys int
}

func newWorld[S any](sc Scenario[S]) *world[S] {
	w := &world[S]{sc: sc, now: epoch, rng: rand.New(rand.NewPCG(sc.Seed, 2)), store: NewStore()}
	w.clients = keysOf(sc.Clients)
	w.nodes, w.is = make([]*node[S], sc.Nodes), make([]Parameters, sc.Nodes)
	for i := range w.nodes {
		w.is[i] = sc.parameters(i)
		if !sc.away(i, 0) {
			w.nodes[i] = w.newNode(i, fmt.Sprintf("node %d", i))
		}
	}
	for _, a := range sc.Away {
		w.after(a.From, func() {
			if n := w.nodes[a.Node]; n != nil {
				n.stop(true)
				w.nodes[a.Node] = nil
			}
		})
		w.after(a.To, func() { w.nodes[a.Node] = w.newNode(a.Node, fmt.Sprintf("node %d from %v", a.Node, a.To)) })
	}
	for _, s := range sc.Steps {
		w.after(s.At, func() { w.nodes[s.Node].stepped += s.By })
	}
	for _, r := range sc.Reloads {
		w.after(r.At, func() {
			w.is[r.Node] = w.is[r.Node].with(r.Parameters)
			if n := w.nodes[r.Node]; n != nil {
				n.configure()
			}
		})
	}
	for _, at := range sc.Flushes {
		w.after(at, w.store.Flush)
	}
	for _, r := range sc.Restarts {
		w.after(r.At, func() {
			w.nodes[r.Node].stop(r.Clean)
			w.nodes[r.Node] = w.newNode(r.Node, fmt.Sprintf("node %d from %v", r.Node, r.At))
		})
	}
	return w
}

// cut reports that a node can't reach the store.
func (w *world[S]) cut(node int) bool {
	for _, c := range w.sc.Cuts {
		if since := w.sinceStart(); c.Node == node && since >= c.From && since < c.To {
			return true
		}
	}
	return false
}

// count notes a call, or as many as it takes for so many messages.
func (w *world[S]) count(messages []table.Message) {
	w.calls += cycle.Calls(len(messages))
	for i := range messages {
		if i == 0 || messages[i].Key != messages[i-1].Key {
			w.keys++
		}
	}
}

// journey is how long a message takes one way.
func (w *world[S]) journey() time.Duration {
	return time.Duration((.5 + w.rng.Float64()) * float64(w.sc.Latency))
}

// sinceStart is the time since the run began.
func (w *world[S]) sinceStart() time.Duration { return time.Duration(w.now - epoch) }

// after has f happen in a while. What is due at one instant happens in the order in which it was
// asked for.
func (w *world[S]) after(d time.Duration, f func()) {
	w.made++
	heap.Push(&w.queue, event{w.now + int64(max(d, 0)), w.made, f})
}

// until lets everything happen that is due before an instant.
func (w *world[S]) until(at int64) {
	for len(w.queue) > 0 && w.queue[0].at <= at {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.happen()
	}
}

type event struct {
	at     int64
	made   int
	happen func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].made < q[j].made
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(e any)   { *q = append(*q, e.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
