// Package limits takes one request through the zones of its handler.
//
// Evaluate asks the zones and returns one value that says what they decided.
package limits

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A Zone is one of a handler, and a Limit one of a zone, with its counters.
type ()

// An Evaluation is what the zones of a handler decided for one request. It is reused after Free.
type Evaluation struct {
	now      int64
	keys     []byte // of all zones, one after the other
	zones    []zoneResult
	receipts []table.Taken   // of each limit of each zone, in order
	results  []answer.Result // what answers tell of them and of slots; see Results
	own      []Limit         // of zones whose limits come with the request
	grants   []grant
	verdicts []strict.Verdict
	matching []strictZone
	// shadows are the zones that are not enforced for their keys and still to be asked. closed are
	// zones that deny without asking their limits and are still to be recorded: those that are not
	// enforced, and those in which an operator denies all requests of the key, or the key is
	// banned.
	shadows []question
	closed  []keyed
	// throttles are the keys that slow the response.
	throttles []throttle
	slots     []TakenSlot   // of zones with concurrent
	fields    answer.Fields // for the response
	asked     table.Ask     // of a table, for the time of a call
	stands    table.Taken   // the answer to that where receipts are kept as they are

	overall
}

// overall is what is decided for the request as a whole. It is zero before the first zone is asked.
type overall struct {
	// denied is set where the request is denied. longest is the zone whose limits make the client
	// wait longest, by its place in zones and one more, 0 for none; wait is that wait.
	denied  bool
	longest int
	wait    time.Duration
	// uncounted is a zone that denies a request without asking its limits, so that it counts
	// nowhere: the request has no key, or Redis is unavailable.
	uncounted *Zone
	// barred is a zone in which an operator denies all requests of the key. barredEarly is set
	// where early data doesn't prove the address in it.
	barred      *Zone
	barredEarly bool
	// banned is a zone in which the request's key is banned, for as long as wait. beganIn is one in
	// which a ban begins with this request, and began how long it lasts.
	banned, beganIn *Zone
	began           time.Duration
	unavailable     bool
	denial          answer.Denial
	// overShadow is set where a zone that is not enforced would deny, and wouldDeny is the longest
	// denial that is not enforced.
	overShadow bool
	wouldDeny  answer.ShadowDenial
	// queues is how many zones are still to give their slots.
	queues int
	// holds is set where a zone holds something beyond its decision: see Hold.
	holds      bool
	near       bool // see IsNear
	overflowed bool // a key has no counter of its own
}

// zoneResult is one zone's part in an Evaluation.
type zoneResult struct {
	keyed
	hash   keys.Key
	first  int     // of its limits, in receipts
	shown  int     // the same in results, where that of slots comes before it; see Results
	own    bool    // limits are the request's own: see limitsOf
	limits []Limit // those that are enforced: the zone's, or this node's share of them
	queued bool    // the limits were only read; they are queues, whose slots are taken last
	strict bool    // Redis decided, by a grant in grants
	grant  int
	denied bool
	// reserved is set where the zone denies only as long as others may get back what they reserved.
	reserved bool
	early    bool // the key holds an address that early data doesn't prove

	divided bool // limits are this node's share
	slot    int  // one more than that of its slot in slots, 0 for none
}

