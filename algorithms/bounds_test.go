package algorithms

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A hit is what was admitted at one instant.
type hit struct{ at, n int64 }

// rush is a client that asks as fast as it likes, and what it was admitted.
func rush(t *rapid.T, s subject) (admitted []hit, delays []time.Duration) {
	w := newWalk(t, s)
	for range rapid.IntRange(1, 60).Draw(t, "takes") {
		now, n := w.step(t), rapid.Int64Range(1, 4).Draw(t, "n")
		if d := s.take(now, n, 0); d.Allowed {
			admitted, delays = append(admitted, hit{now, n}), append(delays, d.Delay)
		}
	}
	return admitted, delays
}

// most is the most that was admitted in any half-open interval of a length.
func most(admitted []hit, length int64) (most int64) {
	for i := range admitted {
		var sum int64
		for _, h := range admitted[i:] {
			if h.at-admitted[i].at < length {
				sum += h.n
			}
		}
		most = max(most, sum)
	}
	return most
}

func TestBoundOfFixedWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := fixedWindow.draw(t)
		limit, window := s.rule()
		admitted, _ := rush(t, s)
		aligned := map[int64]int64{}
		for _, h := range admitted {
			if aligned[h.at/int64(window)] += h.n; aligned[h.at/int64(window)] > limit {
				t.Fatalf("%d admitted in an aligned window, want at most %d", aligned[h.at/int64(window)], limit)
			}
		}
		if got := most(admitted, int64(window)); got > 2*limit {
			t.Fatalf("%d admitted in a window, want at most %d", got, 2*limit)
		}
	})
}

func TestBoundOfSlidingWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := slidingWindow.draw(t)
		limit, _ := s.rule()
		admitted, _ := rush(t, s)
		sixteenth := map[int64]int64{}
		var fullest int64
		for _, h := range admitted {
			sixteenth[h.at/s.span()] += h.n
			fullest = max(fullest, sixteenth[h.at/s.span()])
		}
		if got := most(admitted, s.span()*int64(s.history())); got > limit+fullest || fullest > limit {
			t.Fatalf("%d admitted in a window and at most %d in a sub-window, want at most %d more than the limit, %d", got, fullest, fullest, limit)
		}
	})
}

func TestBoundOfSlidingLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := slidingLog.draw(t)
		limit, window := s.rule()
		admitted, _ := rush(t, s)
		if got := most(admitted, int64(window)); got > limit {
			t.Fatalf("%d admitted in a window, want at most %d", got, limit)
		}
	})
}

func TestBoundOfBuckets(t *testing.T) {
	for _, k := range bucketKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := k.draw(t)
				limit, window := s.rule()
				admitted, delays := rush(t, s)
				for i, from := range admitted {
					var sum int64
					for _, to := range admitted[i:] {
						sum += to.n
						// sum <= size + limit * elapsed / window, in whole numbers.
						lhs := new(big.Int).Mul(big.NewInt(sum-size(s)), big.NewInt(int64(window)))
						rhs := new(big.Int).Mul(big.NewInt(limit), big.NewInt(to.at-from.at))
						if lhs.Cmp(rhs) > 0 {
							t.Fatalf("%d admitted in %v", sum, time.Duration(to.at-from.at))
						}
					}
					if k.name == "leaky_bucket" && i > 0 {
						before := admitted[i-1]
						gap := from.at + int64(delays[i]) - before.at - int64(delays[i-1])
						if least := before.n * int64(window) / limit; gap < least {
							t.Fatalf("starts %v apart, want at least %v", time.Duration(gap), time.Duration(least))
						}
						if longest := (size(s) - 1) * int64(window) / limit; int64(delays[i]) > longest+1 {
							t.Fatalf("delay %v, want at most %v", delays[i], time.Duration(longest))
						}
					}
				}
			})
		})
	}
}

// A bucketOf is a token bucket in rational numbers, the way a textbook does: tokens, and when
// they were counted.
type bucketOf struct {
	tokens *big.Rat
	last   int64
}

func (b *bucketOf) take(limit, window, size, now, n int64) (allowed bool, retry int64) {
	gain := new(big.Rat).Mul(big.NewRat(limit, window), new(big.Rat).SetInt64(now-b.last))
	b.last = now
	if b.tokens.Add(b.tokens, gain); b.tokens.Cmp(big.NewRat(size, 1)) > 0 {
		b.tokens.SetInt64(size)
	}
	lacks := new(big.Rat).Sub(new(big.Rat).SetInt64(n), b.tokens)
	if lacks.Sign() <= 0 {
		b.tokens.Sub(b.tokens, new(big.Rat).SetInt64(n))
		return true, 0
	}
	return false, roundUp(lacks.Mul(lacks, big.NewRat(window, limit)))
}

// A cellsOf is the generic cell rate algorithm as I.371 does: by a theoretical arrival time.
type cellsOf struct{ tat *big.Rat }

