package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
)

var drainingKinds = []string{"token_bucket", "gcra", "leaky_bucket"}

// Whatever the nodes' parameters are and whatever happens, little more is admitted than by the most
// generous of them from one store, and not much less than by the least generous.
func TestNodesOfARolloutShareWhatTheyCount(t *testing.T) {
	for _, kind := range drainingKinds {
		for i, r := range Rollouts(kind) {
			most, least := r.Within(uint64(i))
			within(t, kind+": "+r.Name+": admitted, as a part of what the most generous parameters admit", most, 0, 1.05)
			within(t, kind+": "+r.Name+": admitted, as a part of what the least generous parameters admit", least, .9, math.Inf(1))
		}
	}
}

// A history is what happens to three nodes with one client: their parameters, its requests, and
// what happens to them.
type history struct {
	Buckets
	of     []algorithms.Params
	limits []int64
	sizes  []int64
	window time.Duration
}

// drawHistory makes one. Requests come at up to three times the highest limit, with pauses.
func drawHistory(t *rapid.T) *history {
	h := &history{window: rapid.SampledFrom([]time.Duration{5 * sec, 20 * sec, 60 * sec}).Draw(t, "window")}
	of := bucketsOf(rapid.SampledFrom(drainingKinds).Draw(t, "kind"), h.window)
	limit, size := rapid.Int64Range(1, 120), rapid.Int64Range(5, 200)
	h.Buckets = Buckets{Model: Shipped, Rate: sec / 5, Nodes: 3, Latency: near, Seed: rapid.Uint64Range(0, 1000).Draw(t, "seed")}
	for i := range 3 {
		l, s := limit.Draw(t, "limit"), size.Draw(t, "size")
		h.limits, h.sizes, h.of = append(h.limits, l), append(h.sizes, s), append(h.of, of(bucketSize{l, s}))
		h.Each = append(h.Each, Parameters{Algorithm: h.of[i], Rate: rapid.SampledFrom([]time.Duration{sec / 10, sec / 5, sec}).Draw(t, "rate")})
	}
	h.Algorithm = h.of[0]
	top := float64(slices.Max(h.limits)) / h.window.Seconds()
	for range rapid.IntRange(1, 4).Draw(t, "phases") {
		busy := Phase{For: h.part(t, "busy", 4), Rate: min(60, rapid.Float64Range(.3, 3).Draw(t, "demand")*top)}
		// All to one node, and all of a burst.
		if node := rapid.IntRange(-1, 2).Draw(t, "to"); node >= 0 {
			busy.To = make([]float64, 3)
			busy.To[node] = 1
			busy.For, busy.Rate = h.part(t, "burst", 1), max(busy.Rate, 20)
		}
		h.Load = append(h.Load, busy, Phase{For: h.part(t, "idle", 3)})
	}
	return h
}

// part is a time of up to so many windows, and not too short for something to happen.
func (h *history) part(t *rapid.T, what string, most int64) time.Duration {
	return sec + time.Duration(rapid.Int64Range(0, most*int64(h.window)).Draw(t, what))
}

// instant is some time before the end.
func (h *history) instant(t *rapid.T) time.Duration {
	return time.Duration(rapid.Int64Range(int64(sec), int64(h.Load.length())).Draw(t, "at"))
}

// trouble adds what may happen: reloads that swap parameters, restarts, a store that forgets, a
// node cut off. lost bounds what nodes or the store can forget of it.
func (h *history) trouble(t *rapid.T) (lost float64) {
	for range rapid.IntRange(0, 4).Draw(t, "events") {
		node, at := rapid.IntRange(0, 2).Draw(t, "node"), h.instant(t)
		switch rapid.IntRange(0, 3).Draw(t, "event") {
		case 0:
			to := rapid.IntRange(0, 2).Draw(t, "to")
			h.Reloads = append(h.Reloads, Reload{node, at, Parameters{Algorithm: h.of[to]}})
		case 1:
			h.Restarts = append(h.Restarts, Restart{Node: node, At: at})
			lost += h.unseen(1)
		case 2:
			h.Flushes = append(h.Flushes, at)
			lost += h.unseen(3)
		case 3:
			h.Cuts = append(h.Cuts, Cut{node, at, at + h.part(t, "cut", 4)})
			lost += h.unseen(3)
		}
	}
	return lost + h.forgotten()
}

