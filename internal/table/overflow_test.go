package table

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A crowded table has one key that keeps its slot, and others that find one or don't, as max_keys
// is.
type crowded[S any] struct {
	*Table[S]
	alg        algorithms.Params
	background SyncConfig
	now        int64
}

var occupant, guest = []byte("occupant"), []byte("guest")

func newCrowded[S any](alg algorithms.Params, rate time.Duration) *crowded[S] {
	c := &crowded[S]{Table: of[S](alg, 1), alg: alg, background: SyncConfig{Params: alg, Rate: rate}, now: t0 - t0%int64(time.Hour)}
	c.Configure(c.background, 1)
	c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
	return c
}

// ask asks for one of the guest's units.
func (c *crowded[S]) ask() Taken {
	return c.Take(c.alg.Compile(), keys.KeyOf(guest), guest, c.now, 1, allWaits)
}

// spend asks until it is denied, and returns how often it was admitted.
func (c *crowded[S]) spend() (admitted int64) {
	for range 10_000 {
		if !c.ask().Allowed {
			return admitted
		}
		admitted++
	}
	return admitted
}

// room lets so many keys have a counter of their own.
func (c *crowded[S]) room(maxKeys int) { c.Configure(c.background, maxKeys) }

// eachAlgorithm runs a test with each algorithm: at most size at once, limit in a window.
func eachAlgorithm(t *testing.T, limit, size int64, window time.Duration, test func(t *testing.T, alg algorithms.Params)) {
	for name, alg := range map[string]algorithms.Params{
		"fixed_window":       fixed(limit, window),
		"sliding_window":     sliding(limit, window),
		"sliding_window, 12": algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: window, Buckets: 12},
		"sliding_log":        algorithms.Params{Kind: algorithms.SlidingLog, Limit: limit, Window: window},
		"token_bucket":       algorithms.Params{Kind: algorithms.TokenBucket, Limit: limit, Window: window, Burst: size},
		"gcra":               algorithms.Params{Kind: algorithms.GCRA, Limit: limit, Window: window, Burst: size},
		"leaky_bucket":       algorithms.Params{Kind: algorithms.LeakyBucket, Limit: limit, Window: window, Queue: size - 1},
	} {
		t.Run(name, func(t *testing.T) { test(t, alg) })
	}
}

// withState calls the one of three functions that has the state of the limit's kind.
func withState(alg algorithms.Params, windows, buckets, logs func(algorithms.Params)) {
	switch {
	case alg.Kind.Traits().Windowed:
		windows(alg)
	case alg.Kind.Traits().Draining:
		buckets(alg)
	default:
		logs(alg)
	}
}

// A key that has spent its limit in the sketch has spent it when it gets a counter of its own, and
// waits no longer than in the sketch.
func TestWhatWasSpentInTheSketchIsNotForgotten(t *testing.T) {
	for _, rate := range []time.Duration{0, time.Second} {
		eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
			withState(alg,
				func(alg algorithms.Params) { notForgotten[algorithms.WindowState](t, alg, rate) },
				func(alg algorithms.Params) { notForgotten[algorithms.BucketState](t, alg, rate) },
				func(alg algorithms.Params) { notForgotten[algorithms.LogState](t, alg, rate) })
		})
	}
}

func notForgotten[S any](t *testing.T, alg algorithms.Params, rate time.Duration) {
	c := newCrowded[S](alg, rate)
	if got := c.spend(); got != 100 {
		t.Fatalf("in the sketch %d are admitted, want 100", got)
	}
	c.room(10)
	c.now += int64(20 * time.Millisecond)
	d := c.ask()
	if d.Overflow {
		t.Fatal("the key has no counter of its own, though there is room")
	}
	if d.Allowed {
		t.Fatalf("20 ms after 100 of 100 were spent in the sketch, %d more are admitted", 1+c.spend())
	}
	if d.Retry <= 0 || d.Retry > 2*time.Minute {
		t.Fatalf("denied for %v, want more than 0 and at most two windows", d.Retry)
	}
	c.now += int64(d.Retry) - 1
	if c.ask().Allowed {
		t.Errorf("admitted before RetryAfter")
	}
	c.now++
	if !c.ask().Allowed {
		t.Errorf("denied after RetryAfter, %v", d.Retry)
	}
	c.now += int64(2 * time.Minute)
	if got := c.spend(); got != 100 {
		t.Errorf("two windows later %d are admitted, want 100", got)
	}
}

