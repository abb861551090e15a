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
			s.giveBack(now, 1)
			s.charge(now, 1)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", k.name, allocs)
		}
	}
}

func benchmarkTake[S any](b *testing.B, a Algorithm[S], step int64) {
	s, now := new(S), epoch
	b.ReportAllocs()
	for b.Loop() {
		now += step
		a.Take(s, now, 1, 0)
	}
	b.ReportMetric(float64(unsafe.Sizeof(*s)), "B/key")
}

// At 1000/1s a request every 2ms is always admitted, and of one every 10us a hundredth is.
func benchmarkBoth[S any](b *testing.B, a Algorithm[S]) {
	b.Run("admitted", func(b *testing.B) { benchmarkTake(b, a, 2e6) })
	b.Run("refused", func(b *testing.B) { benchmarkTake(b, a, 10e3) })
}

func BenchmarkFixedWindow(b *testing.B) {
	benchmarkBoth(b, FixedWindow{Limit: 1000, Window: time.Second})
}

func BenchmarkSlidingWindow(b *testing.B) {
	benchmarkBoth(b, SlidingWindow{Limit: 1000, Window: time.Second, Buckets: 1})
}

func BenchmarkSlidingWindowBrief(b *testing.B) {
	benchmarkBoth(b, SlidingWindow{Limit: 1000, Window: time.Second, Brief: true})
}

func BenchmarkSlidingWindow10(b *testing.B) {
	benchmarkBoth(b, SlidingWindow{Limit: 1000, Window: time.Second, Buckets: 10})
}

func BenchmarkSlidingLog(b *testing.B) {
	benchmarkBoth(b, SlidingLog{Limit: 1000, Window: time.Second})
}

func BenchmarkTokenBucket(b *testing.B) {
	benchmarkBoth(b, TokenBucket{Limit: 1000, Window: time.Second, Burst: 100})
}

func BenchmarkTokenBucketBrief(b *testing.B) {
	benchmarkBoth(b, TokenBucket{Limit: 1000, Window: time.Second, Burst: 100, Brief: true})
}

func BenchmarkGCRA(b *testing.B) {
	benchmarkBoth(b, GCRA{Limit: 1000, Window: time.Second, Burst: 100})
}

func BenchmarkLeakyBucket(b *testing.B) {
	benchmarkBoth(b, LeakyBucket{Limit: 1000, Window: time.Second, Queue: 100})
}

func BenchmarkAbsorb(b *testing.B) {
	a, s, now := TokenBucket{Limit: 1000, Window: time.Second, Burst: 100}, new(BucketState), epoch
	reports := make([]Report, 2)
	b.ReportAllocs()
	for b.Loop() {
		now += 1e6
		e := now / int64(time.Second)
		reports[0], reports[1] = Report{Epoch: e, Elsewhere: now & 0xff}, Report{Epoch: e - 1, Elsewhere: 100}
		a.Absorb(s, now, reports)
	}
}
