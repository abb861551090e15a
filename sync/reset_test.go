package ratesync

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// resetScenarios are what happens around a reset.
var resetScenarios = []string{
	"quiet", "in the first second of an epoch", "in the last second of an epoch", "after FLUSHALL", "before FLUSHALL",
	"after a failover", "before a failover", "with a node killed a minute ago", "with a newcomer", "with late messages",
	"with a node that is late", "with a node that is an epoch late", "with requests meanwhile", "twice", "of all keys", "with refunds of before",
	"with responses of before",
}

// After all nodes have applied a reset, all of the limit is there once, in all nodes together,
// whatever happens around it.
func TestAResetGivesAllOfTheLimitOnce(t *testing.T) {
	t.Parallel()
	eachReset(t, false)
}

// eachReset runs scenarios of each kind of limit, with resets by operators, or by a response of one
// node, of which the others hear when they sync.
//
// bubble: runReset runs in one.
func eachReset(t *testing.T, byResponse bool) {
	all := maps.Clone(kindsOfLimits)
	all["burst"] = algorithms.Params{Kind: algorithms.TokenBucket, Burst: 90}
	for name, p := range all {
		p.Limit, p.Queue = 40, 39
		run := algorithms.ByState(p.Kind, runReset[algorithms.WindowState], runReset[algorithms.BucketState], runReset[algorithms.LogState])
		for i, rate := range []time.Duration{200 * time.Millisecond, time.Second, time.Minute} {
			if redistest.Raced && rate > 200*time.Millisecond {
				continue
			}
			for what, scenario := range resetScenarios {
				if byResponse && (scenario == "of all keys" || scenario == "with a node that is an epoch late") {
					continue // what others spend before they hear of it is forgiven
				}
				// A minute takes far more cycles to get through than the shorter ones do.
				if (what+int(p.Kind)+i)%[]int{16, 4, 22}[i] != 0 && !redistest.Chaos {
					continue
				}
				t.Run(fmt.Sprint(name, " ", rate, " ", scenario), func(t *testing.T) {
					p.Window = 4*time.Minute + 60*rate
					synctest.Test(t, func(t *testing.T) { run(t, p, rate, what, byResponse) })
				})
			}
		}
	}
}

// A resetWorld is some nodes, of which each knows the resets that it has applied.
type resetWorld[S any] struct {
	*schedule[S]
	scenario string
	set      *reset.Set
	// byResponse is set where a response of the first node resets the key.
	byResponse bool

	spent int64 // since the reset, where it counts
	since int64 // when epochLate began, 0 for never
}

const resetKey = "the key"

// runReset is one scenario around a reset.
//
// bubble: TestAResetGivesAllOfTheLimitOnce runs it in one.
func runReset[S any](t *testing.T, p algorithms.Params, rate time.Duration, what int, byResponse bool) {
	seed := uint64(what)
	if resetScenarios[what] == "with responses of before" {
		p.Reserves = p.Kind != algorithms.LeakyBucket // which keeps its slots
	}
	s := newSchedule[S](t, seed, p, rate, resetKey)
	w := &resetWorld[S]{schedule: s, scenario: resetScenarios[what], byResponse: byResponse}
	for range 3 {
		s.join()
	}
	w.before()
	w.reset()
	if w.scenario == "twice" {
		w.spend()
		w.reset()
	}
	w.after()
	w.check()
	w.reservesNothing()
	s.close()
}

// rest is long enough for all to be synced, and for a node to be asked again.
//
// bubble: of runReset.
func (w *resetWorld[S]) rest() { time.Sleep(w.aRest()) }

func (w *resetWorld[S]) aRest() time.Duration { return 3*w.rate + 3*time.Second }

// spend has the nodes spend all of the limit, and more than that before they know of each other.
func (w *resetWorld[S]) spend() {
	for range 2 {
		for _, m := range w.nodes {
			w.take(m, resetKey, 25)
		}
		w.rest()
	}
}

// until sleeps until so long before (or after) the next boundary of an epoch.
//
// bubble: of runReset.
func (w *resetWorld[S]) until(before time.Duration) {
	left := w.span - time.Duration(wallClock()%int64(w.span))
	if left -= before; left < 0 {
		left += w.span
	}
	time.Sleep(left)
}

// before is what the nodes spend, and what happens then.
//
// bubble: of runReset.
func (w *resetWorld[S]) before() {
	w.until(w.span * 9 / 10)
	w.spend()
	switch w.scenario {
	case "after FLUSHALL":
		w.store.forget(0, true)
	case "before a failover":
		w.saved = w.store.Values()
	case "after a failover":
		w.saved = w.store.Values()
		for _, m := range w.nodes {
			w.take(m, resetKey, 5)
		}
		time.Sleep(w.rate)
		w.failOver()
	case "with a node killed a minute ago":
		w.end(w.nodes[2], true)
		time.Sleep(time.Minute)
	case "with late messages":
		w.net.become(&w.net.two, .8)
		w.spend()
		w.net.heal()
	case "in the last second of an epoch":
		w.until(900 * time.Millisecond)
	case "in the first second of an epoch":
		w.until(w.span - 100*time.Millisecond)
	case "with a node that is an epoch late":
		w.until(time.Second)
	}
}

