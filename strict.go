package ratelimit

import (
	"cmp"
	"math"
	"net/http"
	"slices"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// strictZone is a zone that Redis decides for, and what is left in it by this node's own counts.
type strictZone struct {
	*zone
	left int64
}

// checkStrict visits the zones that Redis decides for, and ends with the first denial: each zone asked before it gives a unit to a
// request that is denied, which others lack until it has been refunded. So the likeliest to deny is asked first, see askedBefore.
func (p *pass) checkStrict(zones []*zone, r *http.Request, vars map[string]any, counted []string) error {
	if p.isRefused() {
		return nil
	}
	p.strict = p.strict[:0]
	for _, z := range zones {
		if z.wasCounted(counted) {
			continue
		}
		if ok, err := z.matches(r); err != nil {
			return err
		} else if ok {
			p.strict = append(p.strict, strictZone{zone: z})
		}
	}
	if len(p.strict) > 1 {
		for i := range p.strict {
			p.strict[i].left = p.leftIn(p.strict[i].zone, r, vars)
		}
		slices.SortStableFunc(p.strict, strictZone.askedBefore)
	}
	for _, z := range p.strict {
		p.visit(z.zone, r, vars)
		if r.Context().Err() != nil {
			return errGone // Redis was not waited for, which must not pass for a loss of Redis
		}
		if p.isRefused() {
			break
		}
	}
	return nil
}

// askedBefore orders zones by what is left in them by what Redis has told this node. Queues that have room come last: a place
// can't be refunded once others stand behind it.
func (z strictZone) askedBefore(other strictZone) int {
	last := func(z strictZone) int {
		if z.Kind == algorithms.LeakyBucket && z.left > 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(z), last(other)), cmp.Compare(z.left, other.left))
}

// leftIn is what is left of a zone's tightest limit for a request, by this node's own counts.
func (p *pass) leftIn(z *zone, r *http.Request, vars map[string]any) int64 {
	start := len(p.raw)
	raw, empty := z.template.Append(p.raw, r, vars)
	if empty {
		switch z.EmptyKey {
		case settings.EmptyDeny, settings.EmptySkip:
			return -1 // nothing is asked
		case settings.EmptyClientIP:
			raw = z.template.AppendClientIP(raw[:start], r, vars)
		}
	}
	p.raw = raw[:start]
	key, left := table.KeyOf(raw[start:]), int64(math.MaxInt64)
	for _, l := range z.limiters {
		one, ok := l.room(key, raw[start:], p.now)
		if !ok {
			return -1 // Redis is not asked
		}
		left = min(left, one)
	}
	return left
}

// hasSlots reports whether each limit's table has a place for the visit's key. Redis is not asked for others: max_keys bounds
// what a zone puts into Redis, too.
func (v *visit) hasSlots(raw []byte, now int64) bool {
	for _, l := range v.limiters {
		if _, ok := l.room(v.key, raw, now); !ok {
			return false
		}
	}
	return true
}
