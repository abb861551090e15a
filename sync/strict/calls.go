package strict

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/saturate"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A queue is the call of one key that is in flight, and who and what waits for the next one. Its
// ruleset's mutex guards it.
type queue struct {
	waiters []*waiter
	// abandoned is how many requests have left since those were taken out of waiters.
	abandoned int
	// pending are the corrections that no call has carried yet, by rule.
	pending []corrections
	// sent is what a call carries or has carried whose outcome is not known. Until it is known
	// every call carries just that.
	sent *group
	// rollBack is the first call whose outcome is not known, 0 for none, and rollBackSince when it
	// was made.
	rollBack      int64
	rollBackSince time.Time

	// heard is told how the rules stand after each call that no request hears, with its number,
	// until nothing is left to be sent; may be nil.
	heard func(call int64, all []Verdict)
	// reset is the latest that is known of the key.
	reset reset.Reset
	// rules are those of who came last, and now is the latest known instant of Redis' clock.
	rules []Rule
	now   int64
	// denied is the last answer if it denied somebody.
	denied *denial
	// running is set while a goroutine makes its calls, waits while it waits for a place, and
	// behind where the last call could not take all who waited.
	running bool
	waits   atomic.Bool
	behind  bool
}

// waiter is a request. What it waits for is written before done is closed.
type waiter struct {
	done  chan struct{}
	gone  bool // its context has ended, or it has waited for too long
	asked bool // a call that asks for it is under way
	late  int  // how many calls that it was in were not answered in time
	rules []Rule
	cost  int64
	// reset is the one that the key is under, as the request knows, and then as Redis decided.
	reset reset.Reset

	outcome *outcome
	place   place
	err     error
}

// A group is the corrections that all calls from the call first on carry, until one of them is
// answered.
type group struct {
	first int64
	since time.Time
	fixed []corrections // by rule
}

const (
	// maxBatches bounds the batches of one call, so that Redis is not held up by it.
	maxBatches = 128
	// maxRuns bounds the runs of all batches of one call.
	maxRuns = 256
	// correctionTime is how long corrections are sent again whose outcome is not known. The record
	// of calls is kept for longer, so they are never done twice.
	correctionTime = 30 * time.Second
	// maxLate is how often a request asks again because a call was late though Redis is there.
	maxLate = 2
	// restTime is the time between calls of a key that Redis answers with an error, when only
	// corrections are left.
	restTime = time.Second
)

// join lets a request wait for the next call of a key. It returns false where there will be none.
func (s *Limiter) join(rs *ruleset, id [16]byte, w *waiter) bool {
	return s.enter(rs, id, w.rules, w.reset, func(q *queue) {
		q.waiters = append(q.waiters, w)
	})
}

// change adds corrections of what a Take got, unless its key was reset since: that is forgiven.
func (s *Limiter) change(g Grant, heard func(int64, []Verdict), add func(*queue)) {
	if !s.IsUpToDate(g) {
		return
	}
	s.enter(g.ruleset, g.id, g.rules, g.reset, func(q *queue) {
		if g.reset.Stamp == q.reset.Stamp { // else Redis knew of a reset first
			add(q)
			q.heard = heard
		}
		s.forget(g.ruleset, g.id)
	})
}

func (q *queue) correct(c correction, in func(rule int) bool) {
	q.now = max(q.now, c.at)
	if len(q.pending) != len(q.rules) {
		q.pending = make([]corrections, len(q.rules))
	}
	for i, r := range q.rules {
		if in(i) {
			q.pending[i] = q.pending[i].add(r, c)
		}
	}
}

// enter changes a key's queue, and starts it if it is not running.
func (s *Limiter) enter(rs *ruleset, id [16]byte, rules []Rule, r reset.Reset, change func(*queue)) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	q := rs.queues[id]
	if q == nil || !q.running {
		had := q != nil
		if !had {
			q = &queue{}
		}
		if !s.work.Go(func() { s.run(rs, id, q) }) {
			return false
		}
		if had {
			s.suspended.Add(-1)
		}
		rs.queues[id], q.running = q, true
	}
	q.under(r)
	q.rules = rules
	change(q)
	return true
}