// reset has every node apply a reset, one after the other.
func (w *resetWorld[S]) reset() {
	if w.byResponse {
		w.forgive()
		return
	}
	stamp := w.store.time().UnixMicro()
	r := reset.Reset{Stamp: stamp, At: stamp * 1000, Until: stamp*1000 + int64(w.alg.Counts()+time.Minute)}
	w.set = &reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf([]byte(resetKey)): r}}
	if w.scenario == "of all keys" {
		w.set = &reset.Set{All: r}
	}
	for i, m := range w.nodes {
		switch {
		case i == 0:
		case w.scenario == "with a node that is late", w.scenario == "with requests meanwhile":
			w.take(w.nodes[0], resetKey, 3)
			w.take(m, resetKey, 3)
			time.Sleep(time.Duration(w.random.Int64N(int64(2*w.rate + time.Second))))
		case w.scenario == "with a node that is an epoch late" && i == 1:
			w.epochLate()
		}
		m.table.Reset(wallClock(), w.set)
		if again := m.table.Reset(wallClock(), w.set); again != 0 {
			w.t.Errorf("a reset that is read again forgives %d", again)
		}
	}
}

// epochLate has the first node, which knows of the reset, spend something in its epoch. The others
// spend in the next one, and know of the reset only after that, or by an answer. A bucket has no
// epochs: what a node spends of it before it knows is forgiven.
func (w *resetWorld[S]) epochLate() {
	w.since = wallClock()
	first := w.admitted(0, 10)
	w.until(0)
	w.rest()
	for i := range w.nodes[1:] {
		knows := w.nodes[i+1].table.Resets() != nil
		if n := w.admitted(i+1, 4); knows || !w.alg.Kind.Traits().Draining {
			w.spent += n
		}
	}
	w.rest()
	if w.alg.Kind != algorithms.FixedWindow {
		w.spent += first
	}
}

// after is what happens when all have applied it.
func (w *resetWorld[S]) after() {
	switch w.scenario {
	case "before FLUSHALL":
		time.Sleep(w.rate)
		w.store.forget(0, true)
	case "before a failover":
		w.failOver()
	case "with a newcomer":
		w.join()
		w.nodes[3].table.Reset(wallClock(), w.set)
	case "with refunds of before":
		time.Sleep(time.Millisecond)
		for i, m := range w.nodes {
			w.spent += w.admitted(i, 6)
			for _, before := range m.taken {
				m.table.Refund(m.alg.Compile(), keys.KeyOf([]byte(resetKey)), before.Taken, 1)
			}
		}
		w.rest()
	case "with responses of before":
		time.Sleep(time.Millisecond)
		w.respondAfter()
	}
}

// check spends what is left, at first on one node, then on all, as soon as they know of each other.
func (w *resetWorld[S]) check() {
	limit := w.alg.Compile().Size
	takes := time.Duration(4*len(w.nodes)) * w.aRest()
	if w.alg.Kind.Traits().Windowed && w.span-time.Duration(wallClock()%int64(w.span)) < takes+time.Minute {
		w.until(w.span - time.Second) // so that nobody gets a new window meanwhile
	}
	if w.scenario == "with a node that is an epoch late" && w.alg.Kind.Traits().Windowed {
		w.agree()
	}
	began := wallClock()
	all := w.admitted(0, int(limit/4))
	if least := limit/4 - 12; all != limit/4 && (w.scenario == "quiet" || all+w.spent < least) {
		w.t.Errorf("a node admits %d of %d at once after all have applied the reset", all, limit/4)
	}
	for i := range 2 * len(w.nodes) {
		node := (i + 1) % len(w.nodes)
		w.admitted(node, 0)
		w.rest()
		if i < len(w.nodes) {
			all += w.admitted(node, int(limit/4))
		} else {
			all += w.admitted(node, int(limit))
		}
		w.rest()
	}
	all += w.spent
	if w.since > 0 && w.alg.Kind.Traits().Draining {
		began = w.since // what was spent then drains since
	}
	passed := float64(wallClock()-began) / float64(w.alg.Window)
	most := limit + int64(math.Ceil(passed*float64(w.alg.Limit))) + 1
	least := limit
	switch w.scenario {
	case "with requests meanwhile", "with a node that is late":
		// What was spent since the reset counts, where it was spent after it was applied there.
		// What was spent before that does not.
		least, most = least-12, most+12
	}
	if w.alg.Kind == algorithms.SlidingLog || w.alg.Kind.Traits().Draining {
		least-- // parts of a request
	}
	if all < least || all > most {
		w.t.Errorf("the nodes admit %d after all have applied the reset, want %d to %d", all, least, most)
	}
}

