package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
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
	c := &crowded[S]{Table: of[S](alg, 1), alg: alg, background: SyncConfig{Params: alg, Interval: rate}, now: t0 - t0%int64(time.Hour)}
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
	for _, alg := range []algorithms.Params{
		{Kind: algorithms.FixedWindow}, {Kind: algorithms.SlidingWindow}, {Kind: algorithms.SlidingWindow, SubWindows: 12}, {Kind: algorithms.SlidingLog},
		{Kind: algorithms.TokenBucket, Burst: size}, {Kind: algorithms.GCRA, Burst: size}, {Kind: algorithms.LeakyBucket, Queue: size - 1},
	} {
		alg.Limit, alg.Window = limit, window
		t.Run(fmt.Sprint(alg.Kind, " ", alg.SubWindows), func(t *testing.T) { test(t, alg) })
	}
}

// Keys that share a counter get no more than its limit together.
func TestKeysThatShareACounter(t *testing.T) {
	c := newCrowded[algorithms.WindowState](fixed(10, time.Minute), 0)
	rows := map[keys.Key][]byte{}
	for i := 0; ; i++ {
		raw := fmt.Appendf(nil, "key %d", i)
		row := overflowOf(keys.KeyOf(raw))
		other, ok := rows[row]
		if !ok {
			rows[row] = raw
			continue
		}
		admitted := 0
		for range 10 {
			for _, raw := range [][]byte{raw, other} {
				if c.Take(c.alg.Compile(), keys.KeyOf(raw), raw, c.now, 1, 0).Allowed {
					admitted++
				}
			}
		}
		if admitted != 10 {
			t.Errorf("%d admitted, want 10", admitted)
		}
		return
	}
}

// A key beyond max_keys has its limit and waits as told, as one with a counter of its own.
func TestAKeyBeyondMaxKeysHasItsLimit(t *testing.T) {
	for _, rate := range []time.Duration{0, time.Second} {
		eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
			algorithms.ByState(alg.Kind, hasItsLimit[algorithms.WindowState], hasItsLimit[algorithms.BucketState], hasItsLimit[algorithms.LogState])(t, alg, rate)
		})
	}
}

func hasItsLimit[S any](t *testing.T, alg algorithms.Params, rate time.Duration) {
	c := newCrowded[S](alg, rate)
	if got := c.spend(); got != 100 {
		t.Fatalf("%d are admitted, want 100", got)
	}
	c.now += int64(20 * time.Millisecond)
	d := c.ask()
	if !d.Overflow || d.Allowed || d.Retry <= 0 {
		t.Fatalf("20 ms later: %+v, want a denial beyond max_keys with a wait", d)
	}
	c.now += int64(d.Retry) - 1
	if c.ask().Allowed {
		t.Error("admitted before it has waited")
	}
	c.now++
	if d := c.ask(); !d.Allowed {
		t.Errorf("denied after it has waited for %v", d.Retry)
	}
}

// Whatever becomes of slots, a key has twice its limit at most around the moment when it gets one:
// in its slot it begins at 0.
func TestASlotBeginsAtZero(t *testing.T) {
	eachAlgorithm(t, 20, 20, time.Minute, func(t *testing.T, alg algorithms.Params) {
		run := algorithms.ByState(alg.Kind, aroundASlot[algorithms.WindowState], aroundASlot[algorithms.BucketState], aroundASlot[algorithms.LogState])
		for seed := range redistest.Seeds(20, 1000) {
			run(t, alg, seed)
		}
	})
}

