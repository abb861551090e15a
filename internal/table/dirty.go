package table

// A shard lists its dirty keys: those that the store has to hear of, or to be asked about. A key
// goes from touched to due with the next Tick and from there into a message. A key that cannot wait
// stands in hurried as well.
//
// A list may name a slot more than once, and slots that have gone or whose flag is not set any
// more: those are passed over.

// flags of an entry. touched and hurried belong to the slot, not to the key: they say that a list
// names it.
const (
	touched uint8 = 1 << iota
	hurried
	// flying: a message about the key is under way.
	flying
	// again: it is touched only to hear once more what others sent meanwhile.
	again
	// last: the message under way is that one.
	last
	// moved: the clock has taken a step since the message under way was sent.
	moved
	// failed: the store could not do the last message. The key waits for its turn, whatever is
	// asked of it.
	failed
	// odd is the parity of the steps of the clock that the state has followed: clockstep.go.
	odd
)

// isFlying reports whether a message about the key is under way.
func (e entry[S]) isFlying() bool { return e.exchange != nil && e.flags&flying != 0 }

// touch lists a key for the interval after this one.
func (sh *shard[S]) touch(i uint32, e entry[S]) { list(&sh.touched, touched, i, e.exchange) }

// list names a slot in a list, unless one has it already.
func list(in *[]uint32, flag uint8, i uint32, x *exchange) {
	if x.flags&flag == 0 {
		x.flags |= flag
		*in = append(*in, i)
	}
}

// hurry lists a key for the next early sync. It reports whether it is the first of the table.
func (t *Table[S]) hurry(sh *shard[S], i uint32, e entry[S]) (first bool) {
	list(&sh.hurried, hurried, i, e.exchange)
	return t.urgent.Or(1<<(e.key[0]>>58)) == 0
}

// Urgent reports whether there are keys that should not wait.
func (t *Table[S]) Urgent() bool { return t.urgent.Load() != 0 }

// Tick makes what was touched until now due, so that keys touched over and over don't hold up the
// rest.
func (t *Table[S]) Tick() {
	for s := range t.shards {
		sh := &t.shards[s]
		sh.mu.Lock()
		sh.due = append(sh.due, sh.touched...)
		sh.touched = sh.touched[:0]
		sh.mu.Unlock()
	}
}

// drain takes keys off the lists and has take make messages of each, under the lock of its shard,
// until there are about most. Keys with a message under way wait for another turn. Like each it
// does little under a lock and goes from shard to shard, on from where the last one ended. now is
// the caller's clock; take gets the table's, and by how much that is ahead.
func (t *Table[S]) drain(b *Background, now int64, most int, urgent bool, take func(entry[S], int64, offset) int) {
	for more := true; more; {
		more = false
		for range t.shards {
			if most <= 0 {
				return
			}
			s := t.drained.Add(1) % shardCount
			bit := uint64(1) << s
			if urgent && t.urgent.Load()&bit == 0 {
				continue
			}
			sh := &t.shards[s]
			from, flag := &sh.due, touched
			if urgent {
				from, flag = &sh.hurried, hurried
			}
			sh.mu.Lock()
			most -= t.drainList(sh, from, flag, b, now, min(most, walk), take)
			left := len(*from) > 0
			if urgent && !left {
				t.urgent.And(^bit)
			}
			sh.mu.Unlock()
			more = more || left
		}
	}
}

// drainList is drain for a few slots of one list.
func (t *Table[S]) drainList(sh *shard[S], from *[]uint32, flag uint8, b *Background, now int64, most int, take func(entry[S], int64, offset) int) (taken int) {
	for looked := 0; looked < walk && len(*from) > 0 && taken < most; looked++ {
		end := len(*from) - 1
		i := (*from)[end]
		*from = (*from)[:end]
		if i >= sh.size {
			continue // the slot has gone
		}
		e, at, o := t.current(sh, b.limit, i, now)
		listed := e.flags&flag != 0
		e.flags &^= flag
		switch {
		case !e.used() || !listed: // the key has gone, or it has another slot
		case e.flags&flying == 0:
			taken += take(e, at, o)
		case flag == touched:
			sh.touch(i, e)
		}
	}
	return taken
}

// relist names a key in the lists by the slot that it has moved to. What was due stays due.
func (sh *shard[S]) relist(i uint32, x *exchange) {
	if x.flags&touched != 0 {
		sh.due = append(sh.due, i)
	}
	if x.flags&hurried != 0 {
		sh.hurried = append(sh.hurried, i)
	}
}

// fitLists drops the slots that have gone from the lists, and the memory that they took.
func (sh *shard[S]) fitLists() {
	for _, list := range []*[]uint32{&sh.touched, &sh.due, &sh.hurried} {
		var left []uint32
		for _, i := range *list {
			if i < sh.size {
				left = append(left, i)
			}
		}
		*list = left
	}
}
