package table

import (
	"maps"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// Reset applies resets that the table has not applied yet: what the keys had spent until then is
// forgotten, and what they spend from now on is sent under the stamp of that reset. now is the
// caller's clock. It returns how many requests are forgiven, as far as this node knows of them.
//
// A message that is under way was made before: its answer says the stamp that it was under.
func (t *Table[S]) Reset(now int64, latest *reset.Set) (forgiven int64) {
	t.walking.Lock()
	defer t.walking.Unlock()
	t.taking.Lock()
	defer t.taking.Unlock()
	had := t.recorded()
	at := t.in(now)
	next := had.With(latest, at)
	if b := t.config.Load(); b != nil && next.IsNewer(had) {
		isNew := func(id [16]byte) bool { return next.Of(id).Replaces(had.Of(id)) }
		t.saved.Drop(b.Limit, at, func(id [16]byte, reports []algorithms.Report) bool {
			if !isNew(id) {
				return false
			}
			var s S
			restoreSaved(t.machine, b.Limit, &s, at, reports)
			forgiven += t.machine.Reset(&s, b.Limit, at, b.Epochs.At(at))
			return true
		})
		if had == nil && next.All.Stamp > 0 || had != nil && next.All.Stamp > had.All.Stamp {
			t.overflow.Store(nil) // its keys are not known one by one
		}
		t.each(func(st *stripe[S], i uint32, e entry[S]) {
			if r := next.Of(e.id); r.Replaces(t.resetOf(st, e.id, at)) {
				forgiven += t.resetKey(st, b, i, now, r)
			}
		})
	}
	t.resets.Store(t.resets.Load().Next(next, now))
	return forgiven
}

// wasReset reports whether what a request took was reset since.
func (t *Table[S]) wasReset(st *stripe[S], id keys.ID, taken Taken) bool {
	when := taken.At - taken.clock.ahead
	one, ok := st.forgiven[id]
	return ok && when <= one.when || t.resets.Load().Covers(id, when)
}

// resetKey forgets what one key had spent.
func (t *Table[S]) resetKey(st *stripe[S], b *SyncConfig, i uint32, now int64, r reset.Reset) int64 {
	t.reservations.Drop(st.slot(i).key)
	at := st.clock.In(now)
	if !b.IsSynced() { // no other node has to tell its epochs from those before
		return t.machine.Reset(&st.slot(i).state, b.Limit, at, max(b.Epochs.At(r.At), b.Epochs.At(at)))
	}
	e := t.withSyncState(st, i)
	forgiven := t.machine.Reset(&e.state, b.Limit, at, b.Epochs.At(r.At))
	*e.syncState = syncState{flags: e.flags &^ (reread | rereading | failed)}
	st.markDirty(i, e)
	return forgiven
}

// resetOf is the reset that a key counts under at an instant of the table's clock.
func (t *Table[S]) resetOf(st *stripe[S], id keys.ID, at int64) (r reset.Reset) {
	if a := t.resets.Load(); a != nil {
		r = a.Of(id)
	}
	if one, ok := st.forgiven[id]; ok && one.Until > at && one.Replaces(r) {
		r = one.Reset
	}
	return r
}

// DropReset is called before Resume, with the resets that saved counts were counted under, nil
// where they are not those of this table. It drops the counts that a later reset forgives, and the
// table remembers the rest as applied.
func (t *Table[S]) DropReset(now int64, counts SavedCounts, under *reset.Set) {
	if under == nil {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	had := t.recorded()
	maps.DeleteFunc(counts, func(id [16]byte, _ []algorithms.Report) bool { return had.Of(id).Stamp > under.Of(id).Stamp })
	t.resets.Store(t.resets.Load().Next(had.With(under, t.in(now)), now))
}

// ForgetResets prepares for another store, which knows of others.
func (t *Table[S]) ForgetResets() {
	t.resets.Store(nil)
	t.eachKeyReset(func(of *map[keys.ID]keyReset) { *of = nil })
}

// Resets are those that the keys count under, nil for none.
func (t *Table[S]) Resets() *reset.Set {
	single := &reset.Set{Keys: make(map[[16]byte]reset.Reset)}
	t.eachKeyReset(func(of *map[keys.ID]keyReset) {
		for id, one := range *of {
			single.Keys[id] = one.Reset
		}
	})
	return t.recorded().With(single, 0)
}

// recorded are those that the record has told of, nil for none.
func (t *Table[S]) recorded() *reset.Set {
	if a := t.resets.Load(); a != nil {
		return a.Set
	}
	return nil
}