// leave takes a request out whose context has ended, and returns false if its answer is there.
// Those that leave are taken out of the queue together, when they may be half of it: one by one,
// each would look through it under the zone's lock.
func (s *Limiter) leave(rs *ruleset, id [16]byte, w *waiter) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	select {
	case <-w.done:
		return false
	default:
	}
	w.gone = true
	if q := rs.queues[id]; q != nil {
		q.leave(w)
	}
	return true
}

// run makes calls for a key until nothing is left to ask.
func (s *Limiter) run(rs *ruleset, id [16]byte, q *queue) {
	named := rs.keysOf(id)
	t := &turn{zone: rs.zone, waits: &q.waits, woken: make(chan []*turn, 1), prepare: func() sendable {
		if c, ok := s.prepare(rs, id, q); ok {
			return s.request(rs, named, c)
		}
		return nil
	}}
	circuit, _ := s.circuitOf(id)
	for {
		s.turn(&circuit.places, t)
		if t.asked == nil {
			return
		}
		asked := t.asked.(*request)
		o, err := asked.read()
		result := s.resultOf(id, err)
		s.noteBacklog(circuit, result)
		if s.ctx.Err() != nil && err != nil {
			err = ErrClosed
		}
		rs.mu.Lock()
		s.finish(rs, id, q, asked.call, o, err, result)
		rests := result == rejected && len(q.waiters) == 0 && q.unfinished()
		if rests {
			s.suspend(rs, id, q)
		}
		rs.mu.Unlock()
		if rests {
			s.work.Go(func() { s.resumeLater(rs, id) })
			return
		}
	}
}

// result is what became of a call.
type result int

const (
	answered    result = iota
	rejected           // Redis rejects what is done to this key, and has done nothing
	unreachable        // nobody knows whether it was done, and Redis does not answer
	late               // nobody knows whether it was done, but Redis answers
	outdated           // Redis has done nothing, as the key was reset since
)

// resultOf finds out what became of a call.
func (s *Limiter) resultOf(id [16]byte, err error) result {
	switch {
	case err == nil:
		return answered
	case errors.As(err, new(*overtaken)):
		return outdated
	case s.ctx.Err() != nil:
		return unreachable
	case !s.isSevere(err):
		return rejected
	case redisconn.IsLate(err) && s.confirm(id, err):
		return late
	}
	s.trip(id, err)
	return unreachable
}

// call is one call of a ruleset's script. Its corrections go by the rules of its first batch.
type call struct {
	id            [16]byte
	seq, rollBack int64
	rules         []Rule
	reset         reset.Reset
	batches       []batch // none where nobody asks
	sent          *group  // nil for none
}

// A batch is requests of a call that follow each other and go by the same rules. Redis decides the
// batches in order.
type batch struct {
	rules   []Rule
	runs    []run
	waiters []*waiter
}

// A run is requests of a batch that follow each other and cost the same.
type run struct{ count, cost int64 }

// fits is how many of a run are admitted where so many units are left: as the script has it.
func (r run) fits(left int64) int64 {
	if r.cost == 0 {
		return r.count
	}
	return min(r.count, left/r.cost)
}

// wantedBy is what runs ask for, as far as the script counts.
func wantedBy(runs []run) (n int64) {
	for _, r := range runs {
		n = saturate.Add(n, saturate.MulDiv(r.count, r.cost, 1))
	}
	return min(n, exact)
}

// inRuns is what a batch wants as the script has it.
func inRuns(runs []run) any {
	switch {
	case len(runs) == 0:
		return 0
	case len(runs) == 1 && runs[0].cost == 1:
		return runs[0].count
	}
	text := make([]byte, 0, 16*len(runs))
	for _, r := range runs {
		text = strconv.AppendInt(text, r.count, 10)
		text = strconv.AppendInt(append(text, ':'), r.cost, 10)
		text = append(text, ',')
	}
	return text[:len(text)-1]
}

