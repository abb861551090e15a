// Package limits takes one request through the zones of its handler.
//
// Evaluate asks the zones and returns one value that says what they decided.
package limits

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// An Evaluation is what the zones of a handler decided for one request. It is reused after Free.
type Evaluation struct {
	// Denied is set where the request is denied. Denial is then what is to be answered.
	Denied bool
	Denial answer.Denial
	// WouldDeny is the longest denial that is not enforced.
	WouldDeny answer.ShadowDenial
	// Fields is what to put a response together in, until Free.
	Fields answer.Fields
	// Now is the instant that the results hold for: by then Redis has answered, and the request has
	// waited in its queues. Delay is how long an admitted request waits there.
	Now   int64
	Delay time.Duration

	keys []byte // of all checks, one after the other
	// checks are the zones that were asked, in that order, and later those that match and are asked
	// after others.
	checks, later []check
	// taken are what limits gave to the checks, and how much, of 0 units where a queue was only
	// read. results are what answers tell of them, at the same places; see Results.
	taken      []table.Taken
	results    []answer.Result
	slots      []TakenSlot
	perRequest []Limit // of checks whose limits come with the request
}

// evaluations are emptied by the garbage collector, and with them goes what an evaluation still
// points to.
var evaluations = sync.Pool{New: func() any { return new(Evaluation) }}

// maxKept bounds the buffer that a reused Evaluation holds on to.
const maxKept = 4096

// Evaluate asks every zone that matches a request at now, in the order of Arrange. Where one of
// them denies, the others have got back what they gave, and the denial is counted and logged. An
// error is a matcher's, or that the client has gone away: then all of them have got it back, as
// after a denial.
func Evaluate(zones []*Zone, r *http.Request, now int64) (e *Evaluation, err error) {
	e = evaluations.Get().(*Evaluation)
	e.Now = now
	ended := false
	defer func() {
		if !ended { // a matcher has panicked
			e.rollBack(endsDenied, true)
		}
		if !ended || err != nil {
			e.Free()
			e = nil
		}
	}()
	ends := true
	if err = e.askAll(zones, r); err == nil && !e.Denied {
		ends = e.enterQueues()
	}
	if ends {
		why := endsDenied
		if e.Denial.Reason == answer.Banned {
			why = endsBanned
		}
		if e.rollBack(why, err != nil || e.Denied) && err == nil {
			e.record(r)
		}
	}
	ended = true
	return e, err
}

// rollBack ends what all zones have given, or where all is not set only what zones in shadow mode
// have that would have denied. It reports whether there was one.
func (e *Evaluation) rollBack(why ending, all bool) (some bool) {
	for i := range e.checks {
		p := &e.checks[i]
		if !all && !p.decision.isDenial() {
			continue
		}
		some, e.Denial.Fields = true, &e.Fields
		if p.decision.isByLimits() {
			rollBackCounts(e, p, why)
		}
	}
	return some
}

// Free ends the use of an Evaluation and of what its methods returned. Slots that Hold did not hand
// over are free again.
func (e *Evaluation) Free() {
	for i := range e.slots {
		e.slots[i].Release()
	}
	if cap(e.keys) > maxKept {
		e.keys, e.checks, e.later = nil, nil, nil
	}
	if e.Denied || e.Denial.Fields != nil { // rollBack sets these; most requests have none to clear
		e.Denied, e.Denial, e.WouldDeny = false, answer.Denial{}, answer.ShadowDenial{}
	}
	e.keys, e.Delay = e.keys[:0], 0
	e.checks, e.later = e.checks[:0], e.later[:0]
	e.taken, e.results = e.taken[:0], e.results[:0]
	e.slots, e.perRequest = e.slots[:0], e.perRequest[:0]
	evaluations.Put(e)
}

// askAll asks every zone that matches, those that this node decides for first: they cost nothing,
// and a request that one of them denies need not trouble Redis. Of each of the two classes, zones
// that are not enforced for their keys come last.
func (e *Evaluation) askAll(zones []*Zone, r *http.Request) error {
	var already []string // zones that have counted the request
	if len(zones) > 0 && zones[0].AfterErrors {
		already = countedBefore(r)
	}
	if reqkey.IsEarly(r) {
		var err error
		if zones, err = e.askAfterHandshake(zones, r, already); err != nil || e.Denied {
			return err
		}
	}
	if !Starting.IsOver() {
		if err := e.awaitStart(zones, r, already); err != nil {
			return err
		}
	}
	if err := e.askBans(zones, r, already); err != nil || e.Denied {
		return err
	}
	for i, z := range zones {
		if z.IsStrict() {
			if err := e.askLater(r); err != nil {
				return err
			}
			return e.askStrict(zones[i:], r, already)
		}
		ok, err := z.Applies(r, already)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		e.checks = e.addCheck(e.checks, z, r)
		e.ask(r)
	}
	if len(e.later) == 0 {
		return nil
	}
	return e.askLater(r)
}

// awaitStart has a request wait for the start of the process where a zone goes by what other nodes
// or an earlier process have counted.
func (e *Evaluation) awaitStart(zones []*Zone, r *http.Request, counted []string) error {
	for _, z := range zones {
		if !z.Restored && (z.Redis == nil || z.SyncRate <= 0) {
			continue
		}
		ok, excepted, err := z.Selects(r, counted)
		if err != nil {
			return err
		}
		if ok && !excepted {
			Starting.Await(r.Context(), e.Now)
			e.Now = clock.Now()
			return nil
		}
	}
	return nil
}

