package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Fork returns a table of its own that decides for one key, of this ID, as this one would, and
// changes nothing here: not even the clock of the key's state, and a key without a slot gets none.
// Nothing is sent of what it counts. l is the limit that the key would enter under.
func (t *Table[S]) Fork(l algorithms.Limit, key keys.Key, id keys.ID, now int64) *Table[S] {
	f := t.fork()
	st, to := t.stripe(key), f.stripe(key)
	st.mu.Lock()
	defer st.mu.Unlock()
	to.clock = st.clock
	at := to.clock.In(now)
	i, had := st.find(key)
	reports := []algorithms.Report(nil)
	if had == nil {
		reports = t.saved.Look(id, l, at)
		if _, idle := t.idle(st, l, now); !idle && t.keys.Load() >= t.maxKeys.Load() {
			if shared := t.overflow.Load(); shared != nil {
				f.overflow.Store(shared.Fork(l, overflowOf(key), keys.ID{}, now))
			}
			f.chargeOverflow(l, key, now, t.spentOf(reports, l, at))
			return f
		}
	}
	j := to.allocate()
	to.index.Add(tagOf(key), j)
	s := to.slot(j)
	if *s = (slot[S]{key: key, id: id}); had == nil {
		t.restore(&s.state, l, at, reports)
		return f
	}
	s.state = t.machine.Clone(&had.state)
	if one, ok := st.forgiven[id]; ok {
		to.forgiven = map[keys.ID]keyReset{id: one}
	}
	t.reservations.CopyTo(&f.reservations, key)
	if t.bucket != nil { // what the node itself says from now on has a later incarnation
		t.bucket.Begin(&s.state, at-int64(time.Second))
	}
	if e := st.at(i); e.syncState != nil {
		x := f.withSyncState(to, j).syncState
		*x = *e.syncState
		x.flags = 0 // nothing is under way here
	}
	return f
}

// fork returns an empty table with the clock and the settings of this one, which wakes nobody and
// has no room for a key that comes later.
func (t *Table[S]) fork() *Table[S] {
	f := &Table[S]{kind: t.kind, machine: t.machine, bucket: t.bucket}
	f.missedTwice.Store(t.missedTwice.Load())
	f.stepped.Store(t.stepped.Load())
	f.offset.Store(t.offset.Load())
	f.resets.Store(t.resets.Load())
	if b := t.config.Load(); b != nil {
		c := *b
		c.Early, c.Waker = false, nil
		f.config.Store(&c)
	}
	return f
}

// Find returns the key of which only the ID is known. It looks at every slot, a few under one lock.
// ok is false where none has that ID; of what was saved the key is as good as any other.
func (t *Table[S]) Find(l algorithms.Limit, id keys.ID, now int64) (key keys.Key, ok bool) {
	t.walking.Lock()
	defer t.walking.Unlock()
	t.each(func(_ *stripe[S], _ uint32, e entry[S]) {
		if e.id == id {
			key, ok = e.key, true
		}
	})
	if !ok {
		key, ok = keys.KeyOf(id[:]), t.saved.Look(id, l, t.in(now)) != nil
	}
	return key, ok
}

// Remote returns what other nodes counted of a key that a decision can still use, and whether some
// of that is of other regions. It is for forks: it brings the key to now.
func (t *Table[S]) Remote(l algorithms.Limit, key keys.Key, now int64) (remote int64, regions bool) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return 0, false
	}
	e, at := t.current(st, i, now)
	_, remote = t.machine.Spent(&e.state, l, at)
	return remote, e.regions&inOtherRegions != 0
}
