package scenario

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

// isAlone reports whether a node is cut off, or has just come back and may not have replies of
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

// A Rollout is a case whose nodes don't have the same parameters. What it admits lies between what
// the least and what the most generous of them admit, each from one store with the same requests.
type Rollout struct {
	Name string
	// Run, Least and Most run it, for a seed.
	Run, Least, Most func(seed uint64) Result
	// Cut are the times in which nodes are cut off: what they admit by themselves then is beyond
	// what a store can know.
	Cut []Cut
}

// Within is what a run admitted, as a part of what the most generous parameters admit, without what
// nodes admitted while they were cut off, and as a part of what the least generous do.
func (r Rollout) Within(seed uint64) (most, least float64) {
	got := r.Run(seed)
	alone := 0
	for _, c := range r.Cut {
		for _, h := range got.Hits {
			if h.Node == c.Node && h.At >= epoch+int64(c.From) && h.At < epoch+int64(c.To) {
				alone++
			}
		}
	}
	return float64(got.Admitted-alone) / float64(r.Most(seed).Admitted), float64(got.Admitted) / float64(r.Least(seed).Admitted)
}

// A bucketSize is a limit, which is what flows in per window, and how many the bucket holds.
type bucketSize struct{ limit, size int64 }

// bucketOf makes a bucket of a kind and window.
type bucketOf func(bucketSize) algorithms.Params

func bucketsOf(kind string, window time.Duration) bucketOf {
	return func(s bucketSize) algorithms.Params {
		p := algorithms.Params{Limit: s.limit, Window: window, Burst: s.size}
		switch kind {
		case "token_bucket":
			p.Kind = algorithms.TokenBucket
		case "gcra":
			p.Kind = algorithms.GCRA
		case "leaky_bucket":
			p.Kind, p.Burst, p.Queue = algorithms.LeakyBucket, 0, s.size-1
		}
		return p
	}
}

// A rolloutCase is three nodes with the first three sizes, and what else happens. A fourth size is
// one that a node is changed to.
type rolloutCase struct {
	name   string
	window time.Duration
	load   Load
	sizes  []bucketSize
	change func(sc *Buckets, of bucketOf)
}

// Rollouts returns cases of three nodes with parameters of their own at sync_rate 200ms, and a
// client that asks for three times the highest limit.
func Rollouts(kind string) (all []Rollout) {
	for _, c := range slices.Concat(mixedCases(), faultCases()) {
		all = append(all, c.of(bucketsOf(kind, c.window)))
	}
	return all
}

func (c rolloutCase) of(of bucketOf) Rollout {
	least, most := c.sizes[0], c.sizes[0]
	sc := Buckets{Model: Shipped, Rate: sec / 5, Nodes: 3, Latency: near, Load: c.load}
	for _, s := range c.sizes {
		sc.Each = append(sc.Each, Parameters{Algorithm: of(s)})
		least = bucketSize{min(least.limit, s.limit), min(least.size, s.size)}
		most = bucketSize{max(most.limit, s.limit), max(most.size, s.size)}
	}
	sc.Each, sc.Algorithm = sc.Each[:min(3, len(sc.Each))], of(most)
	if c.change != nil {
		c.change(&sc, of)
	}
	exact := func(p algorithms.Params) func(seed uint64) Result {
		return func(seed uint64) Result { sc := sc; sc.Seed, sc.Algorithm = seed, p; return sc.Exact() }
	}
	return Rollout{
		Name: c.name, Run: func(seed uint64) Result { sc := sc; sc.Seed = seed; return sc.Run() },
		Least: exact(of(least)), Most: exact(of(most)), Cut: sc.Cuts,
	}
}

// asks is a client that asks for three times a limit.
func asks(limit int64, window, d time.Duration) Load {
	return Constant(3*float64(limit)/window.Seconds(), d)
}