func (c *cellsOf) take(limit, window, size, now, n int64) (allowed bool, retry int64) {
	arrival, emission := new(big.Rat).SetInt64(now), big.NewRat(window, limit)
	if c.tat.Cmp(arrival) < 0 {
		c.tat.Set(arrival)
	}
	moved := new(big.Rat).Add(c.tat, new(big.Rat).Mul(emission, new(big.Rat).SetInt64(n)))
	earliest := new(big.Rat).Sub(moved, new(big.Rat).Mul(emission, new(big.Rat).SetInt64(size)))
	if earliest.Cmp(arrival) <= 0 {
		c.tat.Set(moved)
		return true, 0
	}
	return false, roundUp(earliest.Sub(earliest, arrival))
}

// roundUp is the next whole number from a positive one on.
func roundUp(r *big.Rat) int64 {
	sum := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	return sum.Div(sum, r.Denom()).Int64()
}

func TestTokenBucketAndGCRAAgreeWithTheirTextbooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 1000).Draw(t, "limit")
		window := rapid.SampledFrom(windows).Draw(t, "window")
		burst := rapid.Int64Range(1, 20).Draw(t, "burst")
		tokens, cells := tokenBucket.make(limit, window, burst), gcra.make(limit, window, burst)
		w := newWalk(t, tokens)
		w.window = max(8, burst*int64(window)/limit)
		book, cell := &bucketOf{big.NewRat(burst, 1), w.now}, &cellsOf{new(big.Rat)}
		for range rapid.IntRange(1, 40).Draw(t, "takes") {
			now, n := w.step(t), rapid.Int64Range(0, min(4, burst)).Draw(t, "n")
			a, b := tokens.take(now, n, 0), cells.take(now, n, 0)
			if a != b {
				t.Fatalf("token bucket %+v, GCRA %+v", a, b)
			}
			allowed, retry := book.take(limit, int64(window), burst, now, n)
			if a.Allowed != allowed || int64(a.Retry) != retry {
				t.Fatalf("token bucket: got %+v, want allowed %v, retry after %d", a, allowed, retry)
			}
			allowed, retry = cell.take(limit, int64(window), burst, now, n)
			if b.Allowed != allowed || int64(b.Retry) != retry {
				t.Fatalf("GCRA: got %+v, want allowed %v, retry after %d", b, allowed, retry)
			}
		}
	})
}

// weigh is the count of a sliding window as Kong weighs it, from all that was ever spent.
func weigh(spent []hit, now, length, slices int64) *big.Rat {
	sum := new(big.Rat)
	for _, h := range spent {
		weight := new(big.Rat)
		switch age := now/length - h.at/length; {
		case age < slices:
			weight.SetInt64(h.n)
		case age == slices:
			weight.Mul(big.NewRat(length-now%length, length), new(big.Rat).SetInt64(h.n))
		}
		sum.Add(sum, weight)
	}
	return sum
}

func TestSlidingWindowAgreesWithItsWeighting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := slidingWindow.draw(t)
		limit, _ := s.rule()
		w := newWalk(t, s)
		var spent []hit
		for range rapid.IntRange(1, 60).Draw(t, "takes") {
			now, n := w.step(t), rapid.Int64Range(0, 4).Draw(t, "n")
			weighed := weigh(spent, now, s.span(), int64(s.history()))
			want := weighed.Cmp(new(big.Rat).SetInt64(limit-n)) <= 0
			d := s.take(now, n, 0)
			if d.Allowed != want {
				t.Fatalf("take %d with %s of %d: admitted %v", n, weighed.FloatString(12), limit, d.Allowed)
			}
			if d.Allowed {
				spent = append(spent, hit{now, n})
			}
		}
	})
}

func TestLeaveFreesOnlyTheLastPlace(t *testing.T) {
	const ms = int64(time.Millisecond)
	// one leaves every 100ms
	p := Params{Kind: LeakyBucket, Limit: 10, Window: time.Second, Queue: 3}
	full := func() (k keyed[BucketState], ds []Decision) {
		k = keyOf[BucketState](p)
		for range 4 {
			ds = append(ds, k.take(epoch, 1, 0))
		}
		return k, ds
	}
	k, ds := full()
	for i, d := range ds {
		if want := time.Duration(i) * 100 * time.Millisecond; !d.Allowed || d.Delay != want {
			t.Fatalf("request %d: got %+v, want a delay of %v", i, d, want)
		}
	}
	if k.take(epoch, 1, 0).Allowed {
		t.Fatal("a fourth was let wait in a queue of 3")
	}
	tests := []struct {
		name  string
		which int
		after int64
		freed bool
	}{
		{"the last at once", 3, 0, true},
		{"the last later", 3, 250, true},
		{"the last, its turn has come", 3, 300, false},
		{"the second last", 2, 50, false},
		{"the one that is served", 0, 0, false},
	}
	for _, test := range tests {
		k, ds := full()
		now := epoch + test.after*ms
		before := k.level(now)
		k.machine.(Leaver[BucketState]).Leave(k.s, k.limit, epoch, now, 1, ds[test.which].Delay)
		want := before
		if test.freed {
			want--
		}
		if got := k.level(now); got != want {
			t.Errorf("%s: level %v, want %v", test.name, got, want)
		}
		if got := k.ledger().Cur.Own + k.ledger().Prev.Own; test.freed != (got == 3) {
			t.Errorf("%s: own total %d", test.name, got)
		}
	}
}
