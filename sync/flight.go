package ratesync

import (
	"context"
	"errors"
	"slices"
	"time"
)

// flight is what goes on for one key: a call under way, and who and what waits for the next one. Its ruleset's mutex guards it.
type flight struct {
	waiters []*waiter
	// pending are the corrections that no call has carried yet, by rule, and charges those of Strict.charge.
	pending []corrections
	charges []*waiter
	// sent is what a call carries or has carried whose outcome is not known. Until it is known every call carries just that.
	sent *group
	// undo is the first call whose outcome is not known, 0 for none, and undoSince when it was made.
	undo      int64
	undoSince time.Time

	// rules are those of who came last, and now is the latest known instant of Redis' clock.
	rules []Rule
	now   int64
	// running says that a goroutine is at it, and started when the last call began.
	running bool
	started time.Time
}

// waiter is a request, or what Strict.charge charges. What it waits for is written before done is closed.
type waiter struct {
	done    chan struct{}
	gone    bool // its context has ended
	rules   []Rule
	charges []corrections // by rule, nil for a request
	sent    bool          // the charges were

	outcome *outcome
	place   int64
	err     error
}

// A group is the corrections that calls carry from the call first on, until one of them is answered.
type group struct {
	first   int64
	since   time.Time
	fixed   []corrections // by rule
	charges []*waiter
}

const (
	// correctionTime is how long corrections are sent again whose outcome is not known. The record of calls is kept for longer, so they are
	// never done twice.
	correctionTime = 30 * time.Second
	// recordTime is how long Redis keeps the record of calls after one that changed something, beside the timeout of a call.
	recordTime = 60 * time.Second
	// restTime is the time between calls of a key that Redis answers with an error, when only corrections are left.
	restTime = time.Second
)

// errUnsettled says of a charge that it was sent, and that nobody will ever know whether it was done.
var errUnsettled = errors.New("redis has not said whether it was done")

// join lets a request wait for the next call of a key. false means that there will be none.
func (s *Strict) join(rs *ruleset, id [16]byte, w *waiter) bool {
	return s.enter(rs, id, w.rules, func(f *flight) { f.waiters = append(f.waiters, w) })
}

// correct adds a correction to each rule.
func (s *Strict) correct(g Grant, c correction) {
	s.enter(g.ruleset, g.id, g.rules, func(f *flight) { f.correct(c) })
}

func (f *flight) correct(c correction) {
	f.now = max(f.now, c.at)
	if len(f.pending) != len(f.rules) {
		f.pending = make([]corrections, len(f.rules))
	}
	for i, r := range f.rules {
		f.pending[i] = f.pending[i].add(r, f.now, c)
	}
}

// enter changes a key's flight, and gets it going.
func (s *Strict) enter(rs *ruleset, id [16]byte, rules []Rule, change func(*flight)) bool {
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
		f.running, f.started = true, time.Now()
		go func() {
			defer s.work.Done()
			s.fly(rs, id, f)
		}()
	}
	f.rules = rules
	change(f)
	return true
}

// leave takes a request out whose context has ended, unless its answer is there. slow says that the call under way takes so long that others
// will not get an answer in time either; a request that had to wait for the next call is no sign of that.
func (s *Strict) leave(rs *ruleset, id [16]byte, w *waiter) (left, slow bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	select {
	case <-w.done:
		return false, false
	default:
	}
	w.gone = true
	f := rs.flights[id]
	if f == nil {
		return true, false
	}
	if i := slices.Index(f.waiters, w); i >= 0 {
		f.waiters = slices.Delete(f.waiters, i, i+1)
	}
	return true, f.running && time.Since(f.started) > time.Duration(s.patience.Load())/2
}