// mixedCases are limits that differ, and limits that are changed node by node.
func mixedCases() []rolloutCase {
	return []rolloutCase{
		{"limits 50, 100, 100 in 10m, `burst 100`", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {100, 100}, {100, 100}}, nil},
		{"limits 50, 100, 200 in 10m, `burst 100`", 10 * time.Minute, asks(200, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {100, 100}, {200, 100}}, nil},
		{"`burst` 30, 60, 100 at 100 in 10m", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{100, 30}, {100, 60}, {100, 100}}, nil},
		{"a rollout from 50 to 100 in 10m, node by node, each reloaded", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				for i := range 3 {
					sc.Reloads = append(sc.Reloads, Reload{i, time.Duration(i+1) * 2 * time.Minute, Parameters{Algorithm: of(bucketSize{100, 100})}})
				}
			}},
		{"the same, each restarted", 10 * time.Minute, asks(100, 10*time.Minute, 20*time.Minute), []bucketSize{{50, 100}, {50, 100}, {50, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				for i := range 3 {
					at := time.Duration(i+1) * 2 * time.Minute
					sc.Reloads = append(sc.Reloads, Reload{i, at, Parameters{Algorithm: of(bucketSize{100, 100})}})
					sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at, Clean: true})
				}
			}},
		{"a reload from 50 to 100 in 10m beside a node that starts after it", 10 * time.Minute, asks(100, 10*time.Minute, 15*time.Minute), []bucketSize{{50, 100}, {100, 100}, {100, 100}},
			func(sc *Buckets, of bucketOf) {
				sc.Reloads = []Reload{{0, 100 * sec, Parameters{Algorithm: of(bucketSize{100, 100})}}}
				sc.Restarts = []Restart{{2, 150 * sec, false}}
			}},
	}
}

// faultCases are the same with nodes that end or are cut off, and a store that forgets.
func faultCases() []rolloutCase {
	return []rolloutCase{
		{"1 in 1m with `burst` 200, 200, 100", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}}, nil},
		{"the same, a node killed every 100 s", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Restarts = restarts(100*sec, 20*time.Minute, 3) }},
		{"the same, silent for 12 minutes, and all killed meanwhile", time.Minute, Load{{For: 200 * sec, Rate: 3}, {For: 700 * sec}, {For: 300 * sec, Rate: 3}}, []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) {
				sc.Restarts = []Restart{{0, 890 * sec, false}, {1, 891 * sec, false}, {2, 892 * sec, false}}
			}},
		{"the same, one node cut off for 400 s", time.Minute, Constant(1, 20*time.Minute), []bucketSize{{1, 200}, {1, 200}, {1, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 100 * sec, 500 * sec}} }},
		{"limits 50, 100, 200 in 10m, one node cut off for 15 minutes", 10 * time.Minute, asks(200, 10*time.Minute, 40*time.Minute), []bucketSize{{50, 100}, {100, 100}, {200, 100}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 5 * time.Minute, 20 * time.Minute}} }},
		{"60 in 1m, `burst` 60, one node cut off for 800 s", time.Minute, asks(60, time.Minute, 20*time.Minute), []bucketSize{{60, 60}, {60, 60}, {60, 60}},
			func(sc *Buckets, _ bucketOf) { sc.Cuts = []Cut{{0, 100 * sec, 900 * sec}} }},
		{"60 in 1m, `burst` 60, 40, 60, FLUSHALL every 100 s", time.Minute, asks(60, time.Minute, 10*time.Minute), []bucketSize{{60, 60}, {60, 40}, {60, 60}},
			func(sc *Buckets, _ bucketOf) {
				for at := 50 * sec; at < 10*time.Minute; at += 100 * sec {
					sc.Flushes = append(sc.Flushes, at)
				}
			}},
		{"the same, and all killed two seconds later", time.Minute, asks(60, time.Minute, 10*time.Minute), []bucketSize{{60, 60}, {60, 40}, {60, 60}},
			func(sc *Buckets, _ bucketOf) {
				for at := 50 * sec; at < 10*time.Minute; at += 100 * sec {
					sc.Flushes = append(sc.Flushes, at)
					for i := range 3 {
						sc.Restarts = append(sc.Restarts, Restart{Node: i, At: at + 2*sec + time.Duration(i)*sec/2})
					}
				}
			}},
		{"100, 200, 400 in 1s, `burst` 10, `sync_rate` 200ms, 1s, 300ms", sec, asks(400, sec, 30*sec), []bucketSize{{100, 10}, {200, 10}, {400, 10}},
			func(sc *Buckets, _ bucketOf) { sc.Each[1].Rate, sc.Each[2].Rate = sec, 300*time.Millisecond }},
	}
}

// restarts kills one node after the other.
func restarts(every, until time.Duration, nodes int) (all []Restart) {
	for i := 1; time.Duration(i)*every < until; i++ {
		all = append(all, Restart{Node: i % nodes, At: time.Duration(i) * every})
	}
	return all
}
