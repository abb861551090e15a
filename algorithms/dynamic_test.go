package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An admission is what one request got, and the limit in force from then on.
type admission struct {
	at, n int64
	rate  int64 // of the last request that was decided by then
}

// checkLaw fails where in some interval more was admitted than the largest bucket plus what the
// limits in force let drain.
func checkLaw(t *rapid.T, all []admission, largest, window int64) {
	t.Helper()
	for i := range all {
		var admitted, drains int64 // in requests, and in parts of 1/window
		for j := i; j < len(all); j++ {
			if j > i {
				drains += all[j-1].rate * (all[j].at - all[j-1].at)
			}
			if admitted += all[j].n; admitted > largest+drains/window {
				t.Fatalf("%d admitted in %v, with buckets of %d at most and %.3f drained", admitted,
					time.Duration(all[j].at-all[i].at), largest, float64(drains)/float64(window))
			}
		}
	}
}

// With any order of limits on one key, what is admitted in an interval is at most the largest
// bucket plus the integral of the limits in force, whoever looks meanwhile and under what limit.
func TestTheLimitsInForceDrainABucket(t *testing.T) {
	for _, k := range bucketKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				window := int64(rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(t, "window"))
				limits := rapid.SliceOfN(rapid.SampledFrom([]int64{0, 1, 2, 5, 60, 1000, 60_000}), 1, 4).Draw(t, "limits")
				burst := rapid.SampledFrom([]int64{0, 1, 7, 100}).Draw(t, "burst")
				s := k.make(limits[0], time.Duration(window), burst)
				now, rate, largest := epoch, int64(0), int64(0)
				var all []admission
				for range rapid.IntRange(1, 60).Draw(t, "events") {
					now += rapid.OneOf(rapid.Int64Range(0, window/50), rapid.Int64Range(0, window)).Draw(t, "later")
					limit := rapid.SampledFrom(limits).Draw(t, "limit")
					s := s.with(limit)
					switch rapid.IntRange(0, 8).Draw(t, "event") {
					case 0: // a peek
						s.take(now, 0, 0)
					case 1:
						s.level(now)
						s.idle(now)
					case 2:
						s.advance(now)
					case 3:
						s.waits(now, 1, 0, allWaits|WantRetry)
					case 4:
						now += int64(time.Hour)
						s.shift(now, time.Hour)
						for i := range all {
							all[i].at += int64(time.Hour)
						}
					default:
						n := rapid.Int64Range(1, 100).Draw(t, "n")
						d := s.take(now, n, 0)
						if limit > 0 {
							rate, largest = limit, max(largest, s.(keyed[BucketState]).limit.Size)
						}
						if !d.Allowed {
							n = 0
						}
						all = append(all, admission{now, n, rate})
					}
				}
				checkLaw(t, all, largest, window)
			})
		})
	}
}

// Time drains at the limit of the last request that was decided, which may have been denied.
func TestADeniedRequestPutsItsLimitInForce(t *testing.T) {
	const second = int64(time.Second)
	for _, k := range bucketKinds {
		s := k.make(5, 24*time.Hour, 5)
		for range 5 {
			if !s.take(epoch, 1, 0).Allowed {
				t.Fatalf("%s: a new key has less than its burst", k.name)
			}
		}
		raised := s.with(144_000) // 100 a minute
		if raised.take(epoch+second, 1, 0).Allowed {
			t.Errorf("%s: the time before the raise drained at the new limit", k.name)
		}
		if !raised.take(epoch+2*second, 1, 0).Allowed {
			t.Errorf("%s: after the raise the bucket drains at the old limit", k.name)
		}
		lowered, closed := s.with(1), s.with(0)
		for range 5 {
			raised.take(epoch+2*second, 1, 0)
		}
		closed.take(epoch+2*second, 1, 0) // denies, and drains nothing
		if lowered.take(epoch+2*second, 1, 0).Allowed {
			t.Errorf("%s: room in a full bucket", k.name)
		}
		if lowered.take(epoch+100*second, 1, 0).Allowed {
			t.Errorf("%s: after it was lowered the bucket drains at the high limit", k.name)
		}
	}
}

// What the sync, the sweep and a saved copy go by is the limit in force, not their own.
func TestWorkWithoutARequestGoesByTheLimitInForce(t *testing.T) {
	const second = int64(time.Second)
	for _, k := range bucketKinds {
		s := k.make(60, time.Minute, 100)
		other := s.with(60_000).(keyed[BucketState])
		s.take(epoch, 50, 0)
		level, rate := other.machine.Level(other.s, other.limit, epoch+10*second)
		if level != 40 || rate != 60 {
			t.Errorf("%s: level %v, rate %d; want 40, 60", k.name, level, rate)
		}
		if other.idle(epoch + 49*second) {
			t.Errorf("%s: idle, with one request in the bucket", k.name)
		}
		fresh := other.fresh().(keyed[BucketState])
		at := epoch + 10*second
		saved := Report{Epoch: at / fresh.span(), Level: level, LevelAt: at, Rate: rate}
		fresh.merge(at+20*second, saved)
		if got, rate := fresh.machine.Level(fresh.s, fresh.limit, at+25*second); got != 15 || rate != 60 {
			t.Errorf("%s: of a saved level %v is left, at a rate of %d; want 15, 60", k.name, got, rate)
		}
		m := other.machine.(Bucketed[BucketState])
		if update := m.Update(other.s, other.limit, at, time.Second); update.Whole != 40 || update.Rate != 60 {
			t.Errorf("%s: says %+v, want 40 at a rate of 60", k.name, update)
		}
		m.MergeReply(other.s, other.limit, at, BucketReply{BucketLevel: BucketLevel{Whole: 70, At: at, Rate: 120}, Total: 50})
		if got, rate := other.machine.Level(other.s, other.limit, at+5*second); got != 60 || rate != 120 {
			t.Errorf("%s: %v of what the store has, at the rate that it was told last, %d; want 60, 120", k.name, got, rate)
		}
		heard := other.fresh().(keyed[BucketState])
		m.MergeReply(heard.s, heard.limit, at, BucketReply{BucketLevel: BucketLevel{Whole: 70, At: at, Rate: 120}})
		if got, rate := heard.machine.Level(heard.s, heard.limit, at+5*second); got != 60 || rate != 120 {
			t.Errorf("%s: %v in a bucket that has decided nothing, at a rate of %d; want 60, 120", k.name, got, rate)
		}
	}
}
