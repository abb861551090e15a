package ratelimit

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// pass is one request's way through the zones: what was taken for it and what each limit said. Passes are reused.
type pass struct {
	now  int64
	raw  []byte // the keys of all visits, one after the other
	take []visit
	all  []answer.Result // one for each limit of each visit, in order
	wait time.Duration
	// refused is the visit that makes the client wait longest; -1 if none refuses.
	refused int
	// denied is a zone that refuses without counting, because there is no key, or no Redis.
	denied      *zone
	unavailable bool
	// asked is set once Redis was asked: time has passed since now.
	asked bool
	// queues is how many visits are to take their places.
	queues  int
	taken   []table.Taken
	grants  []grant
	verdict []strict.Verdict
	strict  []strictZone // that match
}

// visit is one zone's part in a pass.
type visit struct {
	zone     *zone
	key      table.Key
	raw      [2]int // in pass.raw
	first    int    // in pass.all and pass.taken
	limiters []limiter
	queued   bool // the limits were only read; they are queues, whose places are taken last
	strict   bool // granted by Redis, grant is in pass.grants
	grant    int
	refused  bool
	early    bool // the key holds an address that early data doesn't prove
}

type grant struct {
	by *strict.Limiter
	strict.Grant
}

// passes are emptied by the garbage collector, and with them goes what a pass still points to.
var passes = sync.Pool{New: func() any { return new(pass) }}

func newPass(now int64) *pass {
	p := passes.Get().(*pass)
	p.now, p.wait, p.refused, p.unavailable = now, 0, -1, false
	p.asked, p.queues = false, 0
	return p
}

// keepBytes bounds the buffer that a reused pass holds on to.
const keepBytes = 4096

func (p *pass) free() {
	if cap(p.raw) > keepBytes {
		p.raw = nil
	}
	p.raw, p.take, p.all, p.taken = p.raw[:0], p.take[:0], p.all[:0], p.taken[:0]
	p.grants, p.verdict, p.denied = p.grants[:0], p.verdict[:0], nil
	passes.Put(p)
}

// check asks every zone that matches, and takes places in queues when all others have admitted. A place that is taken can't be given back once
// others stand behind it: they would begin too close to each other.
func (p *pass) check(zones []*zone, r *http.Request, vars map[string]any, counted []string) error {
	if err := p.visitAll(zones, r, vars, counted); err != nil {
		return err
	}
	if p.queues > 0 && !p.isRefused() {
		p.enterQueues()
	}
	return nil
}

// visitAll visits every zone that matches, the local ones first: they cost nothing, and a request that one of them refuses needn't trouble Redis.
func (p *pass) visitAll(zones []*zone, r *http.Request, vars map[string]any, counted []string) error {
	for i, z := range zones {
		if z.strict() { // zones are sorted, the strict ones last
			return p.checkStrict(zones[i:], r, vars, counted)
		}
		if z.wasCounted(counted) {
			continue
		}
		if ok, err := z.matches(r); err != nil {
			return err
		} else if !ok {
			continue
		}
		p.visit(z, r, vars)
	}
	return nil
}

func (p *pass) isRefused() bool { return p.refused >= 0 || p.denied != nil }

// visit builds the key and asks the zone's limits.
func (p *pass) visit(z *zone, r *http.Request, vars map[string]any) {
	start := len(p.raw)
	var skip bool
	if p.raw, skip = z.appendKey(p.raw, r, vars); skip {
		if z.EmptyKey == settings.EmptyDeny {
			p.denied = z
		}
		return
	}
	raw := p.raw[start:]
	p.take = append(p.take, visit{zone: z, key: table.KeyOf(raw), raw: [2]int{start, len(p.raw)}, first: len(p.all), limiters: z.limiters, early: reqkey.IsUnproven(raw)})
	v := &p.take[len(p.take)-1]
	lost := false
	if z.strict() && v.hasSlots(raw, p.now) {
		var answered bool
		if answered, lost = p.askRedis(r, v, raw); answered {
			p.judge(len(p.take) - 1)
			return
		}
	}
	if z.OnRedisLoss != settings.LossLocal && (lost || z.lost(raw)) {
		switch z.OnRedisLoss {
		case settings.LossAllow:
			p.take = p.take[:len(p.take)-1]
			return
		case settings.LossDeny:
			p.take = p.take[:len(p.take)-1]
			p.denied, p.unavailable = z, true
			return
		case settings.LossDivide:
			v.limiters = z.divided()
		}
	}
	v.queued = z.queuesLast
	for i, l := range v.limiters {
		t := p.ask(l, v, raw)
		p.taken = append(p.taken, t)
		p.all = append(p.all, resultOf(z.policies[i], l.max(), &t.Decision))
	}
	if v.queued {
		p.queues++
	}
	p.judge(len(p.take) - 1)
}