// A key that waits for what it has spent in its slot waits for what it has spent in the sketch as
// well, whichever takes longer.
func TestADenialWaitsForTheSlotAndTheSketch(t *testing.T) {
	for _, rate := range []time.Duration{0, time.Second} {
		eachAlgorithm(t, 1, 1, time.Minute, func(t *testing.T, alg algorithms.Params) {
			withState(alg,
				func(alg algorithms.Params) { waitsForBoth[algorithms.WindowState](t, alg, rate) },
				func(alg algorithms.Params) { waitsForBoth[algorithms.BucketState](t, alg, rate) },
				func(alg algorithms.Params) { waitsForBoth[algorithms.LogState](t, alg, rate) })
		})
	}
}

func waitsForBoth[S any](t *testing.T, alg algorithms.Params, rate time.Duration) {
	for _, later := range []time.Duration{time.Millisecond, 10 * time.Second, 30 * time.Second, 50 * time.Second} {
		c := newCrowded[S](alg, rate)
		if got := c.spend(); got != 1 {
			t.Fatalf("in the sketch %d are admitted, want 1", got)
		}
		c.room(10)
		c.now += int64(later)
		denied := c.ask()
		if denied.Allowed || denied.Overflow {
			continue // what it has spent in the sketch has gone
		}
		c.Penalize(alg.Compile(), keys.KeyOf(guest), denied, 1)
		d := c.ask()
		if d.Allowed {
			t.Fatalf("admitted %v later, after a penalty", later)
		}
		if d.Retry < denied.Retry {
			t.Errorf("%v later: to wait for %v, and after a penalty for %v", later, denied.Retry, d.Retry)
		}
		c.now += int64(d.Retry) - 1
		if c.ask().Allowed {
			t.Errorf("%v later: admitted before RetryAfter", later)
		}
		c.now++
		if !c.ask().Allowed {
			t.Errorf("%v later: denied after RetryAfter, %v", later, d.Retry)
		}
	}
}

// Whatever the algorithm, whenever a key gets a counter of its own or loses it, and whatever steps
// the store's clock takes, no stretch of time has more admissions than the limit at once and twice
// the limit in each window: a forgotten limit would be one more at once.
func TestNoMoreIsAdmittedAroundTheSketch(t *testing.T) {
	for seed := range uint64(4) {
		size := []int64{20, 5, 40}[seed%3]
		eachAlgorithm(t, 20, size, time.Minute, func(t *testing.T, alg algorithms.Params) {
			withState(alg,
				func(alg algorithms.Params) {
					aligned := alg.Kind == algorithms.FixedWindow
					aroundTheSketch[algorithms.WindowState](t, alg, seed, 20, time.Minute, aligned)
				},
				func(alg algorithms.Params) {
					aroundTheSketch[algorithms.BucketState](t, alg, seed, max(size, 20), time.Minute, false)
				},
				func(alg algorithms.Params) {
					aroundTheSketch[algorithms.LogState](t, alg, seed, 20, time.Minute, false)
				})
		})
	}
}

// aroundTheSketch has a guest ask at random times while there is room for it and while there is
// none. aligned bounds what is admitted in each aligned window only: a fixed window admits its
// limit before a boundary, and once more after it.
func aroundTheSketch[S any](t *testing.T, alg algorithms.Params, seed uint64, size int64, window time.Duration, aligned bool) {
	random := rand.New(rand.NewPCG(seed, 9))
	c := newCrowded[S](alg, []time.Duration{0, time.Second}[seed%2])
	var admitted []int64
	var outside, inside int
	for range 200 {
		c.now += random.Int64N(int64(window) / 8)
		if random.IntN(5) == 0 {
			c.room(1000)
		}
		if c.background.Rate > 0 && random.IntN(10) == 0 {
			c.setOffset(c.now, c.Offset()+time.Duration(random.IntN(7)-3)*window, true)
		}
		if random.IntN(20) == 0 { // the guest loses its counter, which is idle
			c.now += 3 * int64(window)
			c.room(1)
			c.Sweep(c.now)
		}
		c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
		for range random.IntN(2 * int(size)) {
			d := c.ask()
			if d.Overflow {
				outside++
			} else {
				inside++
			}
			if d.Allowed {
				admitted = append(admitted, c.now)
			}
		}
	}
	if outside == 0 || inside == 0 {
		t.Fatalf("seed %d: %d decisions in the sketch, %d outside it: want both", seed, outside, inside)
	}
	for i := range admitted {
		for j := i; j < len(admitted) && admitted[j]-admitted[i] < 3*int64(window); j++ {
			bound := size + 2*size*(admitted[j]-admitted[i])/int64(window) + 1
			if aligned {
				bound = size * (1 + admitted[j]/int64(window) - admitted[i]/int64(window))
			}
			if n := int64(j - i + 1); n > bound {
				t.Fatalf("seed %d: %d admitted within %v, want at most %d", seed, n, time.Duration(admitted[j]-admitted[i]), bound)
			}
		}
	}
}

