package saturate

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// The sum is exact where it is in range, and the nearest end of the range where it is not.
func TestAdd(t *testing.T) {
	number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, math.MaxInt64}))
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		sum := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		want := sum.Int64()
		if !sum.IsInt64() {
			want = int64(math.MaxInt64)
			if sum.Sign() < 0 {
				want = math.MinInt64
			}
		}
		if got := Add(a, b); got != want {
			t.Fatalf("Add(%d, %d) = %d, want %d", a, b, got, want)
		}
	})
}