// ask takes one unit of a limit. A queue that is entered last is only read, unless it is full: then it denies.
func (p *pass) ask(l limiter, v *visit, raw []byte) table.Taken {
	if !v.queued {
		return l.take(v.key, raw, p.now, 1, v.zone.want)
	}
	t := l.take(v.key, raw, p.now, 0, 0)
	if t.Remaining >= 1 {
		return t
	}
	if t = l.take(v.key, raw, p.now, 1, 0); t.Allowed {
		l.abandon(v.key, t, p.now, 1) // a place has become free just now
	}
	return t
}

// enterQueues takes the places in the queues that were only read, at the time that it is now: what is counted from the request's arrival, before Redis
// was asked, would let it begin later than it is told, and close to the next one.
func (p *pass) enterQueues() {
	now := p.now
	if p.asked {
		now = clock.Now()
	}
	for i := range p.take {
		v := &p.take[i]
		if !v.queued {
			continue
		}
		v.queued = false
		for j, l := range v.limiters {
			t := l.take(v.key, p.key(v), now, 1, v.zone.want)
			p.taken[v.first+j], p.all[v.first+j] = t, resultOf(v.zone.policies[j], l.max(), &t.Decision)
		}
		if p.judge(i); p.isRefused() {
			return
		}
	}
}

// askRedis lets Redis decide. Where it could not, the node's own counters must; lost says that the zone's rule for a lost Redis holds then.
func (p *pass) askRedis(r *http.Request, v *visit, raw []byte) (answered, lost bool) {
	z, by := v.zone, v.zone.shared
	p.asked = true
	var g strict.Grant
	var err error
	for _, l := range z.limiters {
		if err := l.settle(r.Context(), v.key); err != nil {
			z.noteStrict(r, by, err)
			return false, true
		}
	}
	for {
		p.verdict, g, err = by.strict.Take(r.Context(), z.Name, z.rules, table.IDOf(raw), p.verdict[:0])
		if !errors.Is(err, strict.ErrClosed) {
			break
		}
		heir := z.heir()
		if heir == nil || heir.shared == by {
			return false, true
		}
		if !heir.strict() {
			return false, false // the own counters are what counts there
		}
		by = heir.shared
	}
	z.noteStrict(r, by, err)
	if err != nil {
		return false, true
	}
	v.strict, v.grant = true, len(p.grants)
	p.grants = append(p.grants, grant{by.strict, g})
	for i := range p.verdict {
		d := &p.verdict[i]
		p.taken = append(p.taken, table.Taken{Decision: d.Decision})
		p.all = append(p.all, resultOf(z.policies[i], z.rules[i].Limit, &d.Decision))
		z.limiters[i].learn(v.key, raw, p.now, d.Reports)
	}
	return true, false
}

// judge looks at what the limits of the visit p.take[at] said.
func (p *pass) judge(at int) {
	v := &p.take[at]
	for i := range v.zone.policies {
		d := &p.all[v.first+i]
		if d.Allowed {
			continue
		}
		v.refused = true
		if p.refused < 0 || d.RetryAfter > p.wait {
			p.refused, p.wait = at, d.RetryAfter
		}
	}
}

// giveBack undoes what was taken for a refused request. A zone that counts refused requests keeps what it took, and takes it where it refused.
func (p *pass) giveBack() {
	for i := range p.take {
		v := &p.take[i]
		if v.strict {
			p.giveBackStrict(v)
			continue
		}
		for j, l := range v.limiters {
			p.undo(v, l, v.first+j)
		}
	}
}

// giveBackStrict undoes what Redis granted, or charges for what it refused. A place in a queue stays taken: whether anybody stands behind it
// is not known here.
func (p *pass) giveBackStrict(v *visit) {
	g := p.grants[v.grant]
	switch {
	case g.Admitted() && !v.zone.CountDenied && v.zone.Kind != algorithms.LeakyBucket:
		g.by.Return(g.Grant)
	case !g.Admitted() && v.zone.CountDenied:
		g.by.Charge(g.Grant)
	}
}

