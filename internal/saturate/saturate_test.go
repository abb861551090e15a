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

// Quotients are exact, rounded down or up, and the end of the range where they are beyond it.
func TestMulDiv(t *testing.T) {
	number := rapid.OneOf(rapid.Int64Range(0, math.MaxInt64), rapid.SampledFrom([]int64{0, 1, 2, math.MaxInt64 - 1, math.MaxInt64}))
	rapid.Check(t, func(t *rapid.T) {
		a, b, more, c := number.Draw(t, "a"), number.Draw(t, "b"), number.Draw(t, "more"), number.Draw(t, "c")
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		quotient := func(up int64) int64 {
			if c == 0 {
				return math.MaxInt64
			}
			q, rest := new(big.Int).DivMod(product, big.NewInt(c), new(big.Int))
			if rest.Sign() > 0 {
				q.Add(q, big.NewInt(up))
			}
			if !q.IsInt64() {
				return math.MaxInt64
			}
			return q.Int64()
		}
		if got, want := MulDiv(a, b, c), quotient(0); got != want {
			t.Fatalf("MulDiv(%d, %d, %d) = %d, want %d", a, b, c, got, want)
		}
		product.Add(product, big.NewInt(more))
		if got, want := MulDivUp(a, b, more, c), quotient(1); got != want {
			t.Fatalf("MulDivUp(%d, %d, %d, %d) = %d, want %d", a, b, more, c, got, want)
		}
	})
}
