package algorithms

import (
	"fmt"
	"testing"
	"time"
	"unsafe"
)

func TestTakeDoesNotAllocate(t *testing.T) {
	for _, k := range kinds {
		s := k.make(50, time.Second, 0)
		now := epoch
		for range 200 {
			now += 7e6
			s.take(now, 1, 0)
		}
		allocs := testing.AllocsPerRun(1000, func() {
			now += 7e6
			s.take(now, 1, 0)
			s.take(now, 100, 0)
			s.refund(now, 1)
			s.penalize(now, 1)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", k.name, allocs)
		}
	}
}

// benchmarkTake measures decisions alone and with the waits that headers want.
func benchmarkTake[S any](b *testing.B, p Params, step int64) {
	for _, bench := range []struct {
		name string
		want Want
	}{{"waits=none", 0}, {"waits=next", WantNext}} {
		b.Run(bench.name, func(b *testing.B) {
			m, l, s, now := MachineOf[S](p.Kind), p.Compile(), new(S), epoch
			b.ReportAllocs()
			for b.Loop() {
				now += step
				r, want := m.Take(s, l, now, 1, 0), bench.want
				if !r.Allowed {
					want |= WantRetry
				}
				if want != 0 {
					m.Waits(s, l, now, 1, 0, want)
				}
			}
			b.ReportMetric(float64(unsafe.Sizeof(*s)), "B/key")
		})
	}
}

// At 1000/1s a request every 2ms is always admitted, and of one every 10us a hundredth is.
func BenchmarkTake(b *testing.B) {
	for _, p := range []Params{
		{Kind: FixedWindow}, {Kind: SlidingWindow}, {Kind: SlidingWindow, SubWindows: 10}, {Kind: SlidingLog},
		{Kind: TokenBucket, Burst: 100}, {Kind: GCRA, Burst: 100}, {Kind: LeakyBucket, Queue: 100},
	} {
		p.Limit, p.Window = 1000, time.Second
		take := ByState(p.Kind, benchmarkTake[WindowState], benchmarkTake[BucketState], benchmarkTake[LogState])
		for name, step := range map[string]int64{"admitted": 2e6, "denied": 10e3} {
			b.Run(fmt.Sprint(p.Kind, " ", p.SubWindows, "/", name), func(b *testing.B) { take(b, p, step) })
		}
	}
}
