package table

import (
	"slices"
)

// A stripe lists its dirty keys by their slots: those to send to the store, or to ask it about. A
// request puts a key in the list dirty. The next MakeOutgoing moves it to outgoing, and dequeue has
// a message made of it. A key that can't wait for that is in urgent as well, for an early sync.
//
// Nothing is taken out of the middle of a list. So one may name a slot twice, a slot that has gone,
// or one whose flag was cleared when another list was read. Who reads a list passes over these.

// flags of an entry. dirty and urgent belong to the slot, not to the key: they say that a list
// names it.
const (
	dirty uint8 = 1 << iota
	urgent
	// inFlight: a message about the key is in flight.
	inFlight
	// reread: it is dirty only to read once more what others sent meanwhile.
	reread
	// rereading: the message in flight is that one.
	rereading
	// granting: a message that asks for more is in flight.
	granting
	// failed: the store could not do the last message. The key waits for the next cycle, whatever
	// is asked of it.
	failed
	// denied: a denied request has had the key synced early, and none was admitted since.
	denied
)

// isInFlight reports whether a message about the key is under way.
func (e entry[S]) isInFlight() bool { return e.syncState != nil && e.flags&(inFlight|granting) != 0 }

// markDirty lists a key for the next MakeOutgoing.
func (st *stripe[S]) markDirty(i uint32, e entry[S]) { list(&st.dirty, dirty, i, e.syncState) }

// list names a slot in a list, unless one has it already.
func list(in *[]uint32, flag uint8, i uint32, x *syncState) {
	if x.flags&flag == 0 {
		x.flags |= flag
		*in = append(*in, i)
	}
}

// markUrgent lists a key for the next early sync. It reports whether it is the first of the table.
func (t *Table[S]) markUrgent(st *stripe[S], i uint32, e entry[S]) (first bool) {
	list(&st.urgent, urgent, i, e.syncState)
	return t.urgent.Or(1<<(e.key.A>>58)) == 0
}

// Urgent reports whether there are keys that should not wait.
func (t *Table[S]) Urgent() bool { return t.urgent.Load() != 0 }

// MakeOutgoing makes the dirty keys outgoing, so that keys that get dirty over and over don't hold
// up the rest.
func (t *Table[S]) MakeOutgoing() {
	for s := range t.stripes {
		st := &t.stripes[s]
		st.mu.Lock()
		st.outgoing = append(st.outgoing, st.dirty...)
		st.dirty = st.dirty[:0]
		st.mu.Unlock()
	}
}

// dequeue takes keys off the lists and has take make messages of each, under the lock of its
// stripe, until there are about most. Keys with a message under way wait for another cycle. Like
// each it does little under a lock and goes from stripe to stripe, on from where the last one
// ended. now is the caller's clock; take gets the table's.
func (t *Table[S]) dequeue(b *SyncConfig, now int64, most int, onlyUrgent bool, take func(entry[S], int64) int) {
	for more := true; more; {
		more = false
		for range t.stripes {
			if most <= 0 {
				return
			}
			s := t.nextStripe.Add(1) % stripeCount
			bit := uint64(1) << s
			if onlyUrgent && t.urgent.Load()&bit == 0 {
				continue
			}
			st := &t.stripes[s]
			from, flag := &st.outgoing, dirty
			if onlyUrgent {
				from, flag = &st.urgent, urgent
			}
			st.mu.Lock()
			most -= t.dequeueFrom(st, from, flag, b, now, min(most, walkBatch), take)
			left := len(*from) > 0
			if onlyUrgent && !left {
				t.urgent.And(^bit)
			}
			st.mu.Unlock()
			more = more || left
		}
	}
}

// dequeueFrom is dequeue for a few slots of one list.
func (t *Table[S]) dequeueFrom(st *stripe[S], from *[]uint32, flag uint8, b *SyncConfig, now int64, most int, take func(entry[S], int64) int) (taken int) {
	for looked := 0; looked < walkBatch && len(*from) > 0 && taken < most; looked++ {
		end := len(*from) - 1
		i := (*from)[end]
		*from = (*from)[:end]
		if i >= st.size {
			continue // the slot has gone
		}
		e, at := t.current(st, i, now)
		listed := e.flags&flag != 0
		e.flags &^= flag
		switch {
		case !e.used() || !listed: // the key has gone, or it has another slot
		case e.flags&(inFlight|granting) == 0:
			taken += take(e, at)
		case flag == dirty:
			st.markDirty(i, e)
		}
	}
	return taken
}

// relist names a key in the lists by the slot that it has moved to. What was outgoing stays so.
func (st *stripe[S]) relist(i uint32, x *syncState) {
	if x.flags&dirty != 0 {
		st.outgoing = append(st.outgoing, i)
	}
	if x.flags&urgent != 0 {
		st.urgent = append(st.urgent, i)
	}
}

// fitLists drops the slots that have gone from the lists, and the memory that they took.
func (st *stripe[S]) fitLists() {
	gone := func(i uint32) bool { return i >= st.size }
	for _, list := range []*[]uint32{&st.dirty, &st.outgoing, &st.urgent} {
		*list = append([]uint32(nil), slices.DeleteFunc(*list, gone)...)
	}
}
