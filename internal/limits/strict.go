package limits

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// strictZone is a zone that Redis decides for, and what is left in it by this node's own counts.
type strictZone struct {
	question
	left int64
}

// askStrict asks the zones that Redis decides for. After the first denial none is asked that needs
// Redis: each zone asked before gives a unit to a request that is denied, which others lack until
// it has been refunded. So the likeliest to deny is asked first, see askedBefore. The key and
// limits of a zone are read right after its own matchers have run: those of the next one may
// replace what placeholders read.
func (e *Evaluation) askStrict(zones []*Zone, r *http.Request, vars map[string]any, counted []string) error {
	if e.IsDenied() {
		e.hearAll(zones, r, vars, counted)
		return nil
	}
	e.matching = e.matching[:0]
	for _, z := range zones {
		if ok, err := z.Applies(r, counted); err != nil {
			return err
		} else if ok {
			e.matching = append(e.matching, strictZone{question: e.questionFor(z, r, vars, true)})
		}
	}
	if len(e.matching) > 1 {
		for i := range e.matching {
			e.matching[i].left = e.leftIn(&e.matching[i].question)
		}
		slices.SortStableFunc(e.matching, strictZone.askedBefore)
	}
	for i := range e.matching {
		q := &e.matching[i].question
		if e.IsDenied() && !q.isClosed() {
			e.hear(q)
			continue
		}
		e.put(q, r)
		if r.Context().Err() != nil {
			return errGone // Redis was not waited for, which must not pass for an outage
		}
	}
	if e.IsDenied() {
		return nil
	}
	return e.askShadows(r)
}

// hearAll has a request that was denied before Redis is asked hear of the waits of all zones that
// Redis decides for.
func (e *Evaluation) hearAll(zones []*Zone, r *http.Request, vars map[string]any, counted []string) {
	if e.longest == 0 {
		return // no limit denies
	}
	for _, z := range zones {
		if ok, excepted, err := z.Selects(r, counted); ok && !excepted && err == nil {
			q := e.questionFor(z, r, vars, false)
			if q.isBarred() {
				e.put(&q, r)
			} else {
				e.hear(&q)
			}
		}
	}
}

// hear has a denied request wait as long as a zone would have it that was not asked, as Redis last
// told this node. What responses may refund is none to wait for.
func (e *Evaluation) hear(q *question) {
	if q.isClosed() || q.CountResponses != nil || !q.EnforcesRaw(e.rawOf(&q.keyed)) {
		return
	}
	for i := range q.limits {
		l := &q.limits[i]
		e.wait = max(e.wait, l.Table.Wait(l.Enforced, q.hash, e.now))
	}
}

// askedBefore orders zones by what is left in them as Redis last reported. Queues that
// have room come last: a slot can't be refunded once others stand behind it.
func (z strictZone) askedBefore(other strictZone) int {
	last := func(z strictZone) int {
		if z.Kind.Queues() && z.left > 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(z), last(other)), cmp.Compare(z.left, other.left))
}

// leftIn returns what is left of a zone's tightest limit for a request, by this node's own counts;
// -1 where Redis is not asked.
func (e *Evaluation) leftIn(q *question) int64 {
	if q.isClosed() {
		return -1
	}
	if left, ok := Room(q.limits, q.hash, e.rawOf(&q.keyed), e.now); ok {
		return left
	}
	return -1
}

// askRedis lets Redis decide. Where it could not, this node's own counters must; lost reports
// whether the zone's on_redis_loss applies then.
func (e *Evaluation) askRedis(r *http.Request, zr *zoneResult, raw []byte) (decided, lost bool) {
	z, by := zr.Zone, zr.Redis
	if z.Forked != nil {
		return e.lookRedis(r.Context(), zr, raw)
	}
	for i := range zr.limits {
		// Redis first learns what was decided for the key while it was unavailable.
		if err := zr.limits[i].Source.ChargeNow(r.Context(), zr.hash); err != nil {
			z.Notices.Strict(r, z.Name, by, err)
			return false, true
		}
	}
	var g strict.Grant
	var err error
	for rules := zr.rulesOf(); ; {
		e.verdicts, g, err = by.Strict.Take(r.Context(), z.Name, rules, keys.IDOf(raw), e.verdicts[:0])
		if !errors.Is(err, strict.ErrClosed) {
			break
		}
		// A request that is on its way when its own configuration ends goes by the Redis of the
		// current one, whose counts are the ones that go on.
		next := z.Successor(z.Name)
		if next == nil || next.Redis == by {
			return false, true
		}
		if !next.IsStrict() {
			return false, false // this node's counters are what is enforced there
		}
		by = next.Redis
	}
	if zr.mergeBan(err) {
		return false, true
	}
	z.Notices.Strict(r, z.Name, by, err)
	if err != nil {
		return false, true
	}
	zr.strict, zr.grant = true, len(e.grants)
	e.grants = append(e.grants, grant{by: by.Strict, Grant: g, asked: g.Asked(), came: clock.Now()})
	for i := range e.verdicts {
		v, l := &e.verdicts[i], &zr.limits[i]
		e.receipts = append(e.receipts, table.Taken{Decision: v.Decision})
		if by.Strict.IsUpToDate(z.Name, g) {
			l.Table.Import(l.Enforced, zr.hash, raw, clock.Now(), v.Reports)
		}
	}
	if zr.CountResponses != nil {
		e.noteGrant(zr, e.verdicts)
	}
	return true, false
}
