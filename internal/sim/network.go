package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// A Network is virtual time, and a store with the way to it. It is not safe for concurrent use.
type Network struct {
	now, start int64
	queue      events
	links      []*Link
	made       int
	rng        *rand.Rand
	store      *Store

	// latency is the mean of the one-way time to the store. lostReplies and duplicates are shares
	// of the replies and messages, and cut reports that a node can't reach the store.
	latency                 time.Duration
	lostReplies, duplicates float64
	cut                     func(node int) bool

	calls, keys int
}

// NewNetwork returns a network whose time begins at an instant, with a store that is a latency
// away.
func NewNetwork(start int64, latency time.Duration, seed uint64) *Network {
	return &Network{
		now: start, start: start, rng: rand.New(rand.NewPCG(seed, 2)), store: NewStore(),
		latency: latency, cut: func(int) bool { return false },
	}
}

// Until lets everything happen that is due before an instant, and then it is that instant.
func (w *Network) Until(at int64) {
	w.until(at)
	w.now = max(w.now, at)
}

// Now is the instant that it is.
func (w *Network) Now() int64 { return w.now }

// Skip makes it later without anything happening meanwhile. It is for times in which nobody asks
// anything, once all has been synced.
func (w *Network) Skip(d time.Duration) {
	w.now += int64(d)
	w.start += int64(d)
	for i := range w.queue {
		w.queue[i].at += int64(d)
	}
}

// Expire has the store drop what it no longer keeps.
func (w *Network) Expire() { w.store.expire(w.now) }

// count notes a call, or as many as it takes for so many keys.
func (w *Network) count(keys int) {
	w.calls += cycle.Calls(keys)
	w.keys += keys
}

// journey is how long a message takes one way.
func (w *Network) journey() time.Duration {
	return time.Duration((.5 + w.rng.Float64()) * float64(w.latency))
}

// sinceStart is the time since the run began.
func (w *Network) sinceStart() time.Duration { return time.Duration(w.now - w.start) }

// after has f happen in a while. What is due at one instant happens in the order in which it was
// asked for.
func (w *Network) after(d time.Duration, f func()) {
	w.made++
	heap.Push(&w.queue, event{w.now + int64(max(d, 0)), w.made, f})
}

// until lets everything happen that is due before an instant.
func (w *Network) until(at int64) {
	for w.wakeLoops(); len(w.queue) > 0 && w.queue[0].at <= at; w.wakeLoops() {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.happen()
	}
}

// wakeLoops has the loops go on that were woken.
func (w *Network) wakeLoops() {
	for _, n := range w.links {
		if n.IsCalled() {
			w.after(0, func() { n.on(cycle.Event{Kind: cycle.Wake}) })
		}
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
