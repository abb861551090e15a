// Package saturate works with numbers that may come to the end of their range, and stay there.
package saturate

import (
	"math"
	"math/bits"
)

// Add returns a + b, or the end of the range where that is beyond it.
func Add(a, b int64) int64 {
	sum := a + b
	if (a^sum)&(b^sum) < 0 { // the sum has a sign that neither has
		return math.MaxInt64 ^ a>>63 // the end on the side of a
	}
	return sum
}

// MulDiv returns a*b/c rounded down, for numbers of 0 or more: the end of the range where that is
// beyond it, or c is 0.
func MulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(quotient, math.MaxInt64))
}

// MulDivUp returns (a*b + more)/c rounded up, likewise.
func MulDivUp(a, b, more, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(more), 0)
	if hi += carry; hi >= uint64(c) {
		return math.MaxInt64
	}
	quotient, rest := bits.Div64(hi, lo, uint64(c))
	if quotient >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(quotient + min(rest, 1))
}