// forgotten is what stood in the buckets of nodes that ended or were cut off after the store forgot
// it and before they told it again. A node that is asked for the first time then doesn't know it.
func (h *history) forgotten() (lost float64) {
	most := float64(slices.Max(h.sizes))
	for _, flush := range h.Flushes {
		told := flush + 2*sec // by all, at the latest
		for _, c := range h.Cuts {
			if c.From < told && c.To+3*sec > flush {
				told, lost = max(told, c.To+3*sec), lost+most
			}
		}
		for _, r := range h.Restarts {
			if r.At >= flush && r.At < told {
				lost += most
			}
		}
	}
	return lost
}

// unseen is what so many nodes can admit before the others hear of it: in the first round trip, or
// in the longest interval.
func (h *history) unseen(nodes float64) float64 {
	return nodes * (1 + float64(slices.Max(h.limits))*1.2/h.window.Seconds())
}

// At any time no more is admitted than the largest burst and what has flowed in at the highest
// limit, except for what nodes admit by themselves while they are cut off; and in the end no less
// than nine tenths of what the least generous admits by itself.
func TestWhatNodesOfARolloutAdmitIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		slack := h.unseen(3) + h.trouble(t)
		r := h.Run()
		alone := 0
		for i, hit := range r.Hits {
			since := time.Duration(hit.At - epoch)
			if h.isAlone(hit.Node, since) {
				alone++
			}
			bound := float64(slices.Max(h.sizes)) + float64(slices.Max(h.limits))*since.Seconds()/h.window.Seconds()
			if got := float64(i + 1 - alone); got > 1.05*bound+slack {
				t.Fatalf("%v after the start: %.0f admitted, %d more by nodes that were cut off; want %.1f at most, give or take %.1f", since, got, alone, bound, slack)
			}
		}
		least := math.MaxInt
		for _, of := range h.of {
			sc := h.Buckets
			sc.Algorithm = of
			least = min(least, sc.Exact().Admitted)
		}
		if got := float64(r.Admitted); got < .9*float64(least)-slack {
			t.Fatalf("%.0f admitted, want %d at least, give or take %.1f", got, least, slack)
		}
	})
}

// isAlone reports whether a node is cut off, or has just come back and may not have heard of
// yet.
func (h *history) isAlone(node int, at time.Duration) bool {
	for _, c := range h.Cuts {
		if c.Node == node && at >= c.From && at < c.To+3*sec {
			return true
		}
	}
	return false
}

// What stands in a bucket counts for a node that is asked for the first time in long, however long
// ago it was admitted and whatever has happened to the node that admitted it.
func TestWhatStandsInABucketIsNotForgotten(t *testing.T) {
	only := func(node int) []float64 {
		to := make([]float64, 3)
		to[node] = 1
		return to
	}
	for name, happens := range map[string]func(sc *Buckets){
		"nothing":                     func(*Buckets) {},
		"it was cut off all the time": func(sc *Buckets) { sc.Cuts = []Cut{{0, 10 * sec, 500 * sec}} },
		"it is killed":                func(sc *Buckets) { sc.Restarts = []Restart{{0, 400 * sec, false}} },
		"the other is killed":         func(sc *Buckets) { sc.Restarts = []Restart{{1, 400 * sec, false}} },
		"all are killed": func(sc *Buckets) {
			sc.Restarts = []Restart{{0, 400 * sec, false}, {1, 401 * sec, false}, {2, 402 * sec, false}}
		},
		"the store forgets":               func(sc *Buckets) { sc.Flushes = []time.Duration{400 * sec} },
		"the other is reloaded":           func(sc *Buckets) { sc.Reloads = []Reload{{1, 400 * sec, sc.Each[1]}} },
		"the other has another sync_rate": func(sc *Buckets) { sc.Each[1].Rate = 150 * sec },
	} {
		for _, kind := range drainingKinds {
			sc := Buckets{Algorithm: bucketsOf(kind, 60*sec)(bucketSize{1, 200}), Model: Shipped, Rate: sec / 5, Nodes: 3, Latency: near, Each: make([]Parameters, 3), Load: Load{
				{For: 5 * sec, Rate: 2}, // all know the key
				{For: 10 * sec},
				{For: 15 * sec, Rate: 10, To: only(0)},  // some 150 in a burst
				{For: 480 * sec, Rate: .1, To: only(0)}, // one goes on
				{For: 100 * sec, Rate: 10, To: only(1)}, // the other is asked
			}}
			happens(&sc)
			within(t, kind+": "+name+": admitted, as a part of what one store admits", float64(sc.Run().Admitted)/float64(sc.Exact().Admitted), .95, 1.05)
		}
	}
}
