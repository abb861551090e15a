package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/bench/harness"
)

// A result is what one subject did in one case.
type result struct {
	Case   string  `json:"case"`
	Ns     float64 `json:"ns"` // of CPU time for each request, divided by the threads
	Bytes  float64 `json:"bytes"`
	Allocs float64 `json:"allocs"`
	PerKey float64 `json:"per_key"`
	Peak   float64 `json:"peak"`   // most admitted in a window's length, of the limit
	Errors int64   `json:"errors"` // requests that were neither admitted nor denied, but failed
}

// failures counts what check saw.
var failures atomic.Int64

func check(admitted bool, err error) bool {
	if err != nil {
		failures.Add(1)
	}
	return admitted && err == nil
}

func makeKeys(n int) []key {
	keys := make([]key, n)
	for i := range keys {
		text := harness.Address(i)
		keys[i] = key{text, text + ":1234", text}
	}
	return keys
}

// run lets threads ask for keys at random for a while, after each key was asked for once.
func run(clients func() ask, keys []key, threads int, d time.Duration) result {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	for first, i := clients(), 0; i < len(keys); i++ {
		first(&keys[i])
	}
	asks := make([]ask, threads)
	for i := range asks {
		asks[i] = clients()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	failures.Store(0)
	begun, used := time.Now(), harness.CPUTime()
	var total atomic.Int64
	var wg sync.WaitGroup
	for i, take := range asks {
		wg.Go(func() { total.Add(askFor(take, keys, uint64(i+1)*0x9e3779b97f4a7c15, begun.Add(d))) })
	}
	wg.Wait()
	used = harness.CPUTime() - used
	runtime.ReadMemStats(&after)
	n := float64(total.Load())
	return result{
		Ns: float64(used) / n / float64(threads), Bytes: float64(after.TotalAlloc-before.TotalAlloc) / n, Allocs: float64(after.Mallocs-before.Mallocs) / n,
		Errors: failures.Load(),
	}
}

// askFor asks until a time and returns how often.
func askFor(take ask, keys []key, x uint64, end time.Time) (n int64) {
	for time.Now().Before(end) {
		for range 500 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			take(&keys[x%uint64(len(keys))])
		}
		n += 500
	}
	return n
}

// perKey is how many bytes are live for each key after one request of each. Keys come as they do
// from a network, in memory of their own: who keeps one pays for it.
func perKey(clients func() ask, n int) float64 {
	take := clients()
	before := harness.Heap()
	for i := range n {
		text := harness.Address(i)
		take(&key{text: text})
	}
	after := harness.Heap()
	runtime.KeepAlive(take)
	return float64(after-before) / float64(n)
}

// peak is the most that clients that ask without end get within a window's length, as a multiple of
// the limit: of several clients, which each ask once and begin in earnest at another part of a
// window later.
func peak(clients func() ask, limit int, window time.Duration) (most float64) {
	const starts = 20
	take, keys := clients(), makeKeys(starts)
	for i := range keys {
		take(&keys[i])
		time.Sleep(window * time.Duration(i) / starts)
		admitted, end := 0, time.Now().Add(window)
		for time.Now().Before(end) {
			if take(&keys[i]) {
				admitted++
			}
		}
		most = max(most, float64(admitted)/float64(limit))
	}
	return most
}
