package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Fork returns a table of its own that decides for one key as this one would, and changes nothing
// here: not even the clock of the key's state, and a key without a slot gets none. Nothing is sent
// of what it counts. l is the limit that the key would enter under, and raw the bytes of which key
// is KeyOf; it is not kept.
func (t *Table[S]) Fork(l algorithms.Limit, key keys.Key, raw []byte, now int64) *Table[S] {
	f := t.fork()
	st := t.stripe(key)
	st.mu.Lock()
	f.stripe(key).clock = st.clock
	i, s := st.find(key)
	if s != nil {
		t.copySlot(f, st, i, key, now)
	} else if t.keys.Load() >= t.maxKeys.Load() {
		if _, idle := t.idle(st, l, now); !idle {
			f.keys.Store(f.maxKeys.Load()) // it is full for the copy as well
		}
	}
	if shared := t.shared.Load(); shared != nil {
		f.shared.Store(shared.Fork(l, sharedOf(key), noBytes, now))
	}
	t.unsettled.CopyTo(&f.unsettled, key, key)
	st.mu.Unlock()
	if s == nil && !t.saved.IsEmpty() {
		id := keys.IDOf(raw)
		t.saved.CopyTo(&f.saved, id, id)
	}
	return f
}

// ForkID is Fork for a key that only its ID is known of. In the copy it goes by another key, of
// these bytes. It looks at every slot, a few under one lock; ok is false where none has that ID,
// and nothing is saved of it either.
func (t *Table[S]) ForkID(id keys.ID, raw []byte, now int64) (f *Table[S], ok bool) {
	as := keys.KeyOf(raw)
	t.walking.Lock()
	defer t.walking.Unlock()
	t.each(func(st *stripe[S], i uint32, e entry[S]) {
		if !ok && e.id == id {
			f, ok = t.fork(), true
			t.unsettled.CopyTo(&f.unsettled, e.key, as)
			t.copySlot(f, st, i, as, now)
		}
	})
	// Of a shared one Redis would be asked by the other key.
	if b := t.config.Load(); !ok && b != nil && !b.IsShared() {
		f = t.fork()
		ok = t.saved.CopyTo(&f.saved, id, keys.IDOf(raw))
	}
	return f, ok
}

// fork returns an empty table with the clock and the settings of this one, which wakes nobody.
func (t *Table[S]) fork() *Table[S] {
	f := &Table[S]{kind: t.kind, machine: t.machine, bucket: t.bucket}
	f.maxKeys.Store(t.maxKeys.Load())
	f.lost.Store(t.lost.Load())
	f.stepped.Store(t.stepped.Load())
	f.clocked.Store(t.clocked.Load())
	f.offset.Store(t.offset.Load())
	f.resets.Store(t.resets.Load())
	for s := range t.stripes {
		f.stripes[s].clock = Clock{ahead: t.offset.Load()}
	}
	if b := t.config.Load(); b != nil {
		c := *b
		c.Early, c.Waker = false, nil
		f.config.Store(&c)
	}
	return f
}

// copySlot copies a slot, and what is known of its syncs, into an empty table, where its key is as.
// The lock of its stripe is held.
func (t *Table[S]) copySlot(f *Table[S], st *stripe[S], i uint32, as keys.Key, now int64) {
	from, to := st.at(i), f.stripe(as)
	to.clock = st.clock
	j := to.allocate()
	f.keys.Add(1)
	*to.slot(j) = slot[S]{key: as, id: from.id, state: t.machine.Clone(&from.state)}
	to.index.Add(tagOf(as), j)
	if t.bucket != nil { // what is said from now on has a later name, even if it is read before
		t.bucket.Begin(&to.slot(j).state, st.clock.In(now)-int64(time.Second))
	}
	if from.syncState != nil {
		*f.withSyncState(to, j).syncState = *from.syncState
	}
}

// Reads returns what a fork of cells says to hear of its keys: nothing of its own. Its answers come
// back through Hear; a fork of the same key takes them as well, once it was asked.
func (t *Table[S]) Reads(now int64) (all []Said) {
	b := t.config.Load()
	if !b.IsShared() {
		return nil
	}
	t.eachSynced(func(st *stripe[S], i uint32, _ entry[S]) {
		e, at := t.current(st, i, now)
		e.flags = 0 // nothing is under way for the fork
		all = t.say(b, e, at, 0, b.Rate, all)
	})
	return all
}

// Remote returns what other nodes counted of a key that a decision can still use. It is for forks:
// it brings the key to now.
func (t *Table[S]) Remote(l algorithms.Limit, key keys.Key, now int64) (remote int64) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return 0
	}
	e, at := t.current(st, i, now)
	_, remote = t.machine.Spent(&e.state, l, at)
	return remote
}
