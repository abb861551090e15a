package strict

import (
	"context"
	"slices"
	"time"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// flight is what goes on for one key: a call under way, and who and what waits for the next one. Its ruleset's mutex guards it.
type flight struct {
	waiters []*waiter
	// leavers is how many requests have left since those were taken out of waiters.
	leavers int
	// pending are the corrections that no call has carried yet, by rule.
	pending []corrections
	// sent is what a call carries or has carried whose outcome is not known. Until it is known every call carries just that.
	sent *group
	// undo is the first call whose outcome is not known, 0 for none, and undoSince when it was made.
	undo      int64
	undoSince time.Time

	// rules are those of who came last, and now is the latest known instant of Redis' clock.
	rules []Rule
	now   int64
	// denied is the last answer if it denied somebody.
	denied *denial
	// running says that a goroutine is at it.
	running bool
}

// waiter is a request. What it waits for is written before done is closed.
type waiter struct {
	done  chan struct{}
	gone  bool // its context has ended
	late  int  // how many calls that it was in were not answered in time
	rules []Rule

	outcome *outcome
	place   int64
	err     error
}

// A group is the corrections that calls carry from the call first on, until one of them is answered.
type group struct {
	first int64
	since time.Time
	fixed []corrections // by rule
}

// A denial is an answer that denied, and when it came.
type denial struct {
	outcome *outcome
	rules   []Rule
	came    time.Time
	wait    time.Duration
}

const (
	// correctionTime is how long corrections are sent again whose outcome is not known. The record of calls is kept for longer, so they are
	// never done twice.
	correctionTime = 30 * time.Second
	// maxLate is how often a request asks again because a call was late though Redis is there.
	maxLate = 2
	// restTime is the time between calls of a key that Redis answers with an error, when only corrections are left.
	restTime = time.Second
)

// join lets a request wait for the next call of a key, or denies it where a log's next call is full. false means that there will be no call.
func (s *Limiter) join(rs *ruleset, id [16]byte, w *waiter) bool {
	return s.enter(rs, id, w.rules, func(f *flight) {
		if most := rs.family.maxWanted; most > 0 && len(f.waiters) >= most && f.denied.stillHolds(w) {
			close(w.done)
			return
		}
		f.waiters = append(f.waiters, w)
	})
}

// stillHolds denies a request by the last answer, if nobody who waits as told then would be admitted yet.
func (d *denial) stillHolds(w *waiter) bool {
	if d == nil || !slices.Equal(d.rules, w.rules) {
		return false
	}
	passed := time.Since(d.came)
	if passed >= d.wait {
		return false
	}
	o := *d.outcome
	o.at += passed.Microseconds()
	o.granted, o.seq = 0, 0
	w.outcome, w.place = &o, 1
	return true
}

// correct adds a correction to each rule.
func (s *Limiter) correct(g Grant, c correction) {
	s.enter(g.ruleset, g.id, g.rules, func(f *flight) { f.correct(c) })
}

func (f *flight) correct(c correction) {
	f.now = max(f.now, c.at)
	if len(f.pending) != len(f.rules) {
		f.pending = make([]corrections, len(f.rules))
	}
	for i, r := range f.rules {
		f.pending[i] = families[r.Kind].add(f.pending[i], r, f.now, c)
	}
}

// enter changes a key's flight, and gets it going.
func (s *Limiter) enter(rs *ruleset, id [16]byte, rules []Rule, change func(*flight)) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	f := rs.flights[id]
	if f == nil || !f.running {
		if !s.begin() {
			return false
		}
		if f == nil {
			f = &flight{}
			rs.flights[id] = f
		} else {
			s.pending.Add(-1)
		}
		f.running = true
		go func() {
			defer s.work.Done()
			s.fly(rs, id, f)
		}()
	}
	f.rules = rules
	change(f)
	return true
}

// leave takes a request out whose context has ended, unless its answer is there. Those that leave
// are taken out of the queue together, when they may be half of it: one by one, each would look
// through it under the zone's lock.
func (s *Limiter) leave(rs *ruleset, id [16]byte, w *waiter) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	select {
	case <-w.done:
		return false
	default:
	}
	w.gone = true
	if f := rs.flights[id]; f != nil {
		f.leave(w)
	}
	return true
}