// aroundASlot has a guest ask at random times while there is room for it and while there is none.
func aroundASlot[S any](t *testing.T, alg algorithms.Params, seed uint64) {
	random, size, window := rand.New(rand.NewPCG(seed, 9)), alg.Limit, alg.Window
	c := newCrowded[S](alg, []time.Duration{0, time.Second}[seed%2])
	var admitted [2][]int64 // in its slot, and without one
	for range 200 {
		c.now += random.Int64N(int64(window) / 8)
		if random.IntN(5) == 0 {
			c.room(1000)
		}
		if random.IntN(20) == 0 { // the guest loses its counter, which is idle
			c.now += 3 * int64(window)
			c.room(1)
			c.Sweep(c.now)
		}
		c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
		for range random.IntN(2 * int(size)) {
			if d := c.ask(); d.Allowed && d.Overflow {
				admitted[1] = append(admitted[1], c.now)
			} else if d.Allowed {
				admitted[0] = append(admitted[0], c.now)
			}
		}
	}
	if len(admitted[0]) == 0 || len(admitted[1]) == 0 {
		t.Fatalf("seed %d: %d admitted in a slot, %d without: want both", seed, len(admitted[0]), len(admitted[1]))
	}
	for _, all := range admitted {
		withinLimit(t, all, size, window, alg.Kind == algorithms.FixedWindow)
	}
}

// withinLimit wants no more at these instants than one counter admits. aligned bounds what is
// admitted in each aligned window only: a fixed window admits its limit before a boundary, and once
// more after it.
func withinLimit(t *testing.T, admitted []int64, size int64, window time.Duration, aligned bool) {
	t.Helper()
	for i := range admitted {
		for j := i; j < len(admitted) && admitted[j]-admitted[i] < 3*int64(window); j++ {
			bound := size + 2*size*(admitted[j]-admitted[i])/int64(window) + 1
			if aligned {
				bound = size * (1 + admitted[j]/int64(window) - admitted[i]/int64(window))
			}
			if n := int64(j - i + 1); n > bound {
				t.Fatalf("%d admitted within %v, want at most %d", n, time.Duration(admitted[j]-admitted[i]), bound)
			}
		}
	}
}

// A step of the store's clock moves what is stored in counters. Shared ones go by the caller's
// clock.
func TestAStepOfTheClockLeavesSharedCounters(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 90 * time.Second, -90 * time.Second} {
		c := newCrowded[algorithms.WindowState](fixed(10, time.Minute), time.Second)
		c.spend()
		c.setOffset(c.now, step, true)
		if got := c.spend(); got != 0 {
			t.Errorf("after a step of %v, %d more are admitted, want 0", step, got)
		}
	}
}

// With count_denied a denied request counts beyond max_keys, too.
func TestDeniedRequestsCountBeyondMaxKeys(t *testing.T) {
	eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
		algorithms.ByState(alg.Kind, staysDenied[algorithms.WindowState], staysDenied[algorithms.BucketState], staysDenied[algorithms.LogState])(t, alg)
	})
}

// staysDenied has a client ask all the time: as long as it does, it stays denied in its window.
func staysDenied[S any](t *testing.T, alg algorithms.Params) {
	c := newCrowded[S](alg, 0)
	c.spend()
	for range 190 {
		c.now += int64(300 * time.Millisecond)
		c.Take(alg.Compile(), keys.KeyOf(occupant), occupant, c.now, 1, allWaits)
		d := c.ask()
		if d.Allowed {
			t.Fatal("admitted while it keeps on")
		}
		c.Penalize(alg.Compile(), keys.KeyOf(guest), d, 1)
	}
	c.now += 3 * int64(time.Minute)
	if got := c.spend(); got != 100 {
		t.Errorf("three windows later %d are admitted, want 100", got)
	}
}

// A limit that is raised doesn't make shared counters forget.
func TestSharedCountersOutliveAReload(t *testing.T) {
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
			if want := slices.Max(configured); spent != want {
				t.Errorf("limits %v one after the other: %d admitted, want %d", configured, spent, want)
			}
		}
	}
}