// fly makes calls for a key until nothing is left to ask.
func (s *Strict) fly(rs *ruleset, id [16]byte, f *flight) {
	keys := rs.keys(s.prefix, id)
	for {
		c, ok := s.board(rs, id, f)
		if !ok {
			return
		}
		o, err := s.call(rs, keys, c)
		if s.ctx.Err() != nil && err != nil {
			err = ErrClosed
		}
		lost := err != nil && s.severe(err)
		if lost {
			s.trip(id, err)
		}
		rs.mu.Lock()
		f.land(c, o, err, lost)
		rests := err != nil && !lost && len(f.waiters) == 0 && f.left()
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

// call is one call of a ruleset's script.
type call struct {
	seq, undo int64
	rules     []Rule
	waiters   []*waiter
	sent      *group // nil for none
}

// board takes out what the next call is to ask. false means that there is none, and that the flight has ended.
func (s *Strict) board(rs *ruleset, id [16]byte, f *flight) (c call, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := s.mute(id); err != nil {
		f.fail(err)
		s.park(rs, id, f)
		return c, false
	}
	f.forget()
	if len(f.waiters) == 0 && !f.left() {
		delete(rs.flights, id)
		return c, false
	}
	c.seq, c.undo, f.started = s.seq.Add(1), f.undo, time.Now()
	c.rules = f.rules
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

// left says that something is to be sent though no request waits.
func (f *flight) left() bool {
	return f.sent != nil || f.undo != 0 || len(f.charges) > 0 || slices.ContainsFunc(f.pending, func(c corrections) bool { return len(c) > 0 })
}

// share cuts the requests in those that one call can ask for, as they go by the same limits, and the rest.
func (f *flight) share(rules []Rule) (now, later []*waiter) {
	most := len(f.waiters)
	if rules[0].Kind == 'l' {
		most = min(most, maxWanted)
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
		g.fixed[i], f.pending[i] = c.cut(f.rules[i])
		some = some || len(g.fixed[i]) > 0
	}
	units := int64(0)
	for len(f.charges) > 0 && units < maxUnits {
		w := f.charges[0]
		f.charges = f.charges[1:]
		w.sent = true
		for _, c := range w.charges {
			for _, one := range c {
				units = addSat(units, one.n)
			}
		}
		g.charges = append(g.charges, w)
	}
	if !some && len(g.charges) == 0 {
		return nil
	}
	return g
}

// forget drops what Redis may remember no longer.
func (f *flight) forget() {
	if f.sent != nil && time.Since(f.sent.since) > correctionTime {
		f.drop(errUnsettled)
	}
	if f.undo != 0 && time.Since(f.undoSince) > correctionTime {
		f.undo = 0
	}
}

// drop gives the corrections up that were sent.
func (f *flight) drop(err error) {
	for _, w := range f.sent.charges {
		w.err = err
		close(w.done)
	}
	f.sent = nil
}

// mute says why no call may be made for a key, nil if one may.
func (s *Strict) mute(id [16]byte) error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	c, _ := s.circuitOf(id)
	return c.lost()
}

// park ends a flight of which something is still to be settled.
func (s *Strict) park(rs *ruleset, id [16]byte, f *flight) {
	f.running = false
	if s.ctx.Err() != nil || !f.left() || s.pending.Load() >= maxPending {
		if f.sent != nil {
			f.drop(errUnsettled)
		}
		delete(rs.flights, id)
		return
	}
	s.pending.Add(1)
}

// settle sends what was parked while a circuit was open.
func (s *Strict) settle(c *circuit) {
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
func (s *Strict) resume(rs *ruleset, id [16]byte) {
	rs.mu.Lock()
	f := rs.flights[id]
	if f == nil || f.running || !s.begin() {
		rs.mu.Unlock()
		return
	}
	defer s.work.Done()
	s.pending.Add(-1)
	f.running, f.started = true, time.Now()
	rs.mu.Unlock()
	s.fly(rs, id, f)
}

// fail tells all who wait that there is no answer, and have not asked.
func (f *flight) fail(err error) {
	for _, w := range append(f.waiters, f.charges...) {
		w.err = err
		close(w.done)
	}
	f.waiters, f.charges = nil, nil
}

// land hands out the answer of a call. lost says of an error that nobody knows whether the call was done.
func (f *flight) land(c call, o *outcome, err error, lost bool) {
	if err != nil {
		f.crash(c, err, lost)
		return
	}
	f.undo, f.sent = 0, nil
	f.now = o.at
	if c.sent != nil {
		for _, w := range c.sent.charges {
			w.outcome = o
			close(w.done)
		}
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

// crash ends a call that failed.
func (f *flight) crash(c call, err error, lost bool) {
	switch {
	case lost && f.undo == 0 && len(c.waiters) > 0:
		f.undo, f.undoSince = c.seq, time.Now()
	case !lost && c.sent != nil && c.sent.first == c.seq: // Redis refuses what is done to this key, and has done nothing
		for _, w := range c.sent.charges {
			w.err = err
			close(w.done)
		}
		c.sent.charges = nil
	}
	for _, w := range c.waiters {
		if !w.gone {
			w.err = err
			close(w.done)
		}
	}
}

// call asks Redis.
func (s *Strict) call(rs *ruleset, keys []string, c call) (*outcome, error) {
	timeout := s.timeout
	if len(c.waiters) > 0 {
		timeout = time.Duration(s.patience.Load())
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
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

// args are the arguments of the script.
func (s *Strict) args(rs *ruleset, c call) []any {
	first := int64(0)
	if c.sent != nil {
		first = c.sent.first
	}
	args := append(make([]any, 0, 64), rs.field, c.seq, len(c.waiters), c.undo, first, (recordTime + 2*s.timeout).Milliseconds())
	for i, r := range c.rules {
		args = append(args, r.args(rs.zone)...)
		args = c.sent.of(i).appendArgs(r, args)
	}
	return args
}

// of are the corrections of a rule.
func (g *group) of(rule int) (c corrections) {
	if g == nil {
		return nil
	}
	if rule < len(g.fixed) {
		c = slices.Clip(g.fixed[rule])
	}
	for _, w := range g.charges {
		c = append(c, w.charges[rule]...)
	}
	return c
}
