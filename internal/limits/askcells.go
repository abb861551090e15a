package limits

import (
	"errors"
	"net/http"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// askRedis has Redis decide, if it has to be asked. done is set where it decides, or the key is
// banned, and lost where Redis was asked and has not answered. What it grants is in this node's
// counters then, as if they had decided.
func (e *Evaluation) askRedis(p *check, r *http.Request) (decided decision, done, lost bool) {
	if _, ok := Room(p.limits, p.ask.Key, p.ask.Raw, e.Now); !ok {
		return admits, false, false
	}
	if p.Dry != nil {
		return admits, false, p.Dry.Lost != nil
	}
	had := len(e.taken)
	var err error
	e.taken, err = p.decideInRedis(r, p.request(), e.taken)
	// The call took its time. A later Take at the arrival's would pass for a step of the clock.
	e.Now = clock.Now()
	if err != nil {
		e.taken = e.taken[:had]
		if errors.Is(err, strict.ErrBanned) {
			p.wait = p.restOf(p.ask.Raw, p.shadow, e.Now)
			return banned, p.wait > 0, false // 0 also where there is no room to note the ban
		}
		return admits, false, !errors.Is(err, strict.ErrFull) && !errors.Is(err, errDecidesHere)
	}
	p.byRedis, p.ask.Now = true, e.Now
	return e.judge(p), true, false
}

// recallDenial denies a request by Redis' last denial of its key, and reports whether it does:
// where denied requests count each of them changes something, and where responses decide what was
// spent may be refunded at any time. A dry run reads Redis.
func (e *Evaluation) recallDenial(p *check) (denies bool) {
	if !p.IsStrict() || p.Dry != nil || len(p.limits) == 0 || !p.request().Recall(&e.taken) {
		return false
	}
	p.byRedis, p.ask.Now = true, e.Now
	return true
}

// request is what Redis is asked for.
func (p *check) request() *strict.Request {
	if r := p.toAsk; r != nil {
		return r
	}
	r := &strict.Request{
		Key: p.ask.Key, Raw: p.ask.Raw, N: p.ask.N, Want: p.Want | p.Reserving,
		Remembers: !p.CountDenied && !p.Settles(), Queues: p.Kind.Traits().Queues, Counters: p.counters, Limits: p.enforced,
	}
	if p.arePerRequest(p.limits) {
		r.Counters, r.Limits = countersOf(p.limits), enforcedOf(p.limits)
	}
	p.toAsk = r
	return r
}

func enforcedOf(limits []Limit) []algorithms.Limit {
	all := make([]algorithms.Limit, len(limits))
	for i := range limits {
		all[i] = limits[i].Effective
	}
	return all
}

// prepare has Redis be asked before the configuration becomes the current one.
func (l *Limit) prepare() {
	b := l.syncConfig(strictInterval)
	b.StoreDecides, b.Waker = true, l.Syncer.Waker
	l.Table.Prepare(b)
}

func countersOf(limits []Limit) []strict.Counter {
	all := make([]strict.Counter, len(limits))
	for i := range limits {
		all[i] = strict.Counter{Table: limits[i].Table, Syncer: limits[i].Syncer}
	}
	return all
}

// errDecidesHere is where the configuration that has taken over has this node's counters decide.
var errDecidesHere = errors.New("this node decides")

// decideInRedis asks Redis. A request that is on its way when its own configuration ends goes by
// the Redis of the current one, whose counts are the ones that go on.
func (p *check) decideInRedis(r *http.Request, ask *strict.Request, dst []table.Taken) (took []table.Taken, err error) {
	for by := p.Redis; ; {
		took, err = by.Strict.Ask(r.Context(), p.Name, ask, dst)
		if !errors.Is(err, strict.ErrClosed) {
			if err == nil || !errors.Is(err, strict.ErrBanned) && !errors.Is(err, strict.ErrFull) {
				p.Notices.Strict(r, p.Name, by, err)
			}
			return took, err
		}
		var next *Zone
		if p.Successor != nil {
			next = p.Successor(p.Name)
		}
		if next == nil || next.Redis == by {
			return dst, err
		}
		if !next.IsStrict() {
			return dst, errDecidesHere
		}
		by = next.Redis
	}
}
