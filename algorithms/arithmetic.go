package algorithms

import (
	"math/bits"
	"time"
)

// floorDivMod divides rounding down, so that the remainder is never negative; b > 0.
func floorDivMod(a, b int64) (q, r int64) {
	q, r = a/b, a%b
	if r < 0 {
		q, r = q-1, r+b
	}
	return q, r
}

// nearest divides rounding to the nearest, halves away from zero; b > 0.
func nearest(a, b int64) int64 {
	q, r := a/b, a%b
	switch {
	case r >= b-r:
		q++
	case -r >= b+r:
		q--
	}
	return q
}

// since is the time from then to now, which is not before it. It can't overflow where an int64
// would.
func since(now, then int64) uint64 { return uint64(now) - uint64(then) }

// mulDiv is floor(a*b/c), exact, for a <= c or b <= c, none negative, c > 0.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}

// mulDivUp is mulDiv rounded up.
func mulDivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	if r > 0 {
		q++
	}
	return int64(q)
}

// lateness is how far behind the newest instant that a state has seen a request may come and still
// be taken for one that read its clock before another did. It is served as if it came at that
// instant. Further back is a step of the clock.
func lateness(length int64) int64 { return min(length/8, int64(100*time.Millisecond)) }
