package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// A world is the time, the store and the nodes of one run.
type world[S any] struct {
	sc    Scenario[S]
	now   int64
	queue events
	made  int
	rng   *rand.Rand
	store *store
	nodes []*node[S]
	calls int
}

func newWorld[S any](sc Scenario[S]) *world[S] {
	w := &world[S]{sc: sc, now: epoch, rng: rand.New(rand.NewPCG(sc.Seed, 2)), store: newStore()}
	for i := range sc.Nodes {
		w.nodes = append(w.nodes, w.newNode(i, fmt.Sprintf("node %d", i)))
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
		if since := time.Duration(w.now - epoch); c.Node == node && since >= c.From && since < c.To {
			return true
		}
	}
	return false
}

// journey is how long a message takes one way.
func (w *world[S]) journey() time.Duration {
	return time.Duration((.5 + w.rng.Float64()) * float64(w.sc.Latency))
}

// after has f happen in a while. What is due at one instant happens in the order in which it was asked for.
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