// runs are those of each batch: of a call without one, none.
func (c call) runs() [][]run {
	all := make([][]run, max(1, len(c.batches)))
	for i, b := range c.batches {
		all[i] = b.runs
	}
	return all
}

// prepare takes out what the next call is to ask. It returns false where there is none, and the
// queue has stopped.
func (s *Limiter) prepare(rs *ruleset, id [16]byte, q *queue) (c call, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := s.unavailable(id); err != nil {
		q.fail(err)
		s.suspend(rs, id, q)
		return c, false
	}
	q.expire()
	q.dropLeavers()
	if len(q.waiters) == 0 && !q.unfinished() {
		delete(rs.queues, id)
		return c, false
	}
	c.id = id
	c.seq, c.rollBack, c.rules, c.reset = s.seq.Add(1), q.rollBack, q.rules, q.reset
	if len(q.waiters) > 0 {
		c.rules = q.waiters[0].rules
		c.batches, q.waiters = q.split()
		q.behind = len(q.waiters) > 0
	}
	if q.sent == nil {
		q.sent = q.freeze(c.seq)
	}
	c.sent = q.sent
	return c, true
}

// leave notes that a request has left.
func (q *queue) leave(w *waiter) {
	w.gone = true
	if q.abandoned++; 2*q.abandoned > len(q.waiters) {
		q.dropLeavers()
	}
}

// dropLeavers takes the requests out of the queue that have left.
func (q *queue) dropLeavers() {
	q.waiters = slices.DeleteFunc(q.waiters, func(w *waiter) bool { return w.gone })
	q.abandoned = 0
}

// unfinished reports whether something is to be sent though no request waits.
func (q *queue) unfinished() bool {
	return q.sent != nil || q.rollBack != 0 || slices.ContainsFunc(q.pending, func(c corrections) bool { return len(c) > 0 })
}

// split cuts the requests in those that one call asks for, the oldest in batches of runs, and the
// rest.
func (q *queue) split() (now []batch, later []*waiter) {
	from, to, runs := 0, 0, 0
	for ; to < len(q.waiters); to++ {
		w := q.waiters[to]
		isNew := to == 0 || !slices.Equal(q.waiters[to-1].rules, w.rules)
		startsRun := isNew || q.waiters[to-1].cost != w.cost
		if isNew {
			from = to
		}
		if to > 0 && (isNew && len(now) == maxBatches || startsRun && runs == maxRuns) {
			break
		}
		if isNew {
			now = append(now, batch{rules: w.rules})
		}
		b := &now[len(now)-1]
		if startsRun {
			b.runs = append(b.runs, run{cost: w.cost})
			runs++
		}
		b.runs[len(b.runs)-1].count++
		b.waiters = q.waiters[from : to+1 : to+1]
		w.asked = true
	}
	return now, q.waiters[to:]
}

// freeze makes a group of what is pending, nil where nothing is.
func (q *queue) freeze(first int64) *group {
	g := &group{first: first, since: time.Now(), fixed: make([]corrections, len(q.pending))}
	some := false
	for i, c := range q.pending {
		g.fixed[i], q.pending[i] = familyOf(q.rules[i].Kind).cut(c)
		some = some || len(g.fixed[i]) > 0
	}
	if !some {
		return nil
	}
	return g
}

// expire drops what Redis may not remember any more.
func (q *queue) expire() {
	if q.sent != nil && time.Since(q.sent.since) > correctionTime {
		q.sent = nil
	}
	if q.rollBack != 0 && time.Since(q.rollBackSince) > correctionTime {
		q.rollBack = 0
	}
}

// UnavailableFor is why Redis can't be asked about a key, nil if it can.
func (s *Limiter) UnavailableFor(id [16]byte) error { return s.unavailable(id) }

// unavailable is why no call may be made for a key, nil if one may.
func (s *Limiter) unavailable(id [16]byte) error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	c, _ := s.circuitOf(id)
	return c.unavailable()
}

