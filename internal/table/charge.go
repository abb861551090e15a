package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// chargeable returns the machine of a table whose debts are charged, nil of other tables.
func (t *Table[S]) chargeable(b *SyncConfig) algorithms.Chargeable[S] {
	if b == nil || !b.Charges || b.Rate == 0 {
		return nil
	}
	c, _ := t.machine.(algorithms.Chargeable[S])
	return c
}

// DrainCharges takes out up to most of the outgoing charges.
func (t *Table[S]) DrainCharges(now int64, most int, dst []Charge) []Charge {
	b := t.config.Load()
	m := t.chargeable(b)
	if m == nil {
		return dst
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	t.drain(b, now, most-len(dst), false, func(e entry[S], now int64, o Offset) int {
		c, ok := t.charge(e, m, b.Limit, now, o)
		if !ok {
			return 0
		}
		dst = append(dst, c)
		return 1
	})
	return dst
}

// charge takes out what is to be charged for one key. The key is no longer dirty.
func (t *Table[S]) charge(e entry[S], m algorithms.Chargeable[S], l algorithms.Limit, now int64, o Offset) (c Charge, ok bool) {
	e.flags &^= dirty | confirm
	c = Charge{Key: e.key, ID: e.id, Reset: t.resetOf(e.id), Offset: o}
	c.Debt = m.Debt(&e.state, l, now)
	if c.IsZero() {
		return Charge{}, false
	}
	m.Prepare(&e.state, l)
	e.flags |= inFlight
	return c, true
}

// HasDebt reports whether a key may have something to charge, or on its way. It returns the key's
// ID.
func (t *Table[S]) HasDebt(key keys.Key) (id keys.ID, ok bool) {
	if t.chargeable(t.config.Load()) == nil {
		return keys.ID{}, false
	}
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return keys.ID{}, false
	}
	e := st.at(i)
	return e.id, e.syncState != nil && e.flags&(dirty|inFlight) != 0
}

// ChargeOf takes out the charge of one key, before the next cycle. ok is false where there is none,
// or where it is on its way.
func (t *Table[S]) ChargeOf(key keys.Key, now int64) (c Charge, ok bool) {
	b := t.config.Load()
	m := t.chargeable(b)
	if m == nil {
		return Charge{}, false
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return Charge{}, false
	}
	e, at, o := t.current(st, b.Limit, i, now)
	if e.flags&inFlight != 0 || e.flags&dirty == 0 {
		return Charge{}, false
	}
	return t.charge(e, m, b.Limit, at, o)
}

// AckCharge notes that the store has counted a charge, and what it holds of the key now.
func (t *Table[S]) AckCharge(now int64, c Charge, reports []algorithms.Report) {
	t.arrived(now, c, func(st *stripe[S], e entry[S], i uint32, now int64) {
		b := t.config.Load()
		m := t.chargeable(b)
		if m == nil {
			return // its counts go to the store in another way now
		}
		if c.Reset.Stamp != t.resetOf(c.ID).Stamp {
			st.markDirty(i, e) // it was of what is forgiven by now
			return
		}
		m.Import(&e.state, b.Limit, now, reports, true)
		e.At = max(e.At, HoldAt(reports))
	})
}

// FailCharge gives a charge back that the store has not counted. Its key stays dirty.
func (t *Table[S]) FailCharge(now int64, c Charge) {
	t.arrived(now, c, func(st *stripe[S], e entry[S], i uint32, _ int64) {
		st.markDirty(i, e)
	})
}

// arrived calls f for the key of a charge that is no longer on its way. now is then in the table's
// time.
func (t *Table[S]) arrived(now int64, c Charge, f func(st *stripe[S], e entry[S], i uint32, now int64)) {
	b := t.config.Load()
	st, i, ok := t.lock(c.Key)
	defer st.mu.Unlock()
	if b == nil || !ok {
		return
	}
	e, at, _ := t.current(st, b.Limit, i, now)
	if e.flags&inFlight == 0 {
		return
	}
	e.flags &^= inFlight | outdated
	f(st, e, i, at)
}

// importCharged is Import for machines that are charged.
func importCharged[S any](e entry[S], m algorithms.Chargeable[S], l algorithms.Limit, now int64, reports []algorithms.Report) {
	at := HoldAt(reports)
	if e.flags&inFlight != 0 || IsOvertaken(at, e.At) {
		return
	}
	m.Import(&e.state, l, now, reports, false)
	e.At = at
}
