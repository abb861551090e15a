// Package reset holds what keys of a zone were reset: which of them, and when. It is what an
// operator says once and every node applies, and has no clock and does no I/O.
//
// What a node says of a key carries the stamp of the reset that it counts under. The store empties
// what it has under an earlier one, and rejects what is said under an earlier one: so it doesn't
// matter when each node applies a reset, and nothing has to be deleted.
package reset

// A Reset is when one key was reset. The zero Reset is never.
type Reset struct {
	// Stamp orders resets, in microseconds. It is the store's time, or more where that has stepped
	// back.
	Stamp int64
	// At is the instant up to which is forgiven, and Until when nothing is left that the reset says
	// anything of; both by the store's clock, in nanoseconds.
	At, Until int64
}

// Replaces reports whether a reset takes the place of another one: it is later, or of the same
// stamp and forgives less. Who learns of a stamp from a bucket takes it for the instant of its
// reset, which may be earlier.
func (r Reset) Replaces(other Reset) bool {
	return r.Stamp > other.Stamp || r.Stamp == other.Stamp && r.At < other.At
}

// A Set is the resets of one zone. It never changes, and is safe for concurrent use. nil has none.
type Set struct {
	// All is the latest reset of all keys, and Keys are those of single ones.
	All  Reset
	Keys map[[16]byte]Reset
}

// Of is the latest reset of a key.
func (s *Set) Of(id [16]byte) Reset {
	if s == nil {
		return Reset{}
	}
	if one, ok := s.Keys[id]; ok && one.Stamp > s.All.Stamp {
		return one
	}
	return s.All
}

// IsNewer reports whether some key has a later reset in s than in than.
func (s *Set) IsNewer(than *Set) bool {
	if s == nil {
		return false
	}
	if than == nil || s.All.Replaces(than.All) {
		return true
	}
	for id, one := range s.Keys {
		if one.Replaces(than.Of(id)) {
			return true
		}
	}
	return false
}

// With returns the resets of both sets, the later one of each key, except those that are over at
// now, by the store's clock. A reset of all replaces those before it. It is nil where none is left.
func (s *Set) With(other *Set, now int64) *Set {
	both := &Set{Keys: make(map[[16]byte]Reset)}
	for _, from := range []*Set{s, other} {
		if from != nil && from.All.Replaces(both.All) && from.All.Until > now {
			both.All = from.All
		}
	}
	for _, from := range []*Set{s, other} {
		if from == nil {
			continue
		}
		for id, one := range from.Keys {
			if one.Until > now && one.Replaces(both.Of(id)) {
				both.Keys[id] = one
			}
		}
	}
	if both.All.Stamp == 0 && len(both.Keys) == 0 {
		return nil
	}
	return both
}
