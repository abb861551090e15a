package ratesync

import (
	"context"
	"slices"
	"time"
)

// flight is what goes on for one key: a call under way, and who and what waits for the next one. Its ruleset's mutex guards it.
type flight struct {
	waiters []*waiter
	amends  []amend
	// undo is the first call whose outcome is not known, 0 for none.
	undo int64
	// running says that a goroutine is at it, and started when the last call began.
	running bool
	started time.Time
}

// waiter is a request. What it waits for is written before done is closed.
type waiter struct {
	done chan struct{}
	gone bool // its context has ended

	outcome *outcome
	place   int64
	err     error
}

// amend corrects what was spent: it gives a unit back (n 1) that the call seq got as its unit-th at the instant at, or spends one unasked (n -1).
type amend struct {
	// first is the call that brought it along for the first time, 0 before that, and sent when that was.
	first int64
	sent  time.Time

	at, seq, unit, n int64
}

const (
	// mostAmends bounds what one call brings along; the rest waits for the next.
	mostAmends = 64
	// amendTime is how long an amend is tried whose outcome is not known. Redis remembers calls for 10 minutes, so it is never done twice.
	amendTime = 5 * time.Minute
)

// join lets a request wait for the next call of a key. false means that there will be none.
func (s *Strict) join(rs *ruleset, id [16]byte, w *waiter) bool {
	return s.enter(rs, id, func(f *flight) { f.waiters = append(f.waiters, w) })
}

func (s *Strict) amend(rs *ruleset, id [16]byte, a amend) {
	s.enter(rs, id, func(f *flight) { f.amends = append(f.amends, a) })
}

// enter changes a key's flight, and gets it going.
func (s *Strict) enter(rs *ruleset, id [16]byte, change func(*flight)) bool {
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
		rs.mu.Unlock()
	}
}

// call is one call of a ruleset's script.
type call struct {
	seq, undo int64
	waiters   []*waiter
	amends    []amend
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
	if len(f.waiters) == 0 && len(f.amends) == 0 && f.undo == 0 {
		delete(rs.flights, id)
		return c, false
	}
	c.seq, c.undo, f.started = s.seq.Add(1), f.undo, time.Now()
	n := min(len(f.waiters), mostWanted)
	c.waiters, f.waiters = f.waiters[:n:n], f.waiters[n:]
	f.amends = slices.DeleteFunc(f.amends, func(a amend) bool { return a.first != 0 && time.Since(a.sent) > amendTime })
	for i := range f.amends[:min(len(f.amends), mostAmends)] {
		if a := &f.amends[i]; a.first == 0 {
			a.first, a.sent = c.seq, time.Now()
		}
	}
	c.amends = slices.Clone(f.amends[:min(len(f.amends), mostAmends)])
	return c, true
}

// mute says why no call may be made for a key, nil if one may.
func (s *Strict) mute(id [16]byte) error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	c, _ := s.circuitOf(id)
	return c.lost()
}

// park ends a flight of which something is still to be settled when Redis is back.
func (s *Strict) park(rs *ruleset, id [16]byte, f *flight) {
	f.running = false
	if len(f.amends) == 0 && f.undo == 0 || s.pending.Load() >= mostPending {
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
	if f == nil || f.running {
		rs.mu.Unlock()
		return
	}
	s.pending.Add(-1)
	f.running, f.started = true, time.Now()
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

// land hands out the answer of a call. lost says of an error that nobody knows whether the call was done.
func (f *flight) land(c call, o *outcome, err error, lost bool) {
	if err != nil {
		switch {
		case !lost: // Redis refuses what is done to this key, and has done nothing
			f.undo, f.amends = 0, f.amends[len(c.amends):]
		case f.undo == 0:
			f.undo = c.seq
		}
		for _, w := range c.waiters {
			if !w.gone {
				w.err = err
				close(w.done)
			}
		}
		return
	}
	f.undo = 0
	f.amends = f.amends[len(c.amends):]
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
		f.amends = append(f.amends, amend{at: o.at, seq: c.seq, unit: place, n: 1})
	}
}

// call asks Redis.
func (s *Strict) call(rs *ruleset, keys []string, c call) (*outcome, error) {
	args := make([]any, 0, 5+5*len(c.amends)+len(rs.args))
	args = append(args, rs.field, c.seq, len(c.waiters), c.undo, len(c.amends))
	for _, a := range c.amends {
		args = append(args, a.first, a.at, a.seq, a.unit, a.n)
	}
	args = append(args, rs.args...)
	timeout := s.timeout
	if len(c.waiters) > 0 {
		timeout = time.Duration(s.patience.Load())
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	reply, err := rs.script.Run(ctx, s.client, keys, args...).Result()
	if err != nil {
		return nil, err
	}
	o, err := parseOutcome(reply, len(rs.rules), int64(len(c.waiters)))
	if err != nil {
		return nil, err
	}
	o.seq = c.seq
	o.refuse(int64(len(c.waiters)))
	return o, nil
}
