package table

import (
	"slices"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Sweep drops the idle keys, a few at a time so that no request waits long for a stripe.
func (t *Table[S]) Sweep(now int64) {
	b := t.config.Load()
	if b == nil {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	at := t.in(now)
	t.saved.Prune(b.Limit, at)
	t.each(func(st *stripe[S], i uint32, e entry[S]) {
		if t.isIdle(st, e, b.Limit, at) {
			t.drop(st, i)
		}
	})
	t.reservations.Prune(b.Epochs.At(at) - int64(b.Limit.History) - 1)
	t.compact()
	t.sweepOverflow(now)
}

// each calls f for every key, under the lock of its stripe, which is let go after every few. It
// goes from stripe to stripe each time: where one lock is taken again as soon as it is let go, a
// request that waits for it is woken too late, over and over. The caller holds t.walking.
func (t *Table[S]) each(f func(*stripe[S], uint32, entry[S])) { t.eachFew(f, func() {}) }

// eachFew is each that calls after without a lock, whenever one has been let go.
func (t *Table[S]) eachFew(f func(*stripe[S], uint32, entry[S]), after func()) {
	for first, more := uint32(0), true; more; first += walkBatch {
		more = false
		for s := range t.stripes {
			st := &t.stripes[s]
			st.mu.Lock()
			for i := first; i < min(first+walkBatch, st.size); i++ {
				if e := st.at(i); e.used() {
					f(st, i, e)
				}
			}
			more = more || first+walkBatch < st.size
			st.mu.Unlock()
			after()
		}
	}
}

// compact gives memory back after a flood: in stripes that are nearly empty it moves the keys to
// the front and lets the slots behind them go. Like each it does little under a lock and goes from
// stripe to stripe. The caller holds t.walking.
func (t *Table[S]) compact() {
	var moves [stripeCount]move
	for s := range t.stripes {
		st := &t.stripes[s]
		st.mu.Lock()
		moves[s].ends = !st.sparse()
		st.mu.Unlock()
	}
	for more := true; more; {
		more = false
		for s := range t.stripes {
			if moves[s].ends {
				continue
			}
			st := &t.stripes[s]
			st.mu.Lock()
			t.move(st, &moves[s])
			st.mu.Unlock()
			more = more || !moves[s].ends
		}
	}
}

// sparse reports whether a stripe has far more slots than keys.
func (st *stripe[S]) sparse() bool {
	size := int(st.size)
	return size > 0 && (size > 2*chunkSize || st.index.Len() == 0) && st.index.Len()*8 <= size
}

// move is how far a stripe has come: of the slots before next, those without a key are all in its
// list of free ones.
type move struct {
	next uint32
	ends bool
}

// move looks at a few slots from both ends, and moves keys from the last to the first that are
// free. Requests come in between and may take slots or free them.
func (t *Table[S]) move(st *stripe[S], m *move) {
	st.forgetFree(m.next)
	for range walkBatch {
		if m.next >= st.size {
			st.index.Fit()
			st.fitLists()
			m.ends = true
			break
		}
		if st.slot(m.next).key != (keys.Key{}) {
			m.next++
			continue
		}
		from := st.size - 1
		if st.slot(from).key != (keys.Key{}) {
			t.relocate(st, from, m.next)
			m.next++
		}
		if e := st.at(from); e.syncState != nil {
			*e.syncState = syncState{} // lists may still name the slot; they are not believed
		}
		st.size--
	}
	chunks := (int(st.size) + chunkSize - 1) / chunkSize
	clear(st.chunks[chunks:])
	clear(st.synced[chunks:])
	st.chunks, st.synced = st.chunks[:chunks], st.synced[:chunks]
}

// forgetFree leaves only the slots before next in the list of free ones. Those behind are come
// across.
func (st *stripe[S]) forgetFree(next uint32) {
	if st.free = slices.DeleteFunc(st.free, func(i uint32) bool { return i >= next }); next == 0 {
		st.free = nil
	}
}

// relocate gives a key another slot, which is free, with all that is known of its syncs. What
// is outgoing stays so.
func (t *Table[S]) relocate(st *stripe[S], from, to uint32) {
	old := st.at(from)
	st.index.Rename(tagOf(old.key), from, to)
	*st.slot(to) = *old.slot
	*old.slot = slot[S]{}
	if old.syncState == nil {
		return
	}
	x := t.withSyncState(st, to).syncState
	*x = *old.syncState
	st.relist(to, x)
}
