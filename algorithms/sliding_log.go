package algorithms

import "time"

var _ Algorithm[LogState] = SlidingLog{}

// SlidingLog remembers when each request of the last Window came, and admits another while they are fewer than Limit. It is the sliding log
// of Figma's limiter ("An alternative approach to rate limiting", 2017) and of caddy-ratelimit's ring buffer.
//
// Bound: exactly Limit in any interval of the window's length, half open: what came at t no longer counts at t + Window. That is for what this node
// admits. What others spent is known by sixteenths of the window, each of which counts until its end has left the window, so up to
// Window / 16 and one exchange too long; it is exact where nothing is learnt that way (sync_rate -1 and 0).
//
// Memory: 8 bytes for each instant at which something was admitted, and less than twice that with the room to grow, so below 16 x Limit a key.
type SlidingLog struct {
	// Limit is the number of requests per window; 0 refuses all.
	Limit int64
	// Window is the length of the window, 1ms to ten years.
	Window time.Duration
	// Brief leaves NextAfter and ResetAfter out of what an admitted Take of 1 or more says, for callers that tell nobody.
	Brief bool
}

// Take asks for n units.
func (a SlidingLog) Take(s *LogState, now, n, hidden int64) Decision {
	n, hidden = max(n, 0), max(hidden, 0)
	late := s.advance(now, a.window())
	a.Roll(s, now)
	if a.Limit <= 0 {
		return closed(n, a.Window)
	}
	others := s.others(a.window())
	used := addSat(s.own, others.total())
	d := Decision{Limit: a.Limit}
	d.Allowed, d.Estimated = verdict(a.Limit, used, n, hidden)
	switch {
	case d.Allowed && n > 0:
		s.add(n)
		used += n
	case d.Allowed:
	case d.Estimated:
		ns := a.window() // until what is hidden leaves, were it spent now
		if target := a.Limit - n - hidden; target >= 0 {
			ns = min(ns, s.until(others, ns, target))
		}
		d.RetryAfter = wait(late, ns)
	case n > a.Limit:
		d.RetryAfter = a.Window
	default:
		d.RetryAfter = wait(late, s.until(others, a.window(), a.Limit-n))
	}
	d.Remaining = remaining(a.Limit, used, hidden)
	if used > 0 && !(a.Brief && d.Allowed && n > 0) {
		if next := min(used, a.Limit) - 1; d.RetryAfter > 0 && next == a.Limit-n {
			d.NextAfter = d.RetryAfter // the unit that is waited for is the next one
		} else {
			d.NextAfter = wait(late, s.until(others, a.window(), next))
		}
		d.ResetAfter = wait(late, s.empties(others, a.window()))
	}
	return d
}

// Charge logs n units unasked, at most Limit in all: the oldest make room, as the newest are those that keep a client waiting.
func (a SlidingLog) Charge(s *LogState, now, n int64) {
	s.advance(now, a.window())
	a.Roll(s, now)
	if n = min(n, a.Limit); n <= 0 {
		return
	}
	s.dropOldest(s.own - (a.Limit - n))
	s.add(n)
}

// Return removes n units from what was logged at the instant taken.
func (a SlidingLog) Return(s *LogState, taken, n int64) {
	n = max(n, 0)
	epoch, _ := floorDivMod(taken, a.window())
	s.ledger.giveBack(epoch, n)
	s.remove(taken, n, a.window())
}

// Absorb logs what the others are newly known to have spent: in the current epoch as spent now, in the former one as spent at its end.
// Neither is earlier than it was. An epoch that is not reported keeps what is known of it.
func (a SlidingLog) Absorb(s *LogState, now int64, reports []Report) {
	s.advance(now, a.window())
	a.Roll(s, now)
	l := &s.ledger
	_, into := floorDivMod(s.last, a.window())
	for _, r := range reports {
		count, ok := l.At(r.Epoch)
		if !ok {
			continue
		}
		elsewhere, ago := max(0, r.Elsewhere), int64(0)
		if r.Epoch < l.Epoch {
			ago = into + 1
		}
		s.addElsewhere(ago, addSat(elsewhere, -count.Elsewhere), a.window())
		count.Elsewhere = elsewhere
		l.Put(r.Epoch, count)
		l.Settled = true
	}
}

// Idle reports that nothing logged is left in the window and that its epochs are over.
func (a SlidingLog) Idle(s *LogState, now int64) bool {
	if now < s.last && (len(s.hits) > 0 || s.elsewhere != nil) {
		return false
	}
	if a.Limit > 0 && s.counts(now, a.window()) {
		return false
	}
	epoch, _ := floorDivMod(now, a.window())
	own, _ := s.ledger.holds(epoch, 1)
	return !own
}

// Shift moves the instants, and the totals by the nearest number of whole windows.
func (a SlidingLog) Shift(s *LogState, now int64, by time.Duration) {
	s.shift(int64(by), a.window())
	epoch, _ := floorDivMod(now, a.window())
	s.ledger.Shift(nearest(int64(by), a.window()), epoch)
}

// Ledger gives the totals for the exchange. They don't decide.
func (a SlidingLog) Ledger(s *LogState) *Ledger { return &s.ledger }

// Roll brings the ledger to the aligned window of now.
func (a SlidingLog) Roll(s *LogState, now int64) {
	epoch, _ := floorDivMod(now, a.window())
	s.ledger.Roll(epoch, 1)
}

// Span is the window.
func (a SlidingLog) Span(*LogState) time.Duration { return time.Duration(a.window()) }

// Live is 1: what came before the last edge can still be in the window.
func (a SlidingLog) Live() int { return 1 }

// Level is 0.
func (a SlidingLog) Level(*LogState, int64) float64 { return 0 }

// Slack is 0.
func (a SlidingLog) Slack(*LogState, int64) int64 { return 0 }

// Rule returns the limit and the window.
func (a SlidingLog) Rule() (limit int64, window time.Duration) { return a.Limit, a.Window }

func (a SlidingLog) window() int64 { return nanoseconds(a.Window) }