// undo undoes what one of a visit's limits gave, p.all[at].
func (p *pass) undo(v *visit, l limiter, at int) {
	t, d := p.taken[at], &p.all[at]
	switch {
	case t.Allowed && v.queued: // nothing was taken
		if v.zone.CountDenied {
			l.charge(v.key, t, 1)
		}
	case t.Allowed && !v.zone.CountDenied && v.zone.Kind == algorithms.LeakyBucket:
		l.abandon(v.key, t, clock.Now(), 1)
	case t.Allowed && !v.zone.CountDenied:
		l.giveBack(v.key, t, 1)
	case t.Allowed && v.zone.want == 0: // but of a refused request it is told
		is := l.take(v.key, p.key(v), p.now, 0, waitsOf(v.zone.Kind))
		d.NextAfter, d.ResetAfter = is.Next, is.Reset
		return
	case !t.Allowed && v.zone.CountDenied:
		l.charge(v.key, t, 1)
		// It waits for what it was charged, too.
		if is := l.take(v.key, p.key(v), p.now, 1, 0); !is.Allowed {
			*d = resultOf(d.Policy, l.max(), &is.Decision)
			p.wait = max(p.wait, d.RetryAfter)
		} else {
			l.giveBack(v.key, is, 1)
		}
		return
	default:
		return
	}
	is := l.take(v.key, p.key(v), p.now, 0, waitsOf(v.zone.Kind))
	d.Remaining, d.NextAfter, d.ResetAfter = is.Remaining, is.Next, is.Reset
}

// delay is how long the request must wait for its turn, in the longest of its queues.
func (p *pass) delay() (d time.Duration) {
	for i := range p.taken {
		d = max(d, p.taken[i].Delay)
	}
	return d
}

// abandon frees the places in queues of a client that went away.
func (p *pass) abandon(now int64) {
	for i := range p.take {
		v := &p.take[i]
		for j, l := range v.limiters {
			if t := p.taken[v.first+j]; t.Delay > 0 && !v.strict {
				l.abandon(v.key, t, now, 1)
			}
		}
	}
}

// countOverflow counts a visit whose key found no place in a table.
func (p *pass) countOverflow(v *visit) {
	if !v.strict && p.taken[v.first].Overflow {
		v.zone.metrics.CountOverflow()
		v.zone.warnFull()
	}
}

// resultOf is what an answer tells of a decision.
func resultOf(p *answer.Policy, limit int64, d *algorithms.Decision) answer.Result {
	return answer.Result{
		Policy: p, Allowed: d.Allowed, Limit: limit, Remaining: d.Remaining,
		RetryAfter: d.Retry, NextAfter: d.Next, ResetAfter: d.Reset,
	}
}

// recordAdmission counts an admitted request in its zones.
func (p *pass) recordAdmission() {
	for i := range p.take {
		p.take[i].zone.metrics.Count(metrics.Admitted)
		p.countOverflow(&p.take[i])
	}
}

// recordDenial counts and logs a denied request in the zones that denied it, and returns what is to be answered.
func (p *pass) recordDenial(r *http.Request) answer.Denial {
	d := answer.Denial{Wait: p.wait, Results: p.all, Now: p.now}
	for i := range p.take {
		v := &p.take[i]
		p.countOverflow(v)
		switch {
		case !v.refused:
		case v.early:
			// No line and no event: they would blame the owner of an address that somebody else may have written there.
			v.zone.metrics.Count(metrics.TooEarly)
			d.Reason = answer.TooEarly
		default:
			v.zone.metrics.Count(metrics.Denied)
			longest := p.longest(v)
			v.zone.log.Denied(p.now, answer.Refusal{Request: r, Key: p.key(v), Hash: v.key[0], Limit: longest.Limit, Wait: longest.RetryAfter})
		}
	}
	switch {
	case p.refused >= 0:
		d.Zone = p.take[p.refused].zone.Name
	case p.unavailable:
		p.denied.metrics.Count(metrics.Unavailable)
		d.Reason, d.Zone, d.Wait = answer.Unavailable, p.denied.Name, time.Second
	default:
		z := p.denied
		d.Zone, d.Wait = z.Name, z.Limits[0].Window
		z.metrics.Count(metrics.Denied)
		z.log.Denied(p.now, answer.Refusal{Request: r, Wait: d.Wait})
	}
	return d
}

// longest is the denial in a visit that makes the client wait longest.
func (p *pass) longest(v *visit) (longest *answer.Result) {
	for i := range v.zone.policies {
		if one := &p.all[v.first+i]; !one.Allowed && (longest == nil || one.RetryAfter >= longest.RetryAfter) {
			longest = one
		}
	}
	return longest
}

// key returns the bytes of a visit's key.
func (p *pass) key(v *visit) []byte { return p.raw[v.raw[0]:v.raw[1]] }
