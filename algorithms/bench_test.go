package algorithms

import (
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
func benchmarkBoth[S any](b *testing.B, p Params) {
	p.Limit, p.Window = 1000, time.Second
	b.Run("admitted", func(b *testing.B) { benchmarkTake[S](b, p, 2e6) })
	b.Run("denied", func(b *testing.B) { benchmarkTake[S](b, p, 10e3) })
}

func BenchmarkFixedWindow(b *testing.B) {
	benchmarkBoth[WindowState](b, Params{Kind: FixedWindow})
}

func BenchmarkSlidingWindow(b *testing.B) {
	benchmarkBoth[WindowState](b, Params{Kind: SlidingWindow})
}

func BenchmarkSlidingWindow10(b *testing.B) {
	benchmarkBoth[WindowState](b, Params{Kind: SlidingWindow, SubWindows: 10})
}

func BenchmarkSlidingLog(b *testing.B) {
	benchmarkBoth[LogState](b, Params{Kind: SlidingLog})
}

func BenchmarkTokenBucket(b *testing.B) {
	benchmarkBoth[BucketState](b, Params{Kind: TokenBucket, Burst: 100})
}

func BenchmarkGCRA(b *testing.B) {
	benchmarkBoth[BucketState](b, Params{Kind: GCRA, Burst: 100})
}

func BenchmarkLeakyBucket(b *testing.B) {
	benchmarkBoth[BucketState](b, Params{Kind: LeakyBucket, Queue: 100})
}

func BenchmarkMerge(b *testing.B) {
	p := Params{Kind: TokenBucket, Limit: 1000, Window: time.Second, Burst: 100}
	m, l, s, now := MachineOf[BucketState](p.Kind), p.Compile(), new(BucketState), epoch
	reports := make([]Report, 2)
	b.ReportAllocs()
	for b.Loop() {
		now += 1e6
		e := now / int64(p.Epoch())
		reports[0], reports[1] = Report{Epoch: e, Remote: now & 0xff}, Report{Epoch: e - 1, Remote: 100}
		m.Merge(s, l, now, reports)
	}
}
