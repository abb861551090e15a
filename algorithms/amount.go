package algorithms

import (
	"math"
	"math/bits"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// An amount is a number of requests: whole + frac/window, with frac in [0, window).
type amount struct{ whole, frac int64 }

// drains is how much drains in a time.
func (l Limit) drains(elapsed uint64) amount {
	hi, lo := bits.Mul64(uint64(l.N), elapsed)
	if hi >= uint64(l.Window) {
		return amount{whole: math.MaxInt64}
	}
	whole, frac := bits.Div64(hi, lo, uint64(l.Window))
	if whole > math.MaxInt64 {
		return amount{whole: math.MaxInt64}
	}
	return amount{int64(whole), int64(frac)}
}

// phase is how much of a request has drained at now, in parts of 1/window, where requests drain one
// after the other since the Unix epoch.
func (l Limit) phase(now int64) int64 {
	hi, lo := bits.Mul64(uint64(l.N), uint64(now))
	return int64(bits.Rem64(hi, lo, uint64(l.Window)))
}

// drained is what is left at now of a level that stood then. Of a level of the future all is left.
func (l Limit) drained(level amount, now, then int64) amount {
	if now <= then {
		return level
	}
	return level.after(l.drains(since(now, then)), l.Window)
}

// drainsTo is how many nanoseconds a deficit takes to drain to target, rounded up; the longest
// possible where that is longer.
func (l Limit) drainsTo(deficit amount, target int64) int64 {
	over := deficit.whole - target
	if over < 0 {
		return 0
	}
	return saturate.MulDivUp(over, l.Window, deficit.frac, l.N)
}

// parse reads a level that came from another node; what is no level is 0.
func (l Limit) parse(level float64) amount {
	if !(level > 0) {
		return amount{}
	}
	whole, frac := math.Modf(min(level, 1<<62))
	return amount{int64(whole), min(int64(frac*float64(l.Window)), l.Window-1)}
}

// left is what is left at now of the level in a report, under a limit where it names no rate.
func (r Report) left(l Limit, now int64) amount {
	if r.Rate > 0 {
		l.N = r.Rate
	}
	return l.drained(l.parse(r.Level), now, r.LevelAt)
}

// floor is a, 0 where it is negative.
func (a amount) floor() amount {
	if a.whole < 0 {
		return amount{}
	}
	return a
}

// ceil is the next whole number from a on.
func (a amount) ceil() int64 {
	if a.frac > 0 {
		return saturate.Add(a.whole, 1)
	}
	return a.whole
}

func (a amount) less(b amount) bool {
	return a.whole < b.whole || a.whole == b.whole && a.frac < b.frac
}

// after is what is left of a when b has drained.
func (a amount) after(b amount, window int64) amount {
	if a.less(b) {
		return amount{}
	}
	return a.minus(b, window)
}

func (a amount) plus(b amount, window int64) amount {
	sum := amount{saturate.Add(a.whole, b.whole), a.frac + b.frac}
	if sum.frac >= window {
		sum = amount{saturate.Add(sum.whole, 1), sum.frac - window}
	}
	return sum
}

func (a amount) minus(b amount, window int64) amount {
	rest := amount{saturate.Add(a.whole, -b.whole), a.frac - b.frac}
	if rest.frac < 0 {
		rest = amount{saturate.Add(rest.whole, -1), rest.frac + window}
	}
	return rest
}