// A step of the store's clock moves what is stored in counters. What is in the sketch goes by the
// caller's clock.
func TestAStepOfTheClockLeavesTheSketch(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 90 * time.Second, -90 * time.Second} {
		c := newCrowded[algorithms.WindowState](fixed(10, time.Minute), time.Second)
		c.spend()
		c.setOffset(c.now, step, true)
		if got := c.spend(); got != 0 {
			t.Errorf("after a step of %v, %d more are admitted, want 0", step, got)
		}
		c.room(10)
		if got := c.spend(); got != 0 {
			t.Errorf("with a counter of its own after a step of %v, %d more are admitted, want 0", step, got)
		}
	}
}

// With count_denied a denied request counts in the sketch, too.
func TestDeniedRequestsCountInTheSketch(t *testing.T) {
	eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
		withState(alg, func(alg algorithms.Params) { denied[algorithms.WindowState](t, alg, true) },
			func(alg algorithms.Params) { denied[algorithms.BucketState](t, alg, false) },
			func(alg algorithms.Params) { denied[algorithms.LogState](t, alg, false) })
	})
}

// denied has a client ask all the time: as long as it does, it stays denied. more says that denied
// requests can fill a window beyond the limit.
func denied[S any](t *testing.T, alg algorithms.Params, more bool) {
	c := newCrowded[S](alg, 0)
	c.spend()
	for range 600 {
		c.now += int64(300 * time.Millisecond)
		c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
		d := c.ask()
		if d.Allowed {
			t.Fatalf("admitted after %v of requests that were denied and charged", time.Duration(c.now%int64(time.Hour)))
		}
		c.Penalize(alg.Compile(), keys.KeyOf(guest), d, 1)
	}
	c.now += int64(time.Minute) - c.now%int64(time.Minute)
	c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
	for range 500 {
		c.Penalize(alg.Compile(), keys.KeyOf(guest), c.ask(), 1)
	}
	c.now += int64(time.Minute + 10*time.Second)
	if got := c.spend(); more && got != 0 || !more && got == 0 {
		t.Errorf("10 s into the window after 500 that were denied, %d are admitted: want none only where they count beyond the limit", got)
	}
	c.now += int64(2 * time.Minute)
	if got := c.spend(); got != 100 {
		t.Errorf("two windows after the last request %d are admitted, want 100", got)
	}
}

// A limit that is raised, and a bound that is, don't make the sketch forget.
func TestTheSketchOutlivesAReload(t *testing.T) {
	for _, limits := range [][]int64{{1, 3, 7, 15, 255, 4095}, {2, 10}, {14, 20}, {254, 300}, {4094, 5000}, {20, 10, 20}} {
		now := t0 - t0%int64(time.Hour)
		tab := New[algorithms.WindowState](algorithms.SlidingWindow, 1)
		spent, configured := int64(0), []int64{}
		for _, limit := range limits {
			alg := fixed(limit, time.Hour)
			tab.Configure(SyncConfig{Params: alg}, 1)
			tab.Take(alg.Compile(), keys.KeyOf(occupant), occupant, now, 1, allWaits)
			for tab.Take(alg.Compile(), keys.KeyOf(guest), guest, now, 1, allWaits).Allowed {
				spent++
			}
			configured = append(configured, limit)
			if want := maxOf(configured); spent != want {
				t.Errorf("limits %v one after the other: %d admitted, want %d", configured, spent, want)
			}
		}
	}
}

func maxOf(ns []int64) (most int64) {
	for _, n := range ns {
		most = max(most, n)
	}
	return most
}