// fly makes calls for a key until nothing is left to ask.
func (s *Limiter) fly(rs *ruleset, id [16]byte, f *flight) {
	keys := rs.keysOf(id)
	circuit, _ := s.circuitOf(id)
	for {
		leave := circuit.take(s.ctx) // before it boards: who comes meanwhile shares the call
		c, ok := s.board(rs, id, f)
		if !ok {
			leave()
			return
		}
		o, err := s.call(rs, keys, c)
		leave()
		fate := s.fateOf(id, err)
		if s.ctx.Err() != nil && err != nil {
			err = ErrClosed
		}
		rs.mu.Lock()
		f.land(c, o, err, fate)
		rests := fate == refused && len(f.waiters) == 0 && f.left()
		if rests {
			s.park(rs, id, f)
		}
		rs.mu.Unlock()
		if rests {
			time.AfterFunc(restTime, func() { s.resume(rs, id) })
			return
		}
	}
}

// fate is what became of a call.
type fate int

const (
	counted fate = iota
	refused      // Redis refuses what is done to this key, and has done nothing
	lost         // nobody knows whether it was done, and Redis is not there
	late         // nobody knows whether it was done, but Redis is there
)

// fateOf finds out what became of a call.
func (s *Limiter) fateOf(id [16]byte, err error) fate {
	switch {
	case err == nil:
		return counted
	case s.ctx.Err() != nil:
		return lost
	case !s.isSevere(err):
		return refused
	case isLate(err) && s.confirm(id, err):
		return late
	}
	s.trip(id, err)
	return lost
}

// call is one call of a ruleset's script.
type call struct {
	seq, undo int64
	rules     []Rule
	waiters   []*waiter
	sent      *group // nil for none
}

// board takes out what the next call is to ask. false means that there is none, and that the flight has ended.
func (s *Limiter) board(rs *ruleset, id [16]byte, f *flight) (c call, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := s.mute(id); err != nil {
		f.fail(err)
		s.park(rs, id, f)
		return c, false
	}
	f.forget()
	f.dropLeavers()
	if len(f.waiters) == 0 && !f.left() {
		delete(rs.flights, id)
		return c, false
	}
	c.seq, c.undo, c.rules = s.seq.Add(1), f.undo, f.rules
	if len(f.waiters) > 0 {
		c.rules = f.waiters[0].rules
		c.waiters, f.waiters = f.share(c.rules)
	}
	if f.sent == nil {
		f.sent = f.pack(c.seq)
	}
	c.sent = f.sent
	return c, true
}

// leave notes that a request has left.
func (f *flight) leave(w *waiter) {
	w.gone = true
	if f.leavers++; 2*f.leavers > len(f.waiters) {
		f.dropLeavers()
	}
}

// dropLeavers takes the requests out of the queue that have left.
func (f *flight) dropLeavers() {
	f.waiters = slices.DeleteFunc(f.waiters, func(w *waiter) bool { return w.gone })
	f.leavers = 0
}

// left says that something is to be sent though no request waits.
func (f *flight) left() bool {
	return f.sent != nil || f.undo != 0 || slices.ContainsFunc(f.pending, func(c corrections) bool { return len(c) > 0 })
}

// share cuts the requests in those that one call can ask for, as they go by the same limits, and the rest.
func (f *flight) share(rules []Rule) (now, later []*waiter) {
	most := len(f.waiters)
	if bound := families[rules[0].Kind].maxWanted; bound > 0 {
		most = min(most, bound)
	}
	i := 0
	for i < most && slices.Equal(f.waiters[i].rules, rules) {
		i++
	}
	return f.waiters[:i:i], f.waiters[i:]
}

// pack makes a group of what is pending, nil where nothing is.
func (f *flight) pack(first int64) *group {
	g := &group{first: first, since: time.Now(), fixed: make([]corrections, len(f.pending))}
	some := false
	for i, c := range f.pending {
		g.fixed[i], f.pending[i] = families[f.rules[i].Kind].cut(c)
		some = some || len(g.fixed[i]) > 0
	}
	if !some {
		return nil
	}
	return g
}

// forget drops what Redis may not remember any more.
func (f *flight) forget() {
	if f.sent != nil && time.Since(f.sent.since) > correctionTime {
		f.sent = nil
	}
	if f.undo != 0 && time.Since(f.undoSince) > correctionTime {
		f.undo = 0
	}
}

// mute says why no call may be made for a key, nil if one may.
func (s *Limiter) mute(id [16]byte) error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	c, _ := s.circuitOf(id)
	return c.lost()
}