// What a key takes under one limit is refunded to it under another.
func TestARefundFindsItsSharedCounter(t *testing.T) {
	now := t0 - t0%int64(time.Hour)
	low, high := fixed(2, time.Hour), fixed(100, time.Hour)
	tab := newTable(1, low)
	take(tab, low, 0, now)
	first := take(tab, low, 1, now)
	for range 50 {
		take(tab, high, 1, now) // 51 of 100 are spent
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

// A reset of all keys empties shared counters, and forgives what is reserved in them: what its
// response has cost more or less changes nothing then.
func TestAResetEmptiesSharedCounters(t *testing.T) {
	for _, cost := range []int64{0, 30} {
		alg := fixed(20, time.Hour)
		alg.Reserves = true
		c := newCrowded[algorithms.WindowState](alg, 0)
		l, key := alg.Compile(), keys.KeyOf(guest)
		taken := c.Take(l, key, guest, c.now, 4, allWaits|Reserve)
		if !taken.Overflow || !taken.Allowed {
			t.Fatalf("%+v, want 4 units beyond max_keys", taken)
		}
		held := c.ReservationOf(l, key, taken)
		c.spend()
		c.Reset(c.now+1, &reset.Set{All: reset.Reset{Stamp: 1, At: c.now + 1, Until: c.now + int64(time.Hour)}})
		c.now += int64(time.Second)
		c.Settle(key, held, c.now, cost)
		if got := c.spend(); got != 20 {
			t.Errorf("after a reset and a response that has cost %d, %d are admitted, want 20", cost, got)
		}
		if n := c.overflow.Load().reservations.Len(); n != 0 || c.overflow.Load().overflow.Load() != nil {
			t.Errorf("%d keys have something reserved, or shared counters share some; want none", n)
		}
	}
}

// What is settled of counters that a reset has dropped is refunded to none that came after them.
func TestSharedCountersAfterAResetRefundNothing(t *testing.T) {
	alg := fixed(20, time.Hour)
	alg.Reserves = true
	c := newCrowded[algorithms.WindowState](alg, 0)
	l, key := alg.Compile(), keys.KeyOf(guest)
	taken := c.Take(l, key, guest, c.now, 4, allWaits|Reserve)
	held := c.ReservationOf(l, key, taken)
	c.Reset(c.now+1, &reset.Set{All: reset.Reset{Stamp: 1, At: c.now + 1, Until: c.now + int64(time.Hour)}})
	c.now += int64(time.Second)
	if got := c.spend(); got != 20 {
		t.Fatalf("%d are admitted after a reset, want 20", got)
	}
	c.Settle(key, held, c.now, 0)
	if got := c.spend(); got != 0 {
		t.Errorf("%d are admitted once what came before is settled, want none", got)
	}
}

// Who leaves a queue beyond max_keys frees its place.
func TestALeaverBeyondMaxKeysFreesItsPlace(t *testing.T) {
	alg := algorithms.Params{Kind: algorithms.LeakyBucket, Limit: 60, Window: time.Hour, Queue: 3}
	c := newCrowded[algorithms.BucketState](alg, 0)
	l, key := alg.Compile(), keys.KeyOf(guest)
	var last Taken
	for d := c.ask(); d.Allowed; d = c.ask() {
		last = d
	}
	c.Leave(l, key, last, c.now+1, 1)
	if d := c.ask(); !d.Allowed || !d.Overflow {
		t.Errorf("%+v, want the place of who has left", d)
	}
}

// A sweep drops no shared counter that counts.
func TestASharedCounterInUseIsNotSwept(t *testing.T) {
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
func TestWhatWasSavedCountsBeyondMaxKeys(t *testing.T) {
	eachAlgorithm(t, 100, 100, time.Minute, func(t *testing.T, alg algorithms.Params) {
		algorithms.ByState(alg.Kind, savedCounts[algorithms.WindowState], savedCounts[algorithms.BucketState], savedCounts[algorithms.LogState])(t, alg)
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
}

// Requests of one key from many sides, while others come and go, the sweep runs, and reloads change
// the limit: in each window no more is admitted than the highest limit.
func TestSharedCountersUnderRace(t *testing.T) {
	const window, limit = time.Minute, 20
	tab := newTable(1, fixed(limit, window))
	now := t0 - t0%int64(time.Hour)
	got := make(map[int64]*atomic.Int64) // by windows
	for step := range 40 {
		now += int64(window) / 4
		if step%13 == 12 {
			now += 4 * int64(window) // long enough for the counters to be swept
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
				tab.Configure(SyncConfig{Params: fixed(l, window), Interval: time.Second}, 1)
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
