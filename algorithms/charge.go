package algorithms

import "github.com/caddy-tide/ratelimit/internal/saturate"

// What a request has cost beyond what it took is charged when its response has told it: unasked,
// and so beyond the limit. What that can make a client wait is bounded all the same, by the window
// of a window or log, and by the cut of a bucket.

// maxCharged is how far charges let a key's count in an epoch go: half of what a store whose
// numbers are doubles can add up.
const maxCharged = 1 << 52

// chargeable returns how many of n units still fit into the current epoch.
func (l *Ledger) chargeable(n int64) int64 { return max(0, min(n, maxCharged-l.Cur.Own)) }

// Charge counts n units in the current sub-window.
func (m *window) Charge(s *WindowState, l Limit, now, n int64) {
	m.advance(s, l, now)
	s.ledger.Cur.Own += s.ledger.chargeable(n)
}

// Charge adds n units to the deficit, up to what drains in one window beyond the size.
func (*bucket) Charge(s *BucketState, l Limit, now, n int64) {
	s.advance(l, now)
	most := saturate.Add(l.Size, s.kept(l).N)
	if n = min(s.ledger.chargeable(n), most-s.deficit.floor().ceil()); n > 0 {
		s.spend(n)
	}
}

// Charge logs n units at now, and drops none for them.
func (*log) Charge(s *LogState, l Limit, now, n int64) {
	s.advance(now, l.Window)
	if n = min(s.ledger.chargeable(n), maxCharged-s.own); n > 0 {
		s.add(n)
	}
}