// ask asks the gates of the last check, one after the other, until one doesn't admit the request. A
// zone that is not enforced for the key is asked later.
func (e *Evaluation) ask(r *http.Request) {
	last := len(e.checks) - 1
	p := &e.checks[last]
	if !p.shadow {
		if p.empty || reqkey.IsAmbiguous(p.ask.Raw) {
			p.noticeKey(p.empty)
		}
		if p.decision == noKey && p.EmptyKey != config.EmptyDeny {
			p.Decisions.Count(answer.Skipped)
			e.checks = e.checks[:last]
			return
		}
		if p.shadow = !p.EnforcesRaw(p.ask.Raw); p.shadow {
			e.later = append(e.later, *p)
			e.checks = e.checks[:last]
			return
		}
	}
	if p.Dry != nil && p.decision == admits {
		p.Dry.Answered, p.Dry.Lost = p.readRedis(p.limits)
		e.Now = clock.Now() // see askRedis
	}
	p.first = len(e.taken)
	if p.decision == admits {
		p.decision = askBan(e, p)
	}
	if p.decision == admits {
		p.decision = askCounts(e, p, r)
	}
	if !p.decision.isByLimits() {
		p.limits = nil
		if p.slot > 0 { // it is free again where the zone does not decide in the end
			e.slots[p.slot-1].GiveBack()
			e.taken, p.slot = e.taken[:p.first-1], 0
		}
	}
	switch {
	case p.decision == skips:
		e.checks = e.checks[:last]
	case p.decision.isDenial() && !p.shadow:
		e.Denied, e.Denial.Wait = true, max(e.Denial.Wait, p.wait)
		if p.decision == banned {
			e.Denial.Reason = answer.Banned
		}
	}
}

// askLater asks the zones that wait for others to be asked first. Of zones in which Redis decides
// none is asked after a denial: the request hears how long they would have it wait, or that they
// never admit it, for which Redis need not be asked.
func (e *Evaluation) askLater(r *http.Request) error {
	denied := e.Denied
	for i := 0; i < len(e.later); i++ {
		p := &e.later[i]
		strict := p.IsStrict()
		if strict && e.Denied && (p.shadow || p.decision == admits && !p.cost.exceedsSome(p.capped(p.ask.N, p.limits), p.limits)) {
			e.Denial.Wait = max(e.Denial.Wait, p.lastWait(e.Now))
			continue
		}
		e.checks = append(e.checks, *p)
		if e.ask(r); strict && !denied && r.Context().Err() != nil {
			return errGone // Redis was not waited for, which must not pass for an outage
		}
	}
	e.later = e.later[:0]
	return nil
}

// enterQueues takes the places in the queues that were only read, once all other limits have
// admitted: a place can't be refunded once others stand behind it, as they would start too close to
// each other. The time is that after Redis was asked: counted from the request's arrival, it would
// start later than its delay, and close to the next one. It reports whether a zone denies, or would
// in shadow mode.
func (e *Evaluation) enterQueues() (some bool) {
	for i := range e.checks {
		p := &e.checks[i]
		if p.decision != peeked {
			some = some || p.decision.isDenial()
			continue
		}
		p.ask.Now = e.Now
		for j := range p.limits {
			p.limits[j].Decide(&p.ask, p.Want, &e.taken[p.first+j])
		}
		if p.decision = e.judge(p); p.decision.isDenial() && !p.shadow {
			e.Denied, e.Denial.Wait = true, max(e.Denial.Wait, p.wait)
			return true
		}
		some = some || p.decision.isDenial()
	}
	return some
}

// errGone is the error for a client that went away while its request waited in a queue or for
// Redis; 499 is what other servers log for it.
var errGone = caddyhttp.HandlerError{Err: errors.New("client went away while its request waited to be admitted"), StatusCode: 499}

// Enter waits until an admitted request is due in its queues, and counts it as admitted.
// It returns an error if the client has gone away; its slots are then free again. The results of a
// request that has waited say how the limits stand after that. Redis is not asked again: what its
// answers tell of comes sooner by the wait.
func (e *Evaluation) Enter(ctx context.Context) error {
	if e.Delay > 0 && !clock.Sleep(ctx, e.Delay) {
		e.rollBack(endsGone, true)
		return errGone
	}
	for i := range e.checks {
		p := &e.checks[i]
		if p.decision.isByLimits() {
			e.noticeOverflow(p)
		}
		if p.decision.isDenial() {
			continue
		}
		p.Decisions.Count(answer.Admitted)
		if !p.decision.isByLimits() {
			continue
		}
		if p.cost != nil {
			p.Decisions.CountUnits(metrics.UnitsAdmitted, p.ask.N)
		}
		near := p.slot > 0 && isNear(e.slots[p.slot-1].Remaining(), e.slots[p.slot-1].Bound)
		for j := range p.limits {
			near = near || isNear(e.taken[p.first+j].Remaining, p.limits[j].Effective.Size)
		}
		if near {
			p.Decisions.CountEvent(metrics.Near)
		}
	}
	if e.Delay == 0 {
		return nil
	}
	now, results := clock.Now(), e.Results()
	e.Now = now
	for i := range e.checks {
		p := &e.checks[i]
		for j := range p.limits {
			if p.Want != 0 {
				p.limits[j].restate(&p.ask, now, &results[p.first+j])
			}
		}
	}
	return nil
}

// noticeOverflow counts a decision for a key without a counter of its own, and warns of it.
func (e *Evaluation) noticeOverflow(p *check) {
	if len(p.limits) > 0 && e.taken[p.first].Overflow || p.slot > 0 && e.slots[p.slot-1].Overflow {
		p.Decisions.CountEvent(metrics.Overflow)
		p.Notices.Full(&p.Settings, p.Once, p.Logger)
	}
}