// suspend stops a queue. One of which something is still to be sent is resumed later.
func (s *Limiter) suspend(rs *ruleset, id [16]byte, q *queue) {
	q.running = false
	if !q.unfinished() || s.suspended.Load() >= maxSuspended {
		delete(rs.queues, id)
		return
	}
	s.suspended.Add(1)
}

// resumeAll runs what was suspended while a circuit was open.
func (s *Limiter) resumeAll(c *circuit) {
	s.mu.Lock()
	var all []*ruleset
	for _, zone := range s.zones {
		all = append(all, zone...)
	}
	s.mu.Unlock()
	for _, rs := range all {
		rs.mu.Lock()
		var ids [][16]byte
		for id, q := range rs.queues {
			if of, _ := s.circuitOf(id); of == c && !q.running {
				ids = append(ids, id)
			}
		}
		rs.mu.Unlock()
		for _, id := range ids {
			s.resume(rs, id)
		}
	}
}

// resumeLater is resume after a rest, unless all ends.
func (s *Limiter) resumeLater(rs *ruleset, id [16]byte) {
	select {
	case <-s.probes.Done():
	case <-time.After(restTime):
		s.resume(rs, id)
	}
}

// resume runs the suspended queue of a key. Its caller is work.
func (s *Limiter) resume(rs *ruleset, id [16]byte) {
	rs.mu.Lock()
	q := rs.queues[id]
	if q == nil || q.running || s.work.HasEnded() {
		rs.mu.Unlock()
		return
	}
	s.suspended.Add(-1)
	q.running = true
	rs.mu.Unlock()
	s.run(rs, id, q)
}

// fail gives all who wait an error.
func (q *queue) fail(err error) {
	for _, w := range q.waiters {
		w.err = err
		close(w.done)
	}
	q.waiters = nil
}

// finish hands out what came of a call, and remembers what it denied, unless less is left since.
// What it makes untrue is forgotten first: who is admitted may ask again at once.
func (s *Limiter) finish(rs *ruleset, id [16]byte, q *queue, c call, all []*outcome, err error, result result) {
	if result != answered {
		s.forget(rs, id)
		q.finishUnanswered(c, err, result)
		return
	}
	current := c.reset.Stamp == q.reset.Stamp  // else it is forgiven what the call got
	untrue := q.rollBack != 0 || q.sent != nil // the call has given something back
	if current {
		q.rollBack, q.sent, q.denied = 0, nil, nil
	}
	q.now = all[0].at
	var denied []*denial
	for i, b := range c.batches {
		if all[i].granted > 0 { // less is left than was told
			untrue, denied = true, nil
		}
		if current && len(all[i].denied) > 0 {
			denied = append(denied, s.denialOf(b.rules, all[i], c.reset.Stamp))
		}
	}
	if len(denied) > 0 {
		q.denied = denied[len(denied)-1]
	}
	if q.unfinished() || !mayRemember(c.rules) {
		denied = nil
	}
	denied = s.remember(rs, id, untrue || q.unfinished(), denied)
	told := false
	for i, b := range c.batches {
		told = q.tell(b, all[i], c, current) || told
	}
	if current && !told && q.heard != nil {
		q.heard(c.seq, verdicts(c.rules, all[0], place{}, nil))
	}
	if q.unfinished() { // a refund may admit the next one
		s.forget(rs, id)
		return
	}
	q.heard = nil
	if len(denied) > 0 {
		q.denyMore(denied, c.reset)
	}
}

// tell hands out what came of a batch, and reports whether somebody hears it. What it got and
// nobody uses is refunded, and denied requests are charged where they count.
func (q *queue) tell(b batch, o *outcome, c call, current bool) bool {
	asked, unused := b.tell(o, c.reset)
	if !current {
		return asked > 0
	}
	for _, one := range unused {
		q.correct(correction{op: refund, n: one.cost, at: o.at}, inAll)
	}
	q.penalize(c.rules, o, asked-o.granted)
	return asked > 0
}

