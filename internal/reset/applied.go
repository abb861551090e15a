package reset

// Applied are the resets that the keys of a table count under. They don't change. nil are none.
type Applied struct {
	*Set
	// when is when each of them was applied, by its stamp, in the time of the table's callers.
	when map[int64]int64
}

// Next are the resets that are applied at now, nil for an empty set. Of those that were applied
// before it is remembered when.
func (a *Applied) Next(set *Set, now int64) *Applied {
	return a.NextAt(set, func(Reset) int64 { return now })
}

// NextAt is Next for resets that each are applied at an instant of their own.
func (a *Applied) NextAt(set *Set, at func(Reset) int64) *Applied {
	if set == nil {
		return nil
	}
	next := &Applied{set, make(map[int64]int64, 1+len(set.Keys))}
	note := func(r Reset) {
		next.when[r.Stamp] = at(r)
		if a != nil {
			if earlier, ok := a.when[r.Stamp]; ok {
				next.when[r.Stamp] = earlier
			}
		}
	}
	note(set.All)
	for _, r := range set.Keys {
		note(r)
	}
	return next
}

// When returns when the reset of a key was applied; ok is false where there is none.
func (a *Applied) When(id [16]byte) (at int64, ok bool) {
	if a == nil {
		return 0, false
	}
	r := a.Of(id)
	return a.when[r.Stamp], r.Stamp != 0
}

// Covers reports whether what a key spent at an instant was reset since.
func (a *Applied) Covers(id [16]byte, at int64) bool {
	when, ok := a.When(id)
	return ok && at <= when
}
