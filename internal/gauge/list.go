package gauge

// where says in which list of its stripe a key stands. It is in one at most.
//
//	idle      it has no slot; the one that was heard of longest ago comes first
//	held      it has slots and Redis knows; the one that was told longest ago comes first
//	dirty     it has changed since the last sync cycle began
//	due       it is to be sent in this cycle
//	urgent    it is to be sent at once
//	inFlight  a message of it is on its way, and nothing else sends it
type where uint8

const (
	nowhere where = iota
	idle
	held
	dirty
	due
	urgent
	inFlight
	lists
)

// list is a queue of entries.
type list struct{ first, last *entry }

// put moves a key to the end of a list. The stripe's lock is held, as for all methods of a stripe.
func (st *stripe) put(e *entry, to where) {
	if e.in > nowhere && e.in < lists {
		st.lists[e.in].remove(e)
	}
	if e.in = to; to > nowhere && to < lists {
		st.lists[to].append(e)
	}
}

// rest is where a key stands that has nothing to send.
func (e *entry) rest() where {
	if e.own > 0 {
		return held
	}
	return idle
}

// mark has a key sent with the next sync, or at once. It reports whether the sync is to be woken.
func (t *Table) mark(st *stripe, e *entry, now bool) (wake bool) {
	to := dirty
	if now {
		to = urgent
	}
	switch {
	case e.in == inFlight:
		e.after = max(e.after, to)
		return false
	case to == dirty && (e.in == dirty || e.in == due), e.in == urgent:
		return false
	}
	st.put(e, to)
	return now && !t.urgent.Swap(true)
}

func (l *list) append(e *entry) {
	e.prev, e.next = l.last, nil
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
}

func (l *list) remove(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	e.prev, e.next = nil, nil
}