// denyMore denies those who wait for the next call and would be denied by the memory.
func (q *queue) denyMore(denied []*denial, under reset.Reset) {
	q.waiters = slices.DeleteFunc(q.waiters, func(w *waiter) bool {
		i := indexOf(denied, w.rules)
		if w.gone || i < 0 || !denied[i].covers(w.cost) || w.reset.Stamp != under.Stamp {
			return false
		}
		o := denied[i].outcome
		w.outcome, w.place, w.reset = o, place{cost: w.cost}, under
		close(w.done)
		return true
	})
}

// tell hands out what came of a batch, and returns to how many. Where some have left the others of
// their run go before; what nobody uses then is unused.
func (b batch) tell(o *outcome, under reset.Reset) (asked int64, unused []place) {
	before, waiters := int64(0), b.waiters
	for _, r := range b.runs {
		fits, n := r.fits(o.budget-before), int64(0)
		for _, w := range waiters[:r.count] {
			if w.gone {
				continue
			}
			w.outcome, w.reset = o, under
			w.place = place{before: before + min(n, fits)*r.cost, cost: r.cost, admitted: n < fits}
			close(w.done)
			n++
		}
		if n < fits && r.cost > 0 {
			unused = append(unused, place{before: before + n*r.cost, cost: (fits - n) * r.cost})
		}
		asked, before, waiters = asked+n, before+fits*r.cost, waiters[r.count:]
	}
	return asked, unused
}

// penalize charges requests that were denied, where these count: their key's next call carries that
// before it asks for anything.
func (q *queue) penalize(rules []Rule, o *outcome, n int64) {
	if rules[0].CountsDenied && n > 0 {
		q.correct(correction{op: penalty, n: n, at: o.at}, inAll)
	}
}

// finishUnanswered ends a call that was not answered. Its requests ask again where Redis does
// answer.
func (q *queue) finishUnanswered(c call, err error, result result) {
	var newer *overtaken
	if errors.As(err, &newer) {
		q.under(newer.by)
	}
	if result != rejected && q.rollBack == 0 && len(c.batches) > 0 && c.reset.Stamp == q.reset.Stamp {
		q.rollBack, q.rollBackSince = c.seq, time.Now()
	}
	var again []*waiter
	for _, b := range c.batches {
		for _, w := range b.waiters {
			switch {
			case w.gone:
			case result == outdated:
				again = append(again, w)
			case result == late && w.late < maxLate:
				w.late++
				again = append(again, w)
			default:
				w.err = err
				close(w.done)
			}
		}
	}
	for _, w := range again {
		w.asked = false
	}
	q.waiters = append(again, q.waiters...)
}

// call asks Redis. It returns what came of each batch.
func (s *Limiter) call(rs *ruleset, keys []string, c call) ([]*outcome, error) {
	r := s.request(rs, keys, c)
	s.send([]sendable{r})
	return r.read()
}

// callContext is the context of a call or a probe.
func (s *Limiter) callContext(parent context.Context) (context.Context, context.CancelFunc) {
	return ratesync.CallContext(parent, time.Duration(s.timeout.Load()))
}

// args are the arguments of the script.
func (s *Limiter) args(rs *ruleset, c call) []any {
	runs := c.runs()
	first, kept := int64(0), ratesync.SpareTTL+2*time.Duration(s.timeout.Load())
	if c.sent != nil {
		first = c.sent.first
	}
	counts := 0
	if c.rules[0].CountsDenied {
		counts = 1
	}
	args := append(make([]any, 0, 64), rs.field, c.seq, inRuns(runs[0]), c.rollBack, resetInLua(first, c.reset), kept.Milliseconds(), counts)
	for i, r := range c.rules {
		args = append(args, rs.family.args(r)...)
		args = c.sent.of(i).appendArgs(args)
	}
	for i := 1; i < len(c.batches); i++ {
		args = append(args, inRuns(runs[i]))
		for _, r := range c.batches[i].rules {
			args = append(args, rs.family.args(r)[:rs.family.brought]...)
		}
	}
	return args
}

// of are the corrections of a rule.
func (g *group) of(rule int) corrections {
	if g == nil || rule >= len(g.fixed) {
		return nil
	}
	return g.fixed[rule]
}
