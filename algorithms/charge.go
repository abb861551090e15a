package algorithms

// A Chargeable is an algorithm whose counts a store that decides by itself (sync_rate 0) keeps in
// a form of its own: the level of a bucket, the entries of a log. A node that has to decide alone
// can't send totals there. It sends charges instead: what is left of its own decisions.
//
// A state then has two parts: what the store taught, and what this node decided since, the debt.
// Both drain, or leave the window, as time passes.
type Chargeable[S any] interface {
	Algorithm[S]

	// Debt works out what this node decided and the store doesn't know, as it is at now. A log
	// gives its oldest hits, up to most units.
	Debt(s *S, now int64, most int) Debt
	// Owed is how many requests the whole debt is, rounded up.
	Owed(s *S, now int64) int64
	// Send notes that the debt as it is now is on its way to the store.
	Send(s *S)
	// Learn replaces what the store taught by what it teaches now, and keeps the debt. With
	// sent, the debt that was on its way is paid, and only what came since is kept. The refund is
	// the part of sent that was returned meanwhile, which the store must be told.
	Learn(s *S, now int64, told []Report, sent *Debt) (refund Debt)
}

// A Debt is what one key has spent by decisions of this node that the store has not been told.
// The zero Debt is none.
type Debt struct {
	// At is the instant that the rest holds for, in nanoseconds.
	At int64
	// Whole and Part are what a bucket holds of it, in requests: Whole + Part/window. Whole is
	// negative where more was returned than spent.
	Whole, Part int64
	// Hits are the entries of a log, the oldest first.
	Hits []Hit
	// More reports that the log has further hits.
	More bool
}

// A Hit is N units that were spent at one instant, in nanoseconds. N is negative in a refund.
type Hit struct{ At, N int64 }

// IsZero reports whether there is nothing to charge.
func (d Debt) IsZero() bool { return d.Whole == 0 && d.Part == 0 && len(d.Hits) == 0 }

// taught is what a bucket remembers of a store that decides by itself. Its levels drain in step
// with the deficit, at whatever rate that does.
type taught struct {
	// level is what is left of what the store taught. The rest of the deficit is the debt.
	level amount
	// sent is what is left of the deficit as it was when the debt was sent. What the deficit has
	// beyond it came later.
	sent amount
}

func (t *taught) drain(by amount, window int64) {
	if t == nil {
		return
	}
	for _, a := range []*amount{&t.level, &t.sent} {
		if a.less(by) {
			*a = amount{}
		} else {
			*a = a.minus(by, window)
		}
	}
}

// knows is the part of the deficit that the store knows of: what it taught, or what was known
// after the last exchange where it has taught nothing yet.
func (b bucket) knows(s *BucketState) amount {
	switch {
	case s.taught != nil:
		return s.taught.level
	case s.absorbed != nil:
		return b.drained(s.absorbed.base, s.last, s.absorbed.at)
	}
	return amount{}
}

func (b bucket) debt(s *BucketState, now int64) Debt {
	b.advance(s, now)
	own := s.deficit.floor().minus(b.knows(s), b.window)
	return Debt{At: s.last, Whole: own.whole, Part: own.frac}
}

func (b bucket) owed(s *BucketState, now int64) int64 {
	d := b.debt(s, now)
	return max(0, amount{d.Whole, d.Part}.ceil())
}

func (b bucket) send(s *BucketState) {
	if s.taught == nil {
		s.taught = &taught{level: b.knows(s)}
	}
	s.taught.sent = s.deficit.floor()
}

func (b bucket) learn(s *BucketState, now int64, told []Report, sent bool) {
	b.advance(s, now)
	var level amount
	for _, r := range told {
		if r.LevelAt > 0 {
			level = b.drained(b.parse(r.Level), s.last, r.LevelAt)
		}
	}
	known := b.knows(s)
	if sent && s.taught != nil {
		known = s.taught.sent
	}
	own := s.deficit.floor().minus(known, b.window)
	if s.taught == nil {
		s.taught = new(taught)
	}
	*s.taught = taught{level: level}
	s.deficit = level.plus(own, b.window)
	s.absorbed, s.penalty, s.ledger = nil, 0, Ledger{}
	b.roll(s, now)
	s.ledger.Cur.Own = max(0, own.ceil())
}

// debt lists the own hits, which are those that the store doesn't know.
func (s *LogState) debt(most int) (d Debt) {
	d.At = s.last
	left := int64(most)
	for i := s.head; i < len(s.hits); i++ {
		n := min(s.unitsOf(i), left)
		if n <= 0 {
			d.More = true
			break
		}
		d.Hits = append(d.Hits, Hit{At: s.hits[i], N: n})
		d.More = n < s.unitsOf(i)
		left -= n
	}
	return d
}

