package bandwidth

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// send sends n bytes, step at a time, and returns how many were sent before the context ended.
func send(ctx context.Context, z *Zone, name keys.Key, n, step int) (sent int) {
	r, _ := z.Open(name)
	defer r.Close()
	for sent < n {
		granted, err := r.Take(ctx, min(step, n-sent))
		if err != nil {
			return sent
		}
		r.sent(granted)
		sent += granted
	}
	return sent
}

// within reports whether got is want, give or take a share.
func within(got, want, share float64) bool { return got > want*(1-share) && got < want*(1+share) }

// For ten seconds, two responses of a key, one of which writes little at a time: both get half of
// the rate. Another key has a rate of its own.
func TestTwoResponsesShareTheRate(t *testing.T) {
	for _, rate := range []Rate{1000, 64 << 10, 16 << 20} {
		synctest.Test(t, func(t *testing.T) {
			z := NewZone("z", rate, 10)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var got [3]int
			var all sync.WaitGroup
			for i, step := range []int{300, 32 << 10, 4096} {
				all.Go(func() { got[i] = send(ctx, z, keys.Key{A: uint64(i / 2)}, 1<<40, step) })
			}
			all.Wait()
			both, each := float64(got[0]+got[1]), 10*float64(rate)
			if !within(both, each, 0.05) || !within(float64(got[2]), each, 0.05) {
				t.Errorf("at %d/s: %d bytes of two responses, and %d of another key, want %.0f each", rate, got[0]+got[1], got[2], each)
			}
			if !within(float64(got[0]), float64(got[1]), 0.1) {
				t.Errorf("at %d/s: %d and %d bytes of two responses", rate, got[0], got[1])
			}
			if s := z.Status(); s.Bytes != int64(got[0]+got[1]+got[2]) || s.Open != 0 || s.Waited < 25*time.Second || s.Waited > 30*time.Second {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// A thousand slow responses each get their part, by no more goroutines than write them.
func TestAThousandResponsesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10<<20, 10)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		before := runtime.NumGoroutine()
		var least, most atomic.Int64
		least.Store(1 << 40)
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				n := int64(send(ctx, z, keys.Key{}, 1<<40, 1+rand.IntN(64<<10)))
				for l := least.Load(); n < l && !least.CompareAndSwap(l, n); l = least.Load() {
				}
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
			})
		}
		time.Sleep(time.Second)
		if n := runtime.NumGoroutine() - before; n > 1000 {
			t.Errorf("%d goroutines for 1000 responses", n)
		}
		all.Wait()
		if most.Load()-least.Load() > 2*maxTurn {
			t.Errorf("between %d and %d bytes, more than two turns apart", least.Load(), most.Load())
		}
		if s := z.Status(); !within(float64(s.Bytes), 200<<20, 0.05) {
			t.Errorf("%d bytes in 20 s at 10 MiB/s", s.Bytes)
		}
	})
}

// A response whose client goes away ends at once, wherever it waits, and its part goes to the
// others.
func TestAContextEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 8000, 10) // a turn takes 125 ms
		var all sync.WaitGroup
		var stays int
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			stays = send(ctx, z, keys.Key{}, 1<<30, 1<<20)
		})
		for i := range 20 {
			all.Go(func() {
				end := time.Duration(i+1) * 10 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), end)
				defer cancel()
				start := time.Now()
				send(ctx, z, keys.Key{}, 1<<30, 1<<20)
				if took := time.Since(start); took != end {
					t.Errorf("a response whose client left after %v ended after %v", end, took)
				}
			})
		}
		all.Wait()
		if !within(float64(stays), 80_000, 0.1) {
			t.Errorf("the response that stayed has %d bytes of 80000", stays)
		}
	})
}

// Responses that are open take a new rate.
func TestConfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 1000, 10)
		time.AfterFunc(10*time.Second, func() { z.Configure(100_000, 10) })
		time.AfterFunc(20*time.Second, func() { z.Configure(1000, 10) })
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if got := send(ctx, z, keys.Key{}, 1<<30, 1<<20); !within(float64(got), 10_000+1_000_000+10_000, 0.05) {
			t.Errorf("%d bytes", got)
		}
	})
}

