// Package saturate adds numbers that may come to the end of their range.
package saturate

import "math"

// Add returns a + b, or the end of the range where that is beyond it.
func Add(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}