// pay removes hits that were sent. The refund is of those that are not there any more, although
// they are still in the window: they were returned.
func (s *LogState) pay(sent []Hit, window int64) (refund Debt) {
	for _, h := range sent {
		if h.N <= 0 || s.last >= h.At && since(s.last, h.At) >= uint64(window) {
			continue
		}
		if missing := h.N - s.removeAt(h.At, h.N); missing > 0 {
			refund.Hits = append(refund.Hits, Hit{At: h.At, N: -missing})
		}
	}
	return refund
}

// removeAt removes up to n units of an instant, and returns how many there were.
func (s *LogState) removeAt(at, n int64) (removed int64) {
	for i := s.head; i < len(s.hits) && s.hits[i] <= at; i++ {
		if s.hits[i] != at {
			continue
		}
		there := s.unitsOf(i)
		removed = min(n, there)
		s.own -= removed
		if removed < there {
			s.setUnits(i, there-removed)
			return removed
		}
		s.setUnits(i, 1)
		if i == s.head {
			s.head++
		} else {
			s.hits = s.hits[:i+copy(s.hits[i:], s.hits[i+1:])]
		}
		return removed
	}
	return 0
}

// Debt works out what of the bucket is of decisions that the store doesn't know.
func (a TokenBucket) Debt(s *BucketState, now int64, _ int) Debt { return a.kernel().debt(s, now) }

// Owed is the debt in whole requests.
func (a TokenBucket) Owed(s *BucketState, now int64) int64 { return a.kernel().owed(s, now) }

// Send notes that the debt is on its way.
func (a TokenBucket) Send(s *BucketState) { a.kernel().send(s) }

// Learn replaces the level that the store taught.
func (a TokenBucket) Learn(s *BucketState, now int64, told []Report, sent *Debt) Debt {
	a.kernel().learn(s, now, told, sent != nil)
	return Debt{}
}

// Debt works out what of the bucket is of decisions that the store doesn't know.
func (a GCRA) Debt(s *BucketState, now int64, _ int) Debt { return a.kernel().debt(s, now) }

// Owed is the debt in whole requests.
func (a GCRA) Owed(s *BucketState, now int64) int64 { return a.kernel().owed(s, now) }

// Send notes that the debt is on its way.
func (a GCRA) Send(s *BucketState) { a.kernel().send(s) }

// Learn replaces the level that the store taught.
func (a GCRA) Learn(s *BucketState, now int64, told []Report, sent *Debt) Debt {
	a.kernel().learn(s, now, told, sent != nil)
	return Debt{}
}

// Debt works out what of the queue is of decisions that the store doesn't know.
func (a LeakyBucket) Debt(s *BucketState, now int64, _ int) Debt { return a.kernel().debt(s, now) }

// Owed is the debt in whole requests.
func (a LeakyBucket) Owed(s *BucketState, now int64) int64 { return a.kernel().owed(s, now) }

// Send notes that the debt is on its way.
func (a LeakyBucket) Send(s *BucketState) { a.kernel().send(s) }

// Learn replaces the level that the store taught.
func (a LeakyBucket) Learn(s *BucketState, now int64, told []Report, sent *Debt) Debt {
	a.kernel().learn(s, now, told, sent != nil)
	return Debt{}
}

// Debt lists the hits that the store doesn't know.
func (a SlidingLog) Debt(s *LogState, now int64, most int) Debt {
	s.advance(now, a.window())
	return s.debt(most)
}

// Owed is the number of units that the store doesn't know.
func (a SlidingLog) Owed(s *LogState, now int64) int64 {
	s.advance(now, a.window())
	return s.own
}

// Send does nothing: the hits stay until they are paid.
func (a SlidingLog) Send(*LogState) {}

// Learn replaces what the store taught: a number of hits, which count as spent now.
func (a SlidingLog) Learn(s *LogState, now int64, told []Report, sent *Debt) (refund Debt) {
	s.advance(now, a.window())
	if sent != nil {
		refund = s.pay(sent.Hits, a.window())
	}
	var count int64
	for _, r := range told {
		count = addSat(count, max(0, r.Elsewhere))
	}
	s.elsewhere, s.ledger = nil, Ledger{}
	a.Roll(s, now)
	s.addElsewhere(0, count, a.window())
	s.ledger.Cur = Count{Own: s.own, Elsewhere: count}
	return refund
}

// Interface guards
var (
	_ Chargeable[BucketState] = TokenBucket{}
	_ Chargeable[BucketState] = GCRA{}
	_ Chargeable[BucketState] = LeakyBucket{}
	_ Chargeable[LogState]    = SlidingLog{}
)