// What a key takes from one sketch is refunded to it, though another one has taken its place.
func TestARefundFindsItsSketch(t *testing.T) {
	now := t0 - t0%int64(time.Hour)
	low, high := fixed(2, time.Hour), fixed(100, time.Hour)
	tab := newTable(1, low)
	take(tab, low, 0, now)
	first := take(tab, low, 1, now)
	for range 50 {
		take(tab, high, 1, now) // 51 of 100 are spent, in a sketch for more
	}
	b := raw(1)
	tab.Refund(low.Compile(), keys.KeyOf(b), first, 1)
	left := 0
	for take(tab, high, 1, now).Allowed {
		left++
	}
	if left != 50 {
		t.Errorf("after 51 of 100 and one back %d are admitted, want 50", left)
	}
}

// A full table has what it needs for a flood before the flood comes, and gives it back when it is
// over.
func TestTheSketchComesBeforeTheFloodAndGoesAfterIt(t *testing.T) {
	for _, keys := range []int64{1, 40_000, 1_000_000, 1_000_000_000} {
		if got := newSketch(sketchWidthFor(keys), 1, time.Minute).Bytes(); got > 32<<20 {
			t.Errorf("max_keys %d: the sketch takes %d bytes, want at most 32 MiB", keys, got)
		}
	}
	const maxKeys = 40_000
	alg := sliding(10, time.Minute)
	tab := newTable(maxKeys, alg)
	now := t0 - t0%int64(time.Hour)
	for i := range maxKeys / 2 {
		take(tab, alg, i, now)
	}
	if got := tab.OverflowBytes(); got != 0 {
		t.Errorf("half full: the sketch takes %d bytes, want none", got)
	}
	for i := range maxKeys {
		take(tab, alg, i, now)
	}
	redistest.Eventually(t, "the sketch is made", func() bool { return tab.OverflowBytes() > 0 })
	if got := tab.OverflowBytes(); got == 0 || got > 32<<20 || tab.Overflowing() {
		t.Errorf("full: the sketch takes %d bytes, in use: %v; want at most 32 MiB, and not in use", got, tab.Overflowing())
	}
	for i := range 2 * maxKeys {
		take(tab, alg, i, now)
	}
	if got := tab.OverflowBytes(); got > 32<<20 || !tab.Overflowing() {
		t.Errorf("in the flood: the sketch takes %d bytes, in use: %v; want at most 32 MiB, and in use", got, tab.Overflowing())
	}
	for after, want := range []bool{true, true, false} { // in windows
		tab.Sweep(now + int64(after)*int64(time.Minute))
		if got := tab.OverflowBytes() > 0; got != want {
			t.Errorf("%d windows after the flood, swept: there is a sketch: %v, want %v", after, got, want)
		}
	}
}

// Who gives a table up waits for what it makes ahead.
func TestCloseWaitsForTheSketch(t *testing.T) {
	const maxKeys = 40_000
	alg := sliding(10, time.Minute)
	tab := newTable(maxKeys, alg)
	tab.widening.Lock() // so that the sketch can't be made yet
	for i := range maxKeys {
		take(tab, alg, i, t0)
	}
	tab.widening.Unlock()
	if tab.Close(); tab.OverflowBytes() == 0 {
		t.Error("a sketch is still being made after Close")
	}
	if tab.preparing.TryLock() {
		t.Error("a sketch is made ahead after Close")
	}
}

// As long as keys come that find no slot, the sketch stays, and none of them gets its limit twice
// in a window.
func TestASketchInUseIsNotGivenBack(t *testing.T) {
	c := newCrowded[algorithms.WindowState](fixed(10, time.Minute), 0)
	for range 20 {
		c.Take(c.alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
		if got := c.spend(); got != 10 && got != 0 {
			t.Fatalf("%d admitted in a window, want 10, or none just after one", got)
		}
		c.Sweep(c.now)
		if got := c.spend(); got != 0 {
			t.Fatalf("after a sweep %d more are admitted in the same window, want 0", got)
		}
		c.now += int64(time.Minute)
	}
}

// What an earlier process saved of a key counts where the key finds no slot now.
func TestWhatWasSavedCountsInTheSketch(t *testing.T) {
	eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
		withState(alg,
			func(alg algorithms.Params) { savedCounts[algorithms.WindowState](t, alg) },
			func(alg algorithms.Params) { savedCounts[algorithms.BucketState](t, alg) },
			func(alg algorithms.Params) { savedCounts[algorithms.LogState](t, alg) })
	})
}

