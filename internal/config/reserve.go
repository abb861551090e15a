package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// Reserve is a share of each limit of a zone that is kept for one class of requests, in steps of a
// ten-thousandth. Whole numbers, as 7 % of 100 is more than 7 in floating point.
type Reserve uint16

// The bounds of a zone's reserves.
const (
	maxReserved = enforcementSteps / 10 * 9
	maxReserves = 32
)

// Reserves returns the reserves of these shares, which may add up to nine tenths.
func Reserves(shares []float64) (all []Reserve, err error) {
	if len(shares) > maxReserves {
		return nil, fmt.Errorf("there are %d; write at most %d", len(shares), maxReserves)
	}
	sum := 0.0
	for _, share := range shares {
		n := math.Round(share * enforcementSteps)
		if !(share > 0 && share <= 1) {
			return nil, fmt.Errorf("%g is no part that could be kept; write one above 0, like 20%% or 0.2, in JSON as 0.2", share)
		}
		if sum += max(n, 1); sum > maxReserved {
			return nil, errors.New("more than 90% is reserved in total, which leaves too little for the other requests; write smaller shares")
		}
		all = append(all, Reserve(max(n, 1)))
	}
	return all, nil
}

// Of returns how much of n is reserved, rounded up.
func (r Reserve) Of(n int64) int64 { return saturate.MulDivUp(n, int64(r), 0, enforcementSteps) }

// Without returns what is left of n without the reserves that are for others, a bit each: never
// nothing.
func (z *Settings) Without(others uint32, n int64) int64 {
	left := n
	for i, r := range z.Reserve {
		if others>>i&1 != 0 {
			left -= r.Of(n)
		}
	}
	return max(min(n, 1), left)
}

// Share returns the reserve as a share, above 0 and up to 0.9.
func (r Reserve) Share() float64 { return float64(r) / enforcementSteps }

// String returns the reserve as a Caddyfile has it.
func (r Reserve) String() string {
	return strconv.FormatFloat(float64(r)/(enforcementSteps/100), 'f', -1, 64) + "%"
}
