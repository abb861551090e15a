package scenario

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Result is what a run measures.
type Result struct {
	// Peak is the most that was admitted of one client in any interval of the window's length, as a
	// multiple of the limit.
	Peak float64
	// Mean is what was admitted, as a part of what the clients asked for or their limit, whichever
	// is less for each of them.
	Mean float64
	// Wrong is the share of the requests that were denied where an exact limiter that had admitted
	// the same until then would have admitted.
	Wrong float64
	// Requests and those Admitted, and those Denied by the estimate alone, of the whole run.
	Requests, Admitted, Estimated int
	// Calls is how many calls of all nodes the store got, in the time Length.
	Calls  int
	Length time.Duration
	// Hits are what was admitted, in order.
	Hits []Hit
}

// A Hit is a request that was admitted: when, by which node, of which client.
type Hit struct {
	At       int64
	Node, Of int
}

// Share is the part of the requests that was admitted.
func (r Result) Share() float64 { return float64(r.Admitted) / float64(max(1, r.Requests)) }

// CallsASecond is the store's load.
func (r Result) CallsASecond() float64 { return float64(r.Calls) / r.Length.Seconds() }

// Within is how many were admitted between two times from the start.
func (r Result) Within(from, to time.Duration) (n int) {
	for _, h := range r.Hits {
		if h.At >= epoch+int64(from) && h.At < epoch+int64(to) {
			n++
		}
	}
	return n
}

// Windowed is how much was admitted of the first client in the window that ends at each multiple of
// step, as a multiple of the limit.
func (r Result) Windowed(limit int64, window, step time.Duration) (at, share []float64) {
	first, last := 0, 0
	for t := step; t <= r.Length; t += step {
		for last < len(r.Hits) && r.Hits[last].At <= epoch+int64(t) {
			last++
		}
		for first < last && r.Hits[first].At <= epoch+int64(t-window) {
			first++
		}
		at, share = append(at, t.Seconds()), append(share, float64(last-first)/float64(limit))
	}
	return at, share
}

// A meter watches the requests of a run. truth is one centralized limiter for each client that gets
// what was admitted.
type meter[S any] struct {
	sc     Scenario[S]
	exact  algorithms.Machine[S]
	limit  algorithms.Limit
	truth  []S
	asked  []int // of each client, after Warm
	wrong  int
	result Result
}

func newMeter[S any](sc Scenario[S]) *meter[S] {
	clients := max(1, sc.Clients)
	return &meter[S]{
		sc: sc, exact: algorithms.MachineOf[S](sc.Algorithm.Kind), limit: sc.Algorithm.Compile(),
		truth: make([]S, clients), asked: make([]int, clients), result: Result{Length: sc.Load.length()},
	}
}

// count notes one request and its answer.
func (m *meter[S]) count(a arrival, d algorithms.Result) {
	r, truth := &m.result, &m.truth[a.of]
	r.Requests++
	warm := a.at >= epoch+int64(m.sc.Warm)
	if warm {
		m.asked[a.of]++
	}
	if d.Estimated {
		r.Estimated++
	}
	if d.Allowed {
		r.Hits = append(r.Hits, Hit{a.at, a.node, a.of})
		if !m.exact.Take(truth, m.limit, a.at, m.sc.cost(), 0).Allowed {
			m.exact.Penalize(truth, m.limit, a.at, m.sc.cost())
		}
		return
	}
	if warm && m.exact.Take(truth, m.limit, a.at, 0, 0).Remaining >= m.sc.cost() {
		m.wrong++
	}
}

// done works out what depends on all requests.
func (m *meter[S]) done() Result {
	r, sc := &m.result, m.sc
	r.Admitted = len(r.Hits)
	limit, window := sc.Algorithm.Limit/sc.cost(), sc.Algorithm.Window
	from := epoch + int64(sc.Warm)
	recent := make([][]int64, len(m.truth)) // of each client, what was admitted in the last window
	most, steady := 0, 0
	for _, h := range r.Hits {
		if h.At < from {
			continue
		}
		steady++
		of := append(recent[h.Of], h.At)
		for of[0] <= h.At-int64(window) {
			of = of[1:]
		}
		recent[h.Of] = of
		most = max(most, len(of))
	}
	allowed := float64(limit) * (r.Length - sc.Warm).Seconds() / window.Seconds()
	due, asked := 0.0, 0
	for _, n := range m.asked {
		due += min(float64(n), allowed)
		asked += n
	}
	r.Peak = float64(most) / float64(limit)
	r.Mean = float64(steady) / max(1, due)
	r.Wrong = float64(m.wrong) / float64(max(1, asked))
	return *r
}

// sharedCalls counts the calls of sync_rate strict: of each node and client one is under way, and
// what comes meanwhile shares the next.
type sharedCalls struct {
	trip time.Duration
	// When the call under way ends, and the one that waits for it; 0 for none.
	ends  map[[2]int][2]int64
	calls int
}

func newSharedCalls(trip time.Duration) *sharedCalls {
	return &sharedCalls{trip: trip, ends: make(map[[2]int][2]int64)}
}

func (f *sharedCalls) ask(a arrival) {
	which := [2]int{a.node, a.of}
	e := f.ends[which]
	if a.at >= e[0] {
		e = [2]int64{e[1], 0}
	}
	switch {
	case a.at >= e[0]:
		e[0] = a.at + int64(f.trip)
		f.calls++
	case e[1] == 0:
		e[1] = e[0] + int64(f.trip)
		f.calls++
	}
	f.ends[which] = e
}