func savedCounts[S any](t *testing.T, alg algorithms.Params) {
	before := newCrowded[S](alg, 0)
	before.room(10)
	for range 70 {
		before.ask()
	}
	c := newCrowded[S](alg, 0)
	if got := c.Resume(alg, c.now, before.Save(before.now)); got != 2 {
		t.Fatalf("%d keys are left of what was saved, want 2", got)
	}
	d := c.ask()
	if !d.Overflow {
		t.Fatal("the key has a counter of its own in a full table")
	}
	if got := 1 + c.spend(); got != 30 {
		t.Errorf("after 70 of 100 in an earlier process %d are admitted, want 30", got)
	}
	c.room(10)
	if got := c.spend(); got != 0 {
		t.Errorf("with a counter of its own %d more are admitted, want 0", got)
	}
}

// Of keys that come once each, ten times as many as max_keys in a window, few newcomers are denied.
func TestFewNewcomersAreDenied(t *testing.T) {
	for limit := int64(1); limit <= 10; limit++ {
		got := newcomersDenied(1_000_000/256, limit)
		if want := .01; limit > 1 && got > want {
			t.Errorf("limit %d: %.4f of newcomers denied, want at most %v", limit, got, want)
		}
		if limit == 1 && got > .3 {
			t.Errorf("limit 1: %.4f of newcomers denied, want at most 0.3", got)
		}
	}
}

// newcomersDenied is which part of the newcomers is denied in a table that is full, while ten times
// max_keys come in each window, once each. The sketch has as many words for each key as for the
// default max_keys.
func newcomersDenied(maxKeys int, limit int64) float64 {
	const windows = 3
	alg := sliding(limit, time.Minute)
	s := newSketch(int64(maxKeys)*maxSketchWidth/1_000_000, limit, time.Minute)
	keyCount, denied, asked := windows*10*maxKeys, 0, 0
	start := t0 - t0%int64(time.Minute)
	for i := range keyCount {
		now := start + int64(float64(i)/float64(10*maxKeys)*float64(time.Minute))
		b := raw(i)
		d, _ := s.Take(alg.Compile(), keys.KeyOf(b), now, 1, 0)
		if i >= 10*maxKeys {
			asked++
			if !d.Allowed {
				denied++
			}
		}
	}
	return float64(denied) / float64(asked)
}

// TestNewcomerFigures prints a table of docs/internals/floods.md.
func TestNewcomerFigures(t *testing.T) {
	if !redistest.UpdateGoldens {
		t.Skip("for figures: UPDATE_GOLDENS=1 go test ./internal/table -run TestNewcomerFigures -v")
	}
	fmt.Println("| limit | newcomers denied |")
	fmt.Println("|---|---|")
	for limit := int64(1); limit <= 10; limit++ {
		fmt.Printf("| %d | %.3f %% |\n", limit, 100*newcomersDenied(1_000_000, limit))
	}
}

// Requests of one key from many sides, while others come and go, the sweep runs, and reloads change
// the limit and max_keys: in each window no more is admitted than the highest limit.
func TestTheSketchUnderRace(t *testing.T) {
	const window, limit = time.Minute, 20
	tab := newTable(1, fixed(limit, window))
	now := t0 - t0%int64(time.Hour)
	got := make(map[int64]*atomic.Int64) // by windows
	for step := range 40 {
		now += int64(window) / 4
		if step%13 == 12 {
			now += 4 * int64(window) // long enough for the sketch to be given back
		}
		var wg sync.WaitGroup
		admitted := got[now/int64(window)]
		if admitted == nil {
			admitted = new(atomic.Int64)
			got[now/int64(window)] = admitted
		}
		for g := range 4 {
			wg.Go(func() {
				alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: []int64{limit, 14, limit, 2}[g], Window: window}
				for i := range 60 {
					take(tab, alg, 0, now)
					take(tab, alg, 1000*g+i+2, now)
					if take(tab, alg, 1, now).Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Go(func() {
			for i := range 10 {
				tab.Sweep(now)
				l := []int64{limit, 14, limit, 2}[i%4]
				tab.Configure(SyncConfig{Params: fixed(l, window), Rate: time.Second}, 1+i%2*40_000*(step%2))
			}
		})
		wg.Wait()
	}
	sum := int64(0)
	for i, admitted := range got {
		n := admitted.Load()
		sum += n
		if n > limit {
			t.Errorf("window %d: %d admitted, want at most %d", i, n, limit)
		}
	}
	if sum < limit {
		t.Errorf("%d admitted in all windows, want some", sum)
	}
}