// grant is what a Redis granted.
type grant struct {
	by *strict.Limiter
	strict.Grant
	// asked is when Redis was, and came when the answer did. reserved has a bit for each limit that
	// denies only as something is reserved.
	asked, came int64
	reserved    uint64
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
func Evaluate(zones []*Zone, r *http.Request, now int64) (*Evaluation, error) {
	e := evaluations.Get().(*Evaluation)
	e.now = now
	var err error
	if slices.ContainsFunc(zones, func(z *Zone) bool { return z.Slots != nil }) {
		err = e.evaluateWithSlots(zones, r)
	} else {
		err = e.evaluate(zones, r)
	}
	if err != nil {
		e.Free()
		return nil, err
	}
	return e, nil
}

// evaluate is Evaluate for an Evaluation that is new.
func (e *Evaluation) evaluate(zones []*Zone, r *http.Request) error {
	if err := e.askAll(zones, r); err != nil {
		e.rollBack(true)
		return err
	}
	if e.queues > 0 && !e.IsDenied() {
		e.enterQueues()
	}
	if e.IsDenied() || e.overShadow {
		e.rollBack(e.IsDenied())
		e.recordDenials(r)
	}
	return nil
}

// Free ends the use of an Evaluation and of what its methods returned. Slots that Hold did not hand
// over are free again.
func (e *Evaluation) Free() {
	e.freeSlots()
	if cap(e.keys) > maxKept {
		e.keys, e.asked.Raw = nil, nil
	}
	e.keys = e.keys[:0]
	e.zones = e.zones[:0]
	e.receipts = e.receipts[:0]
	e.results = e.results[:0]
	e.own = e.own[:0]
	e.grants = e.grants[:0]
	e.verdicts = e.verdicts[:0]
	e.shadows = e.shadows[:0]
	e.closed = e.closed[:0]
	e.throttles = e.throttles[:0]
	e.slots = e.slots[:0]
	e.overall = overall{}
	evaluations.Put(e)
}

// IsDenied reports whether the request is denied. Denial then says why.
func (e *Evaluation) IsDenied() bool { return e.denied }

// Denial returns what is to be answered to a denied request.
func (e *Evaluation) Denial() answer.Denial { return e.denial }

// Results returns what each limit decided.
func (e *Evaluation) Results() []answer.Result {
	if len(e.results) > 0 {
		return e.results
	}
	for i := range e.zones {
		zr, first := &e.zones[i], len(e.results)
		if zr.slot > 0 {
			t := &e.slots[zr.slot-1]
			e.results = append(e.results, t.By.Result(t))
		}
		zr.shown = len(e.results)
		for j := range zr.limits {
			at := len(e.results)
			e.results = slices.Grow(e.results, 1)[:at+1]
			zr.limits[j].Tell(&e.receipts[zr.first+j].Decision, &e.results[at])
		}
		for j := first; j < len(e.results); j++ {
			e.results[j].Shadow = zr.shadow
		}
	}
	return e.results
}

// Fields is what to put a response together in, until Free.
func (e *Evaluation) Fields() *answer.Fields { return &e.fields }

// Now is the instant that the results hold for: by then Redis has answered, and the request has
// waited in its queues.
func (e *Evaluation) Now() int64 { return e.now }

// askAll asks every zone that matches, those that this node decides for first: they cost nothing,
// and a request that one of them denies need not trouble Redis. Of each of the two classes, zones
// that are not enforced for their keys come last.
func (e *Evaluation) askAll(zones []*Zone, r *http.Request) error {
	vars := reqkey.Vars(r)
	var already []string // zones that have counted the request
	if len(zones) > 0 && zones[0].AfterErrors {
		already = countedBefore(r)
	}
	if hasBans(zones) {
		if err := e.askBans(zones, r, vars, already); err != nil || e.banned != nil {
			return err
		}
	}
	i := 0
	for ; i < len(zones) && !zones[i].IsStrict(); i++ {
		if ok, err := zones[i].Applies(r, already); err != nil {
			return err
		} else if ok {
			e.ask(zones[i], r, vars)
		}
	}
	if len(e.shadows) > 0 {
		if err := e.askShadows(r); err != nil {
			return err
		}
	}
	if i == len(zones) {
		return nil
	}
	return e.askStrict(zones[i:], r, vars, already)
}

// ask makes the key and asks the zone's limits, later if they are not enforced for that key.
func (e *Evaluation) ask(z *Zone, r *http.Request, vars map[string]any) {
	if z.Redis != nil && z.SyncRate > 0 && !Starting.IsOver() {
		Starting.Await(r.Context(), e.now)
		e.now = clock.Now() // see decideInRedis
	}
	q := e.questionFor(z, r, vars, true)
	e.put(&q, r)
}

// put asks a zone, later if it is not enforced for the key.
func (e *Evaluation) put(q *question, r *http.Request) {
	z := q.Zone
	if q.empty {
		z.Notices.Empty(&z.Settings, z.Logger)
	} else if reqkey.IsAmbiguous(e.rawOf(&q.keyed)) {
		z.Notices.Ambiguous(&z.Settings, z.Logger)
	}
	if q.none && z.EmptyKey != config.EmptyDeny {
		z.Decisions.Count(answer.Skipped)
		return
	}
	if q.shadow = !z.EnforcesRaw(e.rawOf(&q.keyed)); q.shadow {
		e.shadows = append(e.shadows, *q)
		return
	}
	e.decide(q, r)
}

// decide asks the zone's limits.
func (e *Evaluation) decide(q *question, r *http.Request) {
	k, z := &q.keyed, q.Zone
	switch {
	case k.none:
		e.close(*k, false)
		return
	case q.isBarred():
		e.bar(*k)
		return
	case k.shadow && e.findBan(k, e.now):
		return
	}
	throttled := e.throttle(k, q.hash, q.by)
	slots := z.Slots.For(q.by)
	if len(q.limits) == 0 && slots == nil {
		if !throttled {
			z.Decisions.Count(answer.Skipped)
		}
		return
	}
	at := len(e.zones)
	e.zones = slices.Grow(e.zones, 1)[:at+1]
	zr := &e.zones[at]
	*zr = zoneResult{}
	raw := e.rawOf(k)
	zr.keyed, zr.hash, zr.first = *k, q.hash, len(e.receipts)
	zr.limits, zr.own, zr.early = q.limits, q.own, reqkey.IsUnproven(raw)
	if names := z.KeyNames; z.LogKeys && names.Wants(zr.hash, e.now) {
		names.Leave(zr.hash, z.Template.Text(raw))
	}
	if slots != nil && !e.takeSlot(slots, r, raw) {
		return
	}
	lost := false
	if z.IsStrict() && len(q.limits) > 0 {
		var done bool
		if done, lost = e.decideInRedis(at, k, r); done {
			return
		}
	}
	if z.OnRedisLoss != config.LossLocal && (lost || z.IsUnavailable(raw)) && !e.failOver(zr) {
		return
	}
	if !e.takeAll(zr, raw) {
		e.checkLimits(at)
	}
}

// decideInRedis has Redis decide for a zone, if it has to be asked. done is set where the zone is
// decided, and lost where Redis was asked and has not answered.
func (e *Evaluation) decideInRedis(at int, k *keyed, r *http.Request) (done, lost bool) {
	zr, raw := &e.zones[at], e.keys[k.key[0]:k.key[1]]
	if _, ok := Room(zr.limits, zr.hash, raw, e.now); !ok {
		return false, false
	}
	done, lost = e.askRedis(r, zr, raw)
	// The call took its time. A later Take at the arrival's would pass for a step of the clock.
	e.now = clock.Now()
	switch {
	case done:
		e.checkLimits(at)
	case e.findBan(k, e.now):
		e.freeSlot(zr)
		e.zones = e.zones[:at]
		return true, false
	}
	return done, lost
}

// failOver applies a zone's on_redis_loss. It reports whether this node decides.
func (e *Evaluation) failOver(zr *zoneResult) bool {
	k := zr.keyed
	if k.OnRedisLoss == config.LossDivide {
		zr.divided = true
		if zr.own {
			DivideLimits(zr.limits, k.Redis.Replicator.Nodes())
		} else {
			zr.limits = k.Shares.Of(k.AllLimits, k.Redis.Replicator.Nodes())
		}
		return true
	}
	e.freeSlot(zr)
	e.zones = e.zones[:len(e.zones)-1]
	if k.OnRedisLoss == config.LossDeny {
		e.close(k, true)
	}
	return false
}

// takeAll takes one unit of each of a zone's limits, or reads them where they are entered last. It
// reports whether all of them admit.
func (e *Evaluation) takeAll(zr *zoneResult, raw []byte) (allowed bool) {
	if zr.QueuesLast {
		zr.queued = true
		e.queues++
	}
	if zr.CountResponses != nil {
		e.holds = true
	}
	allowed = true
	a := e.askFor(zr, raw)
	for i := range zr.limits {
		l, at := &zr.limits[i], len(e.receipts)
		e.receipts = slices.Grow(e.receipts, 1)[:at+1]
		t := &e.receipts[at]
		if zr.queued {
			l.Peek(a, t)
		} else {
			l.Decide(a, 1, zr.Want|zr.Reserving, t)
		}
		allowed = allowed && t.Allowed
		if t.Overflow {
			e.overflowed = true
		}
	}
	return allowed
}

// askFor returns what a request asks of the limits of a zone: for the key, raw, at the instant of
// the evaluation.
func (e *Evaluation) askFor(zr *zoneResult, raw []byte) *table.Ask {
	e.asked.Key, e.asked.Raw, e.asked.Now = zr.hash, raw, e.now
	return &e.asked
}

// standing returns what a limit of a zone would say to n units more.
func (e *Evaluation) standing(zr *zoneResult, l *Limit, n int64, want algorithms.Want) *table.Taken {
	l.Decide(e.askFor(zr, e.keyOf(zr)), n, want, &e.stands)
	return &e.stands
}

// enterQueues takes the slots in the queues that were only read, once all other limits have
// admitted: a slot can't be refunded once others stand behind it, as they would start too close to
// each other. The time is that after Redis was asked: counted from the request's arrival, it would
// start later than its delay, and close to the next one.
func (e *Evaluation) enterQueues() {
	for i := range e.zones {
		zr := &e.zones[i]
		if !zr.queued || zr.denied {
			continue
		}
		zr.queued = false
		a := e.askFor(zr, e.keyOf(zr))
		for j := range zr.limits {
			t := &e.receipts[zr.first+j]
			zr.limits[j].Decide(a, 1, zr.Want, t)
			e.overflowed = e.overflowed || t.Overflow
		}
		if e.checkLimits(i); e.IsDenied() {
			return
		}
	}
}

// checkLimits notes whether the limits of a zone deny, and which makes the client wait longest. In
// shadow mode nobody waits.
func (e *Evaluation) checkLimits(at int) {
	zr := &e.zones[at]
	for i := range zr.limits {
		t := &e.receipts[zr.first+i]
		if t.Allowed {
			continue
		}
		reserved := e.isReserved(zr, i)
		if reserved {
			t.Retry = reservedWait
		}
		zr.reserved = reserved && (zr.reserved || !zr.denied)
		e.deny(at, t.Retry)
	}
}

// deny notes that a zone denies.
func (e *Evaluation) deny(at int, wait time.Duration) {
	zr := &e.zones[at]
	zr.denied = true
	if zr.shadow {
		e.overShadow = true
	} else if e.longest == 0 || wait > e.wait {
		e.denied, e.longest, e.wait = true, at+1, wait
	}
}

// resultsOf returns what each limit of a zone decided, and before them what the slots did.
func (e *Evaluation) resultsOf(zr *zoneResult) []answer.Result {
	results := e.Results() // which sets shown
	return results[zr.shown-min(zr.slot, 1) : zr.shown+len(zr.limits)]
}

// keyOf returns the bytes of a zone's key.
func (e *Evaluation) keyOf(zr *zoneResult) []byte { return e.rawOf(&zr.keyed) }

func (e *Evaluation) rawOf(k *keyed) []byte { return e.keys[k.key[0]:k.key[1]] }

// Enter waits until an admitted request is due in its queues, and counts it as admitted.
// It returns an error if the client has gone away; its slots are then free again.
func (e *Evaluation) Enter(ctx context.Context) error {
	delay := e.Delay()
	if delay > 0 && !clock.Sleep(ctx, delay) {
		e.leaveQueues(clock.Now())
		e.keepReserved()
		return errGone
	}
	for i := range e.zones {
		zr := &e.zones[i]
		if !zr.denied {
			zr.Decisions.Count(answer.Admitted)
			e.noteNear(zr)
		}
		if e.overflowed {
			e.countOverflow(zr)
		}
	}
	if delay > 0 {
		e.restateAll(clock.Now())
	}
	return nil
}

// noteNear notes whether little is left of a limit of a zone that has admitted the request, and
// counts that.
func (e *Evaluation) noteNear(zr *zoneResult) {
	less := zr.slot > 0 && answer.IsNear(e.slots[zr.slot-1].Remaining(), e.slots[zr.slot-1].Bound, 1)
	for i := range zr.limits {
		if left, size := e.receipts[zr.first+i].Remaining, zr.limits[i].Enforced.Size; answer.IsNear(left, size, 0) {
			e.near, less = true, less || answer.IsNear(left, size, 1)
		}
	}
	if less {
		zr.Decisions.CountNear()
	}
}

// IsNear reports whether the request was admitted with a fifth or less left of a limit.
func (e *Evaluation) IsNear() bool { return e.near }

// Near returns the limits of which that is so, and was not told in this window for the key: not of
// zones that are not enforced for it, nor of early data, whose address may be another's.
func (e *Evaluation) Near() (limits []answer.Result) {
	results := e.Results()
	for i := range e.zones {
		zr := &e.zones[i]
		if zr.denied || zr.shadow || zr.early {
			continue
		}
		for j := range zr.limits {
			l, d := &zr.limits[j], &results[zr.shown+j]
			if answer.IsNear(d.Remaining, d.Size, 0) && l.Near.First(zr.hash, e.now, int64(l.Rate.Window), zr.MaxKeys) {
				limits = append(limits, *d)
			}
		}
	}
	return limits
}

// errGone is the error for a client that went away while its request waited in a queue or for
// Redis; 499 is what other servers log for it.
var errGone = caddyhttp.HandlerError{Err: errors.New("client went away while its request waited to be admitted"), StatusCode: 499}

// leaveQueues frees the slots in queues of a client that went away.
func (e *Evaluation) leaveQueues(now int64) {
	for i := range e.zones {
		zr := &e.zones[i]
		if zr.strict || zr.denied { // one that would have denied has got its slots back
			continue
		}
		for j := range zr.limits {
			if t := e.receipts[zr.first+j]; t.Delay > 0 {
				l := &zr.limits[j]
				l.Table.Leave(l.Enforced, zr.hash, t, now, 1)
			}
		}
	}
}

// countOverflow counts a decision for a key without a counter of its own.
func (e *Evaluation) countOverflow(zr *zoneResult) {
	if !zr.strict && len(zr.limits) > 0 && e.receipts[zr.first].Overflow || zr.slot > 0 && e.slots[zr.slot-1].Overflow {
		zr.Decisions.CountOverflow()
		zr.Notices.Full(&zr.Settings, zr.Once, zr.Logger)
	}
}

// recordDenials counts and logs a request in the zones that denied it, or would have in shadow
// mode, and notes what is to be answered.
func (e *Evaluation) recordDenials(r *http.Request) {
	if e.banned != nil {
		e.recordBanned()
		return
	}
	denied := e.IsDenied()
	reason := answer.Denied
	for i := range e.zones {
		zr := &e.zones[i]
		if denied {
			e.countOverflow(zr)
		}
		switch {
		case !zr.denied:
		case zr.shadow:
			e.recordWouldDeny(zr, r)
		case zr.early:
			// No line and no event: they would blame the owner of an address that somebody else may
			// have written there.
			zr.Decisions.Count(answer.TooEarly)
			reason = answer.TooEarly
		default:
			zr.Decisions.Count(zr.decision())
			if zr.Denials.Count(e.now, zr.hash.A, false) {
				zr.Denials.WriteLine(e.now, e.loggedDenial(zr, r))
			}
			e.countDenial(zr, r)
		}
	}
	for _, k := range e.closed {
		switch {
		case k.barred:
			e.recordBarred(k, r)
		case k.rest > 0:
			e.recordWouldBan(k)
		default:
			e.recordClosed(k, r)
		}
	}
	if denied {
		e.denial = answer.Denial{Reason: reason, Wait: e.wait, Results: e.Results(), Now: e.now, Fields: &e.fields}
		e.noteZone(r)
	}
}

// noteZone adds the zone that denies to the denial, and counts and logs it if it did so without
// counting.
func (e *Evaluation) noteZone(r *http.Request) {
	d, z := &e.denial, e.uncounted
	if z != nil && !e.unavailable {
		d.Wait = max(d.Wait, z.FirstWindow())
	}
	switch {
	case e.barred != nil:
		d.Reason, d.Zone, d.Wait = answer.Barred, e.barred.Name, 0
		if e.barredEarly {
			d.Reason = answer.TooEarly
		}
	case e.beganIn != nil:
		d.Reason, d.Zone, d.Wait, d.Begins = answer.Banned, e.beganIn.Name, max(d.Wait, e.began), true
	case e.longest > 0:
		d.Zone = e.zones[e.longest-1].Name
	case e.unavailable:
		z.Decisions.Count(answer.Unavailable)
		d.Reason, d.Zone, d.Wait = answer.Unavailable, z.Name, max(d.Wait, time.Second)
	case reqkey.IsEarly(r): // an address may be why there is no key
		d.Reason, d.Zone = answer.TooEarly, z.Name
		z.Decisions.Count(answer.TooEarly)
	default:
		d.Zone = z.Name
		z.Decisions.Count(answer.Denied)
		z.Denials.Denied(e.now, answer.LoggedDenial{Request: r, Wait: d.Wait})
	}
}

// loggedDenial returns what the log says of a zone that denied.
func (e *Evaluation) loggedDenial(zr *zoneResult, r *http.Request) answer.LoggedDenial {
	results, wait := e.resultsOf(zr), time.Duration(0)
	for i := range results {
		wait = max(wait, results[i].RetryAfter)
	}
	return answer.LoggedDenial{
		Request: r, Key: e.keyOf(zr), Hash: zr.hash.A, Limit: answer.Longest(results).Limit, Wait: wait, Shadow: zr.shadow,
	}
}

// decision returns what metrics say of a zone that denied.
func (zr *zoneResult) decision() answer.Reason {
	if zr.reserved {
		return answer.Reserved
	}
	return answer.Denied
}

// MarkCounted notes in a request that error routes must not count it again, if there is an error,
// which it returns.
func (e *Evaluation) MarkCounted(r *http.Request, err error) error {
	if err != nil {
		e.markCounted(r)
	}
	return err
}

func (e *Evaluation) markCounted(r *http.Request) {
	var names []string
	for i := range e.zones {
		names = append(names, e.zones[i].Name)
	}
	for i := range e.closed {
		if e.closed[i].rest > 0 {
			names = append(names, e.closed[i].Name)
		}
	}
	markCounted(r, names)
}