// park ends a flight of which something is still to be settled.
func (s *Limiter) park(rs *ruleset, id [16]byte, f *flight) {
	f.running = false
	if !f.left() || s.pending.Load() >= maxPending {
		delete(rs.flights, id)
		return
	}
	s.pending.Add(1)
}

// settle sends what was parked while a circuit was open.
func (s *Limiter) settle(c *circuit) {
	s.mu.Lock()
	var all []*ruleset
	for _, zone := range s.zones {
		all = append(all, zone...)
	}
	s.mu.Unlock()
	for _, rs := range all {
		rs.mu.Lock()
		var ids [][16]byte
		for id, f := range rs.flights {
			if of, _ := s.circuitOf(id); of == c && !f.running {
				ids = append(ids, id)
			}
		}
		rs.mu.Unlock()
		for _, id := range ids {
			s.resume(rs, id)
		}
	}
}

// resume flies for a parked key.
func (s *Limiter) resume(rs *ruleset, id [16]byte) {
	rs.mu.Lock()
	f := rs.flights[id]
	if f == nil || f.running || !s.begin() {
		rs.mu.Unlock()
		return
	}
	defer s.work.Done()
	s.pending.Add(-1)
	f.running = true
	rs.mu.Unlock()
	s.fly(rs, id, f)
}

// fail tells all who wait that there is no answer.
func (f *flight) fail(err error) {
	for _, w := range f.waiters {
		w.err = err
		close(w.done)
	}
	f.waiters = nil
}

// land hands out the answer of a call.
func (f *flight) land(c call, o *outcome, err error, fate fate) {
	if fate != counted {
		f.crash(c, err, fate)
		return
	}
	f.undo, f.sent, f.denied = 0, nil, nil
	f.now = o.at
	if o.granted < int64(len(c.waiters)) {
		f.denied = &denial{outcome: o, rules: c.rules, came: time.Now(), wait: waitOf(c.rules, o)}
	}
	place := int64(0)
	for _, w := range c.waiters {
		if w.gone {
			continue
		}
		place++
		w.outcome, w.place = o, place
		close(w.done)
	}
	for place < o.granted { // for those who left
		place++
		f.correct(correction{op: refund, n: 1, at: o.at, seq: c.seq, unit: place})
	}
}

// waitOf is how long the next request is to wait by an answer.
func waitOf(rules []Rule, o *outcome) (wait time.Duration) {
	for _, v := range verdicts(rules, o, o.granted+1, nil) {
		if !v.Decision.Allowed {
			wait = max(wait, v.Decision.Retry)
		}
	}
	return wait
}

// crash ends a call that was not answered. Its requests ask again where Redis is there.
func (f *flight) crash(c call, err error, fate fate) {
	if fate != refused && f.undo == 0 && len(c.waiters) > 0 {
		f.undo, f.undoSince = c.seq, time.Now()
	}
	var again []*waiter
	for _, w := range c.waiters {
		switch {
		case w.gone:
		case fate == late && w.late < maxLate:
			w.late++
			again = append(again, w)
		default:
			w.err = err
			close(w.done)
		}
	}
	f.waiters = append(again, f.waiters...)
}

// call asks Redis.
func (s *Limiter) call(rs *ruleset, keys []string, c call) (*outcome, error) {
	ctx, cancel := s.callContext(s.ctx)
	defer cancel()
	reply, err := rs.script.Run(ctx, s.client, keys, s.args(rs, c)...).Result()
	if err != nil {
		return nil, err
	}
	o, err := parseOutcome(reply, len(c.rules), int64(len(c.waiters)))
	if err != nil {
		return nil, err
	}
	o.seq = c.seq
	o.refuse(int64(len(c.waiters)))
	return o, nil
}

// callContext is the context of a call or a probe.
func (s *Limiter) callContext(parent context.Context) (context.Context, context.CancelFunc) {
	return newCallContext(parent, time.Duration(s.timeout.Load()))
}

// args are the arguments of the script.
func (s *Limiter) args(rs *ruleset, c call) []any {
	first, kept := int64(0), ratesync.SpareTTL+2*time.Duration(s.timeout.Load())
	if c.sent != nil {
		first = c.sent.first
	}
	args := append(make([]any, 0, 64), rs.field, c.seq, len(c.waiters), c.undo, first, kept.Milliseconds())
	for i, r := range c.rules {
		args = append(args, rs.family.args(r)...)
		args = c.sent.of(i).appendArgs(r, args)
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
