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
	// What was reserved is refunded as far as it stands below top.
	top int64
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
	// maxUnspent bounds the refunds of reserved units of a bucket in one call.
	maxUnspent = 256
)

// corrections are those of one rule of one key. They are combined as they are added, so that their
// number goes by the rule and not by the requests: one refund, one penalty, one charge, and one
// more for each request that has cost less than it had reserved.
type corrections []correction

// add combines a correction with those of a rule.
func (c corrections) add(r Rule, new correction) corrections {
	f := familyOf(r.Kind)
	i := slices.IndexFunc(c, func(old correction) bool { return old.op == new.op && (new.op == charged || f.combine(r, old, new)) })
	if i < 0 {
		c = append(c, new)
	} else {
		c[i].n = saturate.Add(c[i].n, new.n)
		c[i].at = max(c[i].at, new.at)
	}
	return c
}

// A bucket adds up everything, at the last instant of it, except what has a place of its own.
func inOneBucket(_ Rule, _, new correction) bool { return new.op != unspent }

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

// appendArgs appends the corrections as the scripts read them.
func (c corrections) appendArgs(args []any) []any {
	args = append(args, len(c))
	for _, one := range c {
		args = append(args, int(one.op), min(one.n, exact-1), one.at, one.top)
	}
	return args
}
