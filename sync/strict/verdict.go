package strict

import (
	"math"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/saturate"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Verdict is what one limit says to one request.
type Verdict struct {
	// Decision is exact for the instant at which Redis decided, with all its waits. A request is
	// admitted if all limits allow it; otherwise nothing was spent in any.
	Decision algorithms.Decision
	// Reports are what Redis holds for this key after the call, for a node that has to go on alone:
	// the level of the bucket. The receiver owns them.
	Reports []algorithms.Report
	// Reserved is set where a request is denied that a window would admit if all that is reserved
	// were refunded.
	Reserved bool
	// Top is where what was granted is in a bucket whose units are reserved, for their settlement;
	// 0 where that is not known.
	Top int64
}

// outcome is the reply to one batch of a call: how many units were granted at the instant at
// (microseconds of Redis' clock), and for each rule how many more would be granted and its state.
// budget is what the batch was cut from: the same, or more where requests cost more than one.
// before is what the batches before it were granted, asked when the call was made, by the process'
// clock, and denied what a request costs of each run that was not admitted as a whole.
type outcome struct {
	seq       int64
	asked     int64
	before    int64
	budget    int64
	granted   int64
	denied    []int64
	at        int64
	remaining []int64
	states    [][]int64
}

// A place is where a request is among those of its batch: how many units were granted before it,
// and what it costs itself.
type place struct {
	before, cost int64
	admitted     bool
}

// parseOutcomes reads {budget, at, {room, state…}…}, the answer to a call with such batches,
// and behind that {budget, {room, state…}…} of each further batch.
func parseOutcomes(v any, rules int, batches ...[]run) ([]*outcome, error) {
	all, ok := v.([]any)
	if !ok || len(all) != 1+len(batches)*(1+rules) {
		return nil, ratesync.ErrReply
	}
	at, ok := all[1].(int64)
	if !ok || at < 0 || at > math.MaxInt64/int64(time.Microsecond) {
		return nil, ratesync.ErrReply
	}
	all[1] = all[0]
	outcomes, before := make([]*outcome, len(batches)), int64(0)
	for i := range outcomes {
		from := 1 + i*(1+rules)
		o, err := parseOutcome(all[from:from+1+rules], batches[i])
		if err != nil {
			return nil, err
		}
		o.at, o.before = at, before
		before += o.granted
		outcomes[i] = o
	}
	return outcomes, nil
}

// parseOutcome reads {budget, {room, state…}…}.
func parseOutcome(all []any, runs []run) (*outcome, error) {
	budget, ok := all[0].(int64)
	if !ok || budget < 0 || budget > wantedBy(runs) {
		return nil, ratesync.ErrReply
	}
	rules := all[1:]
	o := &outcome{budget: budget, remaining: make([]int64, len(rules)), states: make([][]int64, len(rules))}
	for i, rule := range rules {
		numbers, ok := rule.([]any)
		if !ok || len(numbers) < 2 {
			return nil, ratesync.ErrReply
		}
		state, ok := parseNumbers(numbers)
		if !ok {
			return nil, ratesync.ErrReply
		}
		o.remaining[i], o.states[i] = state[0], state[1:]
	}
	for _, r := range runs {
		n := r.fits(budget - o.granted)
		if o.granted += n * r.cost; n < r.count {
			o.denied = append(o.denied, r.cost)
		}
	}
	return o, nil
}

// parseNumbers reads numbers that Redis' Lua can have counted to.
func parseNumbers(all []any) (numbers []int64, ok bool) {
	numbers = make([]int64, len(all))
	for i, v := range all {
		if numbers[i], ok = v.(int64); !ok || numbers[i] < -exact || numbers[i] > exact {
			return nil, false
		}
	}
	return numbers, true
}

// deny sees to it that some rule has no room for what was denied. The reply to a call that was sent
// twice tells the grant of the first time and the room of the second.
func (o *outcome) deny() {
	if len(o.denied) == 0 {
		return
	}
	tightest := 0
	for i, room := range o.remaining {
		if room < o.remaining[tightest] {
			tightest = i
		}
	}
	o.remaining[tightest] = min(o.remaining[tightest], slices.Min(o.denied)-1)
}

// verdicts appends what the rules say to a request of a batch.
func verdicts(rules []Rule, o *outcome, at place, dst []Verdict) []Verdict {
	for i, r := range rules {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, Verdict{})
		}
		v := &dst[len(dst)-1]
		v.Reports, v.Top = v.Reports[:0], 0
		left := o.remaining[i]
		if at.admitted {
			left += o.granted - at.before - at.cost
		}
		if size := r.size(); size >= exact && left > 0 { // the script counts to there
			left += size - (exact - 1)
		}
		v.Decision = algorithms.Decision{Result: algorithms.Result{
			Remaining: max(0, left), Allowed: at.admitted || o.remaining[i] >= at.cost,
		}}
		familyOf(r.Kind).decode(r, v, o, o.states[i], at)
		if !v.Decision.Allowed {
			// The room may be of a later instant than the grant, when nobody had to wait any more.
			v.Decision.Retry = max(time.Microsecond, v.Decision.Retry)
		}
		if r.Limit <= 0 {
			if v.Decision.Waits = (algorithms.Waits{}); !v.Decision.Allowed {
				v.Decision.Retry = r.Window
			}
		}
	}
	return dst
}

// decodeBucket reads {whole, rest, rate}: a level of whole + rest/window requests, and what drains
// of it in a window; and where units are reserved what was added to it in all.
func decodeBucket(r Rule, v *Verdict, o *outcome, state []int64, at place) {
	if len(state) < 3 {
		return
	}
	_, unit := inLua(r.Window)
	whole, rest := state[0], state[1]*(1000/unit)
	if r.Limit > 0 {
		r.waits(&v.Decision, whole, rest, o.granted, at)
	}
	if len(state) > 3 && at.admitted {
		v.Top = state[3] - (o.granted - at.before - at.cost)
	}
	now := o.at * int64(time.Microsecond)
	v.Reports = append(v.Reports, algorithms.Report{
		Epoch: now / int64(algorithms.Params(r).Epoch()), LevelAt: now, Rate: state[2],
		Level: float64(whole) + float64(rest)/float64(r.Window),
	})
}

// waits adds to a decision on a bucket how long a request of the place waits.
func (r Rule) waits(d *algorithms.Decision, whole, rest, granted int64, at place) {
	used := whole
	if rest > 0 {
		used++
	}
	if !d.Allowed {
		d.Retry = r.drains(whole-(r.size()-at.cost), rest)
		if r.size() < 1 {
			d.Retry = r.Window
		}
	}
	if used > 0 {
		d.Next = r.drains(whole-(min(used, max(1, r.size()))-1), rest)
		d.Reset = r.drains(whole, rest)
	}
	if r.Kind.Traits().Queues && at.admitted && at.cost > 0 {
		d.Delay = r.drains(whole-granted+at.before, rest)
	}
}

// drains is how long whole + rest/window requests take to drain, rounded up to Redis' microseconds;
// rest is in nanoseconds.
func (r Rule) drains(whole, rest int64) time.Duration {
	if whole < 0 {
		return 0
	}
	ns := saturate.MulDivUp(whole, int64(r.Window), rest, r.Limit)
	if ns >= math.MaxInt64-1000 {
		return math.MaxInt64
	}
	return time.Duration((ns+999)/1000) * time.Microsecond
}
