// Package sim syncs the tables of several nodes through one store in virtual time: by the product's
// own loop, where only time, the way to the store and the store are models. A run is the same every
// time for one seed.
package sim

import (
	"math/rand/v2"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/heap"
)

// A Network is virtual time, and a store with the way to it. It is not safe for concurrent use.
type Network struct {
	// Store is that of all links.
	Store *Store
	// Rand decides how long messages take.
	Rand *rand.Rand

	now, start int64
	latency    time.Duration // the mean of the one-way time to the store
	queue      heap.Heap[event]
	made       int // how many events there were
	links      []*Link
}

// An event is what happens at an instant, and its number.
type event struct {
	at     int64
	number int
	happen func()
}

func (e event) isBefore(o event) bool {
	return e.at < o.at || e.at == o.at && e.number < o.number
}

// NewNetwork returns a network whose time begins at an instant, with a store that is a latency
// away.
func NewNetwork(start int64, latency time.Duration, seed uint64) *Network {
	return &Network{
		Store: NewStore(), Rand: rand.New(rand.NewPCG(seed, 2)),
		now: start, start: start, latency: latency, queue: heap.Heap[event]{Before: event.isBefore},
	}
}

// Now is the instant that it is.
func (w *Network) Now() int64 { return w.now }

// Since is the time since the network's began.
func (w *Network) Since() time.Duration { return time.Duration(w.now - w.start) }

// Journey is how long a message takes one way.
func (w *Network) Journey() time.Duration {
	return time.Duration((.5 + w.Rand.Float64()) * float64(w.latency))
}

// After has f happen in a while. What is due at one instant happens in the order in which it was
// asked for.
func (w *Network) After(d time.Duration, f func()) {
	w.made++
	w.queue.Push(event{w.now + int64(max(d, 0)), w.made, f})
}

// Until lets everything happen that is due up to an instant, and then it is that instant.
func (w *Network) Until(at int64) {
	for w.wakeLoops(); len(w.queue.All) > 0 && w.queue.All[0].at <= at; w.wakeLoops() {
		e := w.queue.Pop()
		w.now = e.at
		e.happen()
	}
	w.now = max(w.now, at)
}

// Skip makes it later without anything happening meanwhile. It is for times in which nobody asks
// anything, once all has been synced.
func (w *Network) Skip(d time.Duration) {
	w.now += int64(d)
	w.start += int64(d)
	for i := range w.queue.All {
		w.queue.All[i].at += int64(d)
	}
}

// wakeLoops has the loops go on that were woken.
func (w *Network) wakeLoops() {
	for _, n := range w.links {
		if n.IsCalled() {
			w.After(0, func() { n.on(cycle.Event{Kind: cycle.Wake}) })
		}
	}
}
