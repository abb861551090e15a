package strict

import (
	"cmp"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// A correction changes what was spent in one rule without a request that asks for it.
type correction struct {
	op op
	n  int64
	// at is an instant of Redis' clock, in microseconds: when the units were admitted, or the
	// request denied.
	at int64
	// Of a log, a refund is of the n units from unit on that the call seq got. Of a bucket, what
	// was reserved is refunded as far as it stands below top.
	seq, unit, top int64
}

// op says what a correction does. The scripts know them by these numbers.
type op int8

const (
	refund  op = 1 // refunds what was admitted
	penalty op = 2 // charges a request that was denied, until the bucket is full
	charged op = 4 // charges what a response has cost beyond what was reserved, whenever it arrives
	unspent op = 5 // refunds what was reserved in a bucket, as far as it has not drained
)

const (
	// maxUnits bounds the members that one call writes to a log or removes from it. The rest waits
	// for the next one.
	maxUnits = 4096
	// penaltySlots is how finely a log knows when requests were denied.
	penaltySlots = 16
	// maxUnspent bounds the refunds of reserved units of a bucket in one call.
	maxUnspent = 256
)

// corrections are those of one rule of one key. They are combined as they are added, so that their
// number goes by the rule and not by the requests: a window has two for each live epoch, a bucket
// one refund and one penalty, a log one penalty for each sixteenth of the window and refunds of no
// more than it admitted. All have one charge. A bucket has one more for each request that has cost
// less than it had reserved.
type corrections []correction

// add combines a correction with those of a rule. now is the latest known instant of Redis' clock:
// what has left the window by then is dropped.
func (c corrections) add(r Rule, now int64, new correction) corrections {
	f := familyOf(r.Kind)
	left := func(one correction) bool { return one.op != charged && f.hasLeft(r, one.at, now) }
	if left(new) {
		return c
	}
	i := slices.IndexFunc(c, func(old correction) bool { return old.op == new.op && (new.op == charged || f.combine(r, old, new)) })
	if i < 0 {
		c = append(slices.DeleteFunc(c, left), new)
	} else {
		c[i].n = saturate.Add(c[i].n, new.n)
		c[i].at = max(c[i].at, new.at)
	}
	if f.numbered {
		return c.cap(r.Limit)
	}
	return c
}

// A bucket adds up everything, at the last instant of it, except what has a place of its own.
func inOneBucket(_ Rule, _, new correction) bool { return new.op != unspent }

// A log adds up penalties of one slot, and refunds of units that follow each other.
func inOneSlot(r Rule, old, new correction) bool {
	if new.op == refund {
		return old.seq == new.seq && old.unit+old.n == new.unit
	}
	slot := max(1, r.Window.Microseconds()/penaltySlots)
	return old.at/slot == new.at/slot
}

// cap leaves the latest limit units of penalty, and a charge of as many.
func (c corrections) cap(limit int64) corrections {
	limit = max(0, limit)
	over := -limit
	for i, one := range c {
		switch one.op {
		case penalty:
			over = saturate.Add(over, one.n)
		case charged:
			c[i].n = min(one.n, limit)
		}
	}
	for over > 0 {
		oldest := -1
		for i, one := range c {
			if one.op == penalty && one.n > 0 && (oldest < 0 || one.at < c[oldest].at) {
				oldest = i
			}
		}
		less := min(over, c[oldest].n)
		c[oldest].n -= less
		over -= less
	}
	return slices.DeleteFunc(c, func(one correction) bool { return one.n <= 0 })
}

// cutBucket takes out all, penalties first: they came before the refunds that follow from the same
// denial. A charge comes last, as a full bucket takes no more of it. Of many refunds of what
// was reserved the rest waits for the next call.
func cutBucket(c corrections) (now, later corrections) {
	order := map[op]int{penalty: 0, refund: 1, unspent: 2, charged: 3}
	slices.SortStableFunc(c, func(a, b correction) int { return cmp.Or(order[a.op]-order[b.op], cmp.Compare(a.at, b.at)) })
	if len(c) <= maxUnspent {
		return c, nil
	}
	return c[:maxUnspent:maxUnspent], slices.Clone(c[maxUnspent:])
}

// cutLog takes out no more units than one call may bring along, penalties first.
func cutLog(c corrections) (now, later corrections) {
	slices.SortStableFunc(c, func(a, b correction) int {
		if d := cmp.Compare(b.op, a.op); d != 0 || a.op != refund {
			return d
		}
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.unit, b.unit))
	})
	units := int64(0)
	for i, one := range c {
		n := min(one.n, maxUnits-units)
		if n <= 0 {
			return now, slices.Clone(c[i:])
		}
		units += n
		if last := len(now) - 1; one.op == refund && last >= 0 && now[last].op == refund && now[last].seq == one.seq && now[last].unit+now[last].n == one.unit {
			now[last].n += n
		} else {
			part := one
			part.n = n
			now = append(now, part)
		}
		if n < one.n {
			c[i].n, c[i].unit = one.n-n, one.unit+n
			return now, slices.Clone(c[i:])
		}
	}
	return now, nil
}

// appendArgs appends the corrections as the scripts read them.
func (c corrections) appendArgs(r Rule, args []any) []any {
	args = append(args, len(c))
	for _, one := range c {
		a, b := one.at, one.top
		if familyOf(r.Kind).numbered && one.op == refund {
			a, b = one.seq, one.unit
		}
		args = append(args, int(one.op), min(one.n, exact-1), a, b)
	}
	return args
}
