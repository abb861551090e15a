package algorithms

import "time"

// A WindowState is what a window algorithm remembers of one key: counts by epoch, nothing else. The zero value is a key never seen.
// Its owner locks.
type WindowState struct {
	ledger Ledger
}

// counters is the kernel of the window algorithms. Time is cut into epochs of span nanoseconds. The current epoch and the live-1 before
// it count in full, and the one before those in the proportion in which a window that ends now still covers it. With live 0 only the
// current epoch counts. With a fifth field the compiler would no longer keep it in registers.
type counters struct {
	limit  int64
	window time.Duration
	span   int64
	live   int
}

func (c counters) take(s *WindowState, now, n, hidden int64, brief bool) Decision {
	n, hidden = max(n, 0), max(hidden, 0)
	into := c.roll(s, now)
	if c.limit <= 0 {
		return closed(n, c.window)
	}
	l := &s.ledger
	used := c.used(l, into)
	d := Decision{Limit: c.limit}
	d.Allowed, d.Estimated = verdict(c.limit, used, n, hidden)
	switch {
	case d.Allowed:
		l.Cur.Own += n
		used += n
	case d.Estimated:
		own := l.Cur.Own
		l.Cur.Own = addSat(own, hidden)
		d.RetryAfter = c.until(l, into, c.limit-n)
		l.Cur.Own = own
	case n > c.limit:
		d.RetryAfter = c.window
	default:
		d.RetryAfter = c.until(l, into, c.limit-n)
	}
	d.Remaining = remaining(c.limit, used, hidden)
	if used > 0 && !(brief && d.Allowed && n > 0) {
		if next := min(used, c.limit) - 1; d.RetryAfter > 0 && next == c.limit-n {
			d.NextAfter = d.RetryAfter // the unit that is waited for is the next one
		} else {
			d.NextAfter = c.until(l, into, next)
		}
		d.ResetAfter = c.until(l, into, 0)
	}
	return d
}

func (c counters) charge(s *WindowState, now, n int64) {
	c.roll(s, now)
	s.ledger.Cur.Own = addSat(s.ledger.Cur.Own, max(n, 0))
}

func (c counters) giveBack(s *WindowState, taken, n int64) {
	epoch, _ := floorDivMod(taken, c.span)
	s.ledger.giveBack(epoch, n)
}

func (c counters) absorb(s *WindowState, now int64, reports []Report) {
	c.roll(s, now)
	for _, r := range reports {
		if count, ok := s.ledger.At(r.Epoch); ok {
			count.Elsewhere = max(0, r.Elsewhere)
			s.ledger.Put(r.Epoch, count)
			s.ledger.Settled = true
		}
	}
}

func (c counters) idle(s *WindowState, now int64) bool {
	epoch, _ := floorDivMod(now, c.span)
	own, elsewhere := s.ledger.holds(epoch, c.live)
	return !own && !elsewhere
}

func (c counters) shift(s *WindowState, now int64, by time.Duration) {
	epoch, _ := floorDivMod(now, c.span)
	s.ledger.Shift(nearest(int64(by), c.span), epoch)
}

// roll brings the ledger to the epoch of now and returns how far into the ledger's epoch now is. It is negative for a
// request that is late: it counts as if it came at the start of that epoch.
func (c counters) roll(s *WindowState, now int64) (into int64) {
	epoch, into := floorDivMod(now, c.span)
	l := &s.ledger
	if l.Epoch == epoch+1 {
		if c.span-into <= lateness(c.span) {
			return into - c.span
		}
		l.Move(-1)
		return into
	}
	if l.Epoch != epoch {
		l.Roll(epoch, c.live)
	}
	return into
}

// used is how many units count at an instant, rounded up. As all that is compared with it is whole, rounding up loses nothing:
// a weighted sum fits under a whole number if and only if the next whole number above it does.
func (c counters) used(l *Ledger, into int64) int64 {
	if c.live == 0 {
		return l.Cur.Total()
	}
	fading := l.age(c.live)
	if into > 0 && fading > 0 {
		fading = mulDivUp(fading, c.span-into, c.span)
	}
	return addSat(c.full(l), fading)
}

// full is the sum of the epochs that count in full.
func (c counters) full(l *Ledger) int64 {
	full := l.Cur.Total()
	for age := 1; age < c.live; age++ {
		full = addSat(full, l.age(age))
	}
	return full
}

// until is the wait until no more than target (>= 0) units count. It walks the epochs to come: in each, one more
// falls out of the sum and the next begins to fade.
func (c counters) until(l *Ledger, into, target int64) time.Duration {
	if c.live == 0 {
		if l.Cur.Total() <= target {
			return 0
		}
		return time.Duration(c.span - into)
	}
	full, from := c.full(l), max(into, 0)
	for ahead := 0; ; ahead++ {
		if full <= target {
			from = max(from, c.fadesTo(l.age(c.live-ahead), target-full))
			return time.Duration(int64(ahead)*c.span + from - into)
		}
		full -= l.age(c.live - 1 - ahead)
		from = 0
	}
}

// fadesTo is how far into its last epoch a count weighs no more than weight.
func (c counters) fadesTo(count, weight int64) int64 {
	if count <= weight {
		return 0
	}
	return c.span - mulDiv(weight, c.span, count)
}
