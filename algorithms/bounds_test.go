package algorithms

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A hit is what was admitted at one instant.
type hit struct{ at, n int64 }

// What a queue admits starts one after the other, as far apart as its limit says, and nobody waits
// for more than those before.
func TestAQueueStartsAtItsPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := leakyBucket.draw(t)
		limit, window := s.rule()
		w := newWalk(t, s)
		begins, longest := int64(math.MinInt64), (size(s)-1)*int64(window)/limit
		for range rapid.IntRange(1, 60).Draw(t, "takes") {
			now, n := w.step(t), rapid.Int64Range(1, 4).Draw(t, "n")
			d := s.take(now, n, 0)
			if !d.Allowed {
				continue
			}
			if starts := now + int64(d.Delay); starts < begins || int64(d.Delay) > longest+1 {
				t.Fatalf("starts at %d after a delay of %v, want %d or later, and a delay of at most %v", starts, d.Delay, begins, time.Duration(longest))
			}
			begins = now + int64(d.Delay) + n*int64(window)/limit
		}
	})
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

// weigh is the count of a fixed window, or of a sliding one as Kong weighs it, from all that was
// ever spent.
func weigh(spent []hit, now, length, slices int64) *big.Rat {
	sum := new(big.Rat)
	for _, h := range spent {
		weight := new(big.Rat)
		switch age := now/length - h.at/length; {
		case age < max(1, slices):
			weight.SetInt64(h.n)
		case age == slices:
			weight.Mul(big.NewRat(length-now%length, length), new(big.Rat).SetInt64(h.n))
		}
		sum.Add(sum, weight)
	}
	return sum
}

func TestWindowsAgreeWithTheirWeighting(t *testing.T) {
	eachOf(t, windowKinds, func(t *rapid.T, k kind) {
		s := k.draw(t)
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
