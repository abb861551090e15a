package algorithms

// A Chargeable is a machine whose counts a store that decides by itself (sync_rate strict) keeps in
// a form of its own: the level of a bucket. A node that has to decide alone
// can't send totals there. It sends charges instead: what is left of its own decisions.
//
// A state then has two parts: what the store reported, and what this node decided since, the debt.
// Both drain as time passes.
type Chargeable[S any] interface {
	// Debt works out what this node decided and the store doesn't know, as it is at now.
	Debt(s *S, l Limit, now int64) Debt
	// Uncounted returns how many requests the whole debt is, rounded up.
	Uncounted(s *S, l Limit, now int64) int64
	// Prepare notes that the debt as it is now is about to be sent to the store.
	Prepare(s *S, l Limit)
	// Import replaces the store's last report by this one, and keeps the debt. With sent, the
	// debt that was in flight is paid, and only what came since is kept.
	Import(s *S, l Limit, now int64, reports []Report, sent bool)
}

// A Debt is what one key has spent by decisions of this node that the store has not counted.
// The zero Debt is none.
type Debt struct {
	// At is the instant that the rest holds for, in nanoseconds.
	At int64
	// Whole and Part are what a bucket holds of it, in requests: Whole + Part/window. Whole is
	// negative where more was returned than spent.
	Whole, Part int64
	// Rate is the N that a bucket drains at, 0 where this node has decided nothing.
	Rate int64
}

// IsZero reports whether there is nothing to charge.
func (d Debt) IsZero() bool { return d.Whole == 0 && d.Part == 0 }

// imported is what a bucket remembers of a store that decides by itself. Its levels drain in step
// with the deficit, at whatever rate that does.
type imported struct {
	// level is what is left of what the store reported. The rest of the deficit is the debt.
	level amount
	// sent is what is left of the deficit as it was when the debt was sent. What the deficit has
	// beyond it came later.
	sent amount
}

func (t *imported) drain(by amount, window int64) {
	if t == nil {
		return
	}
	t.level, t.sent = t.level.after(by, window), t.sent.after(by, window)
}

// knows is the part of the deficit that the store knows of: what it reported, or what was known
// after the last sync where it has reported nothing yet.
func (s *BucketState) knows() amount {
	switch {
	case s.imported != nil:
		return s.imported.level
	case s.merged != nil:
		return s.merged.base
	}
	return amount{}
}

// Debt works out the part of the deficit that comes from decisions which the store doesn't know.
func (*bucket) Debt(s *BucketState, l Limit, now int64) Debt {
	s.advance(l, now)
	own := s.deficit.floor().minus(s.knows(), l.Window)
	return Debt{At: s.last, Whole: own.whole, Part: own.frac, Rate: s.rate}
}

// Uncounted returns the debt in whole requests.
func (b *bucket) Uncounted(s *BucketState, l Limit, now int64) int64 {
	d := b.Debt(s, l, now)
	return max(0, amount{d.Whole, d.Part}.ceil())
}

// Prepare notes what of the deficit is about to be sent.
func (*bucket) Prepare(s *BucketState, l Limit) {
	if s.imported == nil {
		s.imported = &imported{level: s.knows()}
	}
	s.imported.sent = s.deficit.floor()
}

// Import replaces the level that the store reported.
func (*bucket) Import(s *BucketState, l Limit, now int64, reports []Report, sent bool) {
	s.advance(l, now)
	var level amount
	for _, r := range reports {
		if r.LevelAt > 0 {
			level = r.left(s.kept(l), s.last)
		}
		if r.Rate > 0 {
			s.rate = r.Rate
		}
	}
	known := s.knows()
	if sent && s.imported != nil {
		known = s.imported.sent
	}
	own := s.deficit.floor().minus(known, l.Window)
	if s.imported == nil {
		s.imported = new(imported)
	}
	*s.imported = imported{level: level}
	s.deficit = level.plus(own, l.Window)
	s.merged, s.ledger = nil, Ledger{}
	s.advanceLedger(l, now)
	s.ledger.Cur.Own = max(0, own.ceil())
}

// Interface guard
var _ Chargeable[BucketState] = (*bucket)(nil)