// agree checks that all nodes know the same.
func (w *resetWorld[S]) agree() {
	var left []int64
	for range 2 {
		left = left[:0]
		for _, m := range w.nodes {
			n, _ := m.table.Room(m.alg.Compile(), keys.KeyOf([]byte(resetKey)), []byte(resetKey), wallClock())
			left = append(left, n)
		}
		for i := range w.nodes {
			w.admitted(i, 0)
		}
		w.rest()
	}
	if slices.Max(left) != slices.Min(left) {
		w.t.Errorf("the nodes have %v left, want the same", left)
	}
}

// admitted is how many of some requests a node admits. With none it only asks for the others'
// counts.
func (w *resetWorld[S]) admitted(node, n int) (admitted int64) {
	m := w.nodes[node]
	if n == 0 { // asks what the others have spent
		m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(resetKey)), []byte(resetKey), wallClock(), 0, 0)
	}
	for range n {
		if m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(resetKey)), []byte(resetKey), wallClock(), 1, 0).Allowed {
			admitted++
		}
	}
	return admitted
}

// A node that has not heard of a reset is told by the fill of a bucket.
func TestABucketIsToldOfAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 40, Window: time.Hour}
		s := newSchedule[algorithms.BucketState](t, 1, p, time.Second, resetKey)
		w := &resetWorld[algorithms.BucketState]{schedule: s, scenario: "quiet"}
		s.join()
		s.join()
		w.spend()
		knows := w.nodes
		w.nodes = knows[:1]
		w.reset()
		w.take(knows[0], resetKey, 5)
		w.rest()
		w.nodes = knows
		w.take(knows[1], resetKey, 1)
		w.rest()
		if got, want := knows[1].table.Resets().Of(keys.IDOf([]byte(resetKey))).Stamp, knows[0].table.Resets().Of(keys.IDOf([]byte(resetKey))).Stamp; got != want || want == 0 {
			t.Errorf("the second node counts under %d, want %d", got, want)
		}
		if got := w.admitted(1, 40); got < 33 || got > 36 {
			t.Errorf("the second node admits %d after it was told, want 35", got)
		}
		s.close()
	})
}

// A record is a control record that is the same here and in the store, or not.
type record struct {
	noRecord
	equal *atomic.Bool
}

func (r record) IsEqual() bool                      { return r.equal.Load() }
func (r record) Merge(HeartbeatReply) time.Duration { return 50 * time.Millisecond }

// The first shard of a Cluster has the control record. While only others can't be reached, a record
// that can't be read, as another program uses its key, stops no sync.
func TestOnlyTheFirstShardPausesSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			unreachable uint64
			paused      bool
		}{{unreachable: 1 << 5}, {1, true}, {allShards, true}, {}} {
			n := newVnode(t)
			n.rep.SetRecord(record{equal: new(atomic.Bool)})
			n.rep.unreachable.Store(c.unreachable)
			if _, err := n.rep.heartbeat(t.Context()); err != nil {
				t.Fatal(err)
			}
			if paused := n.rep.paused.Load() != nil; paused != c.paused {
				t.Errorf("with the shards %b unreachable before a heartbeat, syncs are paused: %t, want %t", c.unreachable, paused, c.paused)
			}
		}
	})
}

// After a start or a loss nothing is synced until the control record is known, or a second has
// passed: epochs that were reset meanwhile have other names.
func TestSyncsWaitForTheControlRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		equal := new(atomic.Bool)
		p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 40, Window: time.Hour}
		s := newSchedule[algorithms.WindowState](t, 1, p, 100*time.Millisecond, resetKey)
		m := s.member()
		m.rep.SetRecord(record{equal: equal})
		s.configure(m)
		s.nodes = append(s.nodes, m)
		expect := func(what string, after time.Duration, synced bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := len(s.store.counting()) > 0; got != synced {
				t.Errorf("%s, %v later: counts are in the store: %t, want %t", what, after, got, synced)
			}
		}
		s.take(m, resetKey, 5)
		expect("after the start", 900*time.Millisecond, false)
		expect("after the start", 400*time.Millisecond, true)
		s.store.forget(0, true)
		time.Sleep(60 * time.Millisecond) // until a heartbeat has noticed
		s.take(m, resetKey, 1)
		expect("after a loss", 500*time.Millisecond, false)
		equal.Store(true)
		expect("when the record is known", 300*time.Millisecond, true)
		s.close()
	})
}
