package gauge

// A Waiter is a request that waits for Redis to decide. Requests of a key that come while a message
// is on its way share the next one.
type Waiter struct {
	// Done is closed when it is decided: then Slot, State and Err say how.
	Done  chan struct{}
	Slot  Slot
	State State
	Err   error

	limit, now int64
	gone       bool
}

// Join asks Redis for a slot. m is to be sent where it wants some, for this request and those that
// join meanwhile; else one is on its way. w is nil where nothing is to be asked and the
// request is decided already: this node alone has given out all slots, or the key has no gauge of
// its own.
func (t *Table) Join(a *Ask) (w *Waiter, m Message, slot Slot, s State) {
	st := t.stripe(a.Key)
	st.mu.Lock()
	defer st.mu.Unlock()
	e := t.enter(st, a)
	switch {
	case e == nil:
		t.overflowed.Add(1)
		slot, s = t.takeCell(st, a)
		return nil, m, slot, s
	case e.own >= a.Limit: // what is free from now on may be another node's by then
		return nil, m, slot, e.state(a)
	}
	w = &Waiter{Done: make(chan struct{}), limit: a.Limit, now: a.Now}
	e.waiters = append(e.waiters, w)
	if e.in != inFlight {
		m = st.message(e, a.Now)
	}
	return w, m, slot, s
}

// Leave ends the waiting of a request whose client has gone away. What it gets is free again.
func (t *Table) Leave(w *Waiter, a *Ask) {
	st := t.stripe(a.Key)
	st.mu.Lock()
	select {
	case <-w.Done:
	default:
		w.gone = true
	}
	st.mu.Unlock()
	if !w.gone {
		w.Slot.Free()
	}
}

// grant hands out the slots of an answer. Those of requests that have left go back, and those that
// this node has given out by itself meanwhile, as the answer was late.
func (t *Table) grant(st *stripe, m *Message, a Answer) {
	e := m.entry
	left := min(a.Granted, max(0, m.Limit-a.Others-e.own))
	back := a.Granted - left
	for _, w := range m.waiters {
		if w.gone {
			continue
		}
		if left > 0 {
			left--
			e.own++
			st.inUse++
			w.Slot = Slot{t, e, e.key}
		}
		w.State = State{Allowed: w.Slot.table != nil, Own: e.own, Others: a.Others, Bound: m.Limit}
		close(w.Done)
	}
	if left+back > 0 {
		e.after = urgent
	}
}

// end ends the waiting of a request that Redis does not decide on.
func (w *Waiter) end(err error) {
	if !w.gone {
		w.Err = err
		close(w.Done)
	}
}
