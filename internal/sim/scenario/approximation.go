package scenario

import (
	"fmt"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// An Approximation is an algorithm beside the truth: how much it admits, as one centralized limiter
// without any node, in intervals of its window's length.
type Approximation struct {
	Name string
	Case func(load Load) Case
}

// approximated is the limit and window of all of them.
const (
	approximatedLimit  = 400
	approximatedWindow = 10 * sec
)

// Approximations are the fixed window, the sliding window with several numbers of buckets, and the
// log, which is the truth itself.
func Approximations() []Approximation {
	const limit, window = approximatedLimit, approximatedWindow
	windows := func(name string, alg algorithms.Params) Approximation {
		return Approximation{name, func(load Load) Case {
			return CaseOf(name, Windows{Algorithm: alg, Nodes: 1, Rate: sec, Even: true, Load: load})
		}}
	}
	all := []Approximation{windows("`fixed_window`", algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: window}), windows("`sliding_window`", Sliding(limit, window))}
	for _, n := range []int{2, 4, 8, 16} {
		all = append(all, windows(fmt.Sprintf("`sub_windows %d`", n), algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: window, SubWindows: n}))
	}
	return append(all, Approximation{"`sliding_log`", func(load Load) Case {
		return CaseOf("`sliding_log`", Logs{Algorithm: algorithms.Params{Kind: algorithms.SlidingLog, Limit: limit, Window: window}, Nodes: 1, Rate: sec, Even: true, Load: load})
	}})
}

// Onset is a client that comes after a while and goes on at an offered load.
func Onset(demand float64) func(after time.Duration) Load {
	return func(after time.Duration) Load {
		return Load{{For: after + time.Millisecond}, {For: 3 * approximatedWindow, Rate: demand * approximatedLimit / approximatedWindow.Seconds()}}
	}
}

// Lumps are a tenth of a second with as many requests as the limit, again and again.
func Lumps(every time.Duration) func(after time.Duration) Load {
	return func(after time.Duration) Load {
		return append(Load{{For: after + time.Millisecond}}, Bursts(10*approximatedLimit+1, sec/10, every-sec/10, int(6*approximatedWindow/every))...)
	}
}

// Peak is the most that is admitted in any interval of the window's length, over starts all over a
// window, as a multiple of the limit.
func (a Approximation) Peak(load func(after time.Duration) Load) (peak float64) {
	const phases = 32
	for i := range phases {
		after := time.Duration(i) * approximatedWindow / phases
		peak = max(peak, a.Case(load(after)).Exact(0).Peak)
	}
	return peak
}