// More keys than allowed share one rate. A key is there while a response is open, and until what it
// sent is paid for: so responses one after the other don't exceed the rate either.
func TestKeysBeyondTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10_000, 2)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var got [5]atomic.Int64
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() {
				time.Sleep(time.Duration(i)) // in this order
				for ctx.Err() == nil {
					r, overflow := z.Open(keys.Key{A: uint64(i)})
					if overflow != (i >= 2) {
						t.Errorf("key %d: overflow %t", i, overflow)
					}
					n, _ := r.Take(ctx, 500)
					got[i].Add(int64(n))
					r.Close()
				}
			})
		}
		all.Wait()
		shared := got[2].Load() + got[3].Load() + got[4].Load()
		for _, n := range []int64{got[0].Load(), got[1].Load(), shared} {
			if !within(float64(n), 100_000, 0.05) {
				t.Errorf("%d bytes in 10 s at 10000/s, want 100000", n)
			}
		}
		time.Sleep(time.Second)
		if s := z.Status(); s.Keys != 0 || len(z.closed) != 0 {
			t.Errorf("%d keys after all have ended", s.Keys)
		}
	})
}

// A key with an open response stays, however long that sends nothing.
func TestAnOpenResponsePinsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10_000, 10)
		r, _ := z.Open(keys.Key{A: 1})
		for i := range 100 {
			send(t.Context(), z, keys.Key{A: uint64(i)}, 1, 1)
		}
		time.Sleep(time.Hour)
		z.Sweep(clock.Now())
		if again, _ := z.Open(keys.Key{A: 1}); again.key != r.key || len(z.keys) != 1 {
			t.Errorf("%d keys, want the one with an open response", len(z.keys))
		}
	})
}

// A key that is closed and opened again before it has paid is as any other: it stays, and keeps no
// other key in memory.
func TestAKeyThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 10_000, 10)
		owes := func(name keys.Key) {
			r, _ := z.Open(name)
			_, _ = r.Take(t.Context(), 1000)
			r.Close()
		}
		owes(keys.Key{A: 1})
		owes(keys.Key{A: 2})
		owes(keys.Key{A: 3})
		r, _ := z.Open(keys.Key{A: 1})
		r.Close()
		time.Sleep(time.Hour)
		r, _ = z.Open(keys.Key{A: 1})
		z.Open(keys.Key{A: 4})
		z.Open(keys.Key{A: 5})
		if z.keys[keys.Key{A: 1}] != r.key {
			t.Error("a key that came back is gone with what it was before")
		}

		_, _ = r.Take(t.Context(), 1000)
		r.Close()
		r, _ = z.Open(keys.Key{A: 1})
		owes(keys.Key{A: 6})
		time.Sleep(time.Second)
		for range 3 {
			_, _ = r.Take(t.Context(), 1000)
		}
		z.Sweep(clock.Now())
		if _, ok := z.keys[keys.Key{A: 6}]; ok || z.keys[keys.Key{A: 1}] != r.key {
			t.Error("a busy key keeps another one in memory, or is gone")
		}
	})
}

// Opening and closing costs as much with a million keys as with one: no call looks at all of them.
func TestForgetLooksAtAFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := NewZone("z", 1, 1<<30)
		for i := range 10_000 {
			r, _ := z.Open(keys.Key{A: uint64(i)})
			_, _ = r.Take(t.Context(), 1)
			r.Close()
		}
		time.Sleep(time.Hour)
		z.Open(keys.Key{A: 1 << 40})
		if n := len(z.keys); n < 9_990 {
			t.Errorf("opening one response looked at %d keys", 10_000-n)
		}
		for range 6000 {
			r, _ := z.Open(keys.Key{A: 1 << 41})
			r.Close()
		}
		if n := len(z.keys); n > 3 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// Many goroutines open, wait, leave and close at random: nothing is left, for the race detector as
// well.
func TestOpenAndCloseAtOnce(t *testing.T) {
	z := NewZone("z", 1<<30, 3)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Microsecond)
				send(ctx, z, keys.Key{A: rand.Uint64N(5)}, rand.IntN(200_000), 1+rand.IntN(50_000))
				cancel()
			}
		})
	}
	all.Wait()
	if z.over.queue.first() != nil || z.Status().Open != 0 {
		t.Error("a response still waits or is open")
	}
	for _, k := range z.keys {
		if k.queue.first() != nil || k.open != 0 {
			t.Error("a response still waits or is open")
		}
	}
}
