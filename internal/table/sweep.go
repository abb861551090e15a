package table

import "slices"

// Sweep drops the idle keys, a few at a time so that no request waits long for a shard.
func (t *Table[S]) Sweep(now int64) {
	b := t.config.Load()
	if b == nil {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	at := t.clock().In(now)
	t.saved.Prune(b.Limit, at)
	t.each(func(sh *shard[S], i uint32, e entry[S]) {
		if !e.isInFlight() && t.machine.Idle(&e.state, b.Limit, at) {
			t.drop(sh, i)
		}
	})
	t.unsettled.Prune(at/int64(b.Epoch) - int64(b.Limit.History) - 1)
	t.compact()
	t.release(now)
}

// each calls f for every key, under the lock of its shard, which is let go after every few. It goes
// from shard to shard each time: where one lock is taken again as soon as it is let go, a request
// that waits for it is woken too late, over and over. The caller holds t.walking.
func (t *Table[S]) each(f func(*shard[S], uint32, entry[S])) { t.eachFew(f, func() {}) }

// eachFew is each that calls after without a lock, whenever one has been let go.
func (t *Table[S]) eachFew(f func(*shard[S], uint32, entry[S]), after func()) {
	for first, more := uint32(0), true; more; first += walk {
		more = false
		for s := range t.shards {
			sh := &t.shards[s]
			sh.mu.Lock()
			for i := first; i < min(first+walk, sh.size); i++ {
				if e := sh.at(i); e.used() {
					f(sh, i, e)
				}
			}
			more = more || first+walk < sh.size
			sh.mu.Unlock()
			after()
		}
	}
}

// compact gives memory back after a flood: in shards that are nearly empty it moves the keys to the
// front and lets the slots behind them go. Like each it does little under a lock and goes from
// shard to shard. The caller holds t.walking.
func (t *Table[S]) compact() {
	var moves [shardCount]move
	for s := range t.shards {
		sh := &t.shards[s]
		sh.mu.Lock()
		moves[s].ends = !sh.sparse()
		sh.mu.Unlock()
	}
	for more := true; more; {
		more = false
		for s := range t.shards {
			if moves[s].ends {
				continue
			}
			sh := &t.shards[s]
			sh.mu.Lock()
			t.move(sh, &moves[s])
			sh.mu.Unlock()
			more = more || !moves[s].ends
		}
	}
}

// sparse reports whether a shard has far more slots than keys.
func (sh *shard[S]) sparse() bool {
	size := int(sh.size)
	return size > 0 && (size > 2*chunkSize || sh.index.Len() == 0) && sh.index.Len()*8 <= size
}

// move is how far a shard has come: of the slots before next, those without a key are all in its
// list of free ones.
type move struct {
	next uint32
	ends bool
}

// move looks at a few slots from both ends, and moves keys from the last to the first that are
// free. Requests come in between and may take slots or free them.
func (t *Table[S]) move(sh *shard[S], m *move) {
	sh.forgetFree(m.next)
	for range walk {
		if m.next >= sh.size {
			sh.index.Fit()
			sh.fitLists()
			m.ends = true
			break
		}
		if sh.slot(m.next).key != (Key{}) {
			m.next++
			continue
		}
		from := sh.size - 1
		if sh.slot(from).key != (Key{}) {
			t.relocate(sh, from, m.next)
			m.next++
		}
		if e := sh.at(from); e.syncState != nil {
			*e.syncState = syncState{} // lists may still name the slot; they are not believed
		}
		sh.size--
	}
	chunks := (int(sh.size) + chunkSize - 1) / chunkSize
	clear(sh.chunks[chunks:])
	clear(sh.synced[chunks:])
	sh.chunks, sh.synced = sh.chunks[:chunks], sh.synced[:chunks]
}

// forgetFree leaves only the slots before next in the list of free ones. Those behind are come
// across.
func (sh *shard[S]) forgetFree(next uint32) {
	if sh.free = slices.DeleteFunc(sh.free, func(i uint32) bool { return i >= next }); next == 0 {
		sh.free = nil
	}
}

// relocate gives a key another slot, which is free, with all that is known of its syncs. What
// is outgoing stays so.
func (t *Table[S]) relocate(sh *shard[S], from, to uint32) {
	old := sh.at(from)
	sh.index.Rename(tagOf(old.key), from, to)
	sh.marks.Move(from, to)
	*sh.slot(to) = *old.slot
	*old.slot = slot[S]{}
	if old.syncState == nil {
		if e := sh.at(to); e.syncState != nil { // of a chunk that was synced before
			e.flags = e.flags&^stepParity | parity(t.clock())
		}
		return
	}
	x := t.shared(sh, to).syncState
	*x = *old.syncState
	sh.relist(to, x)
}
