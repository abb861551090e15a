package gauge

import (
	"slices"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Message says what this node has given out of a key. It comes back through Ack or Fail.
type Message struct {
	ID keys.ID
	// Own is the gauge. Ask is set where the message only asks for the others: this node has no
	// slot, and Redis knows of none.
	Own int64
	Ask bool
	// Wanted is how many slots more are asked for, of a Limit, where Redis decides.
	Wanted, Limit int64

	entry   *entry
	at      int64
	waiters []*Waiter
	rereads bool // what the entry was to read again when the message was made
}

// An Answer is what Redis says to a Message.
type Answer struct {
	// Others is what the other nodes have, and Granted how many of the wanted slots this one got.
	Others, Granted int64
}

// MakeOutgoing begins a sync cycle at now: it makes the keys outgoing that have changed, and those
// that are to be repeated. It reports whether there are any.
func (t *Table) MakeOutgoing(now int64) (some bool) {
	for st := range t.locked {
		for e := st.lists[dirty].first; e != nil; e = st.lists[dirty].first {
			st.put(e, due)
		}
		for e := st.lists[held].first; e != nil && now-e.asked >= int64(Refresh); e = st.lists[held].first {
			st.put(e, due)
		}
		some = some || st.lists[due].first != nil || st.lists[urgent].first != nil
	}
	return some
}

// Urgent reports whether some keys should not wait for the next cycle.
func (t *Table) Urgent() bool { return t.urgent.Load() }

// Drain appends messages of urgent keys, and where all is set of those that are due, up to most.
func (t *Table) Drain(now int64, all bool, most int, dst []Message) []Message {
	t.urgent.Store(false)
	for st := range t.locked {
		for _, in := range [...]where{urgent, due} {
			for e := st.lists[in].first; e != nil && (in == urgent || all); e = st.lists[in].first {
				if len(dst) == most {
					t.urgent.Store(true) // perhaps there are more
					return dst
				}
				dst = append(dst, st.message(e, now))
			}
		}
	}
	return dst
}

// message takes a key out of its list and says what is to be sent of it.
func (st *stripe) message(e *entry, now int64) Message {
	m := Message{ID: e.id, Own: e.own, entry: e, at: now, rereads: e.reread}
	st.put(e, inFlight)
	e.after, e.reread = nowhere, false
	if len(e.waiters) > 0 {
		m.Limit = e.waiters[0].limit
		for len(e.waiters) > 0 && e.waiters[0].limit == m.Limit {
			m.waiters, e.waiters = append(m.waiters, e.waiters[0]), e.waiters[1:]
		}
		m.Wanted = int64(len(m.waiters))
	}
	m.Ask = m.Own == 0 && m.Wanted == 0 && e.sent == 0 && !e.unsure
	return m
}

// Ack takes an answer in. Where requests wait for Redis to decide on the key, it returns the next
// message.
func (t *Table) Ack(m *Message, a Answer) (next Message, more bool) {
	e := m.entry
	st := t.stripe(e.key)
	st.mu.Lock()
	defer st.mu.Unlock()
	e.sent, e.unsure = m.Own+a.Granted, false
	e.others, e.asked = a.Others, m.at
	t.grant(st, m, a)
	to := e.rest()
	if m.rereads {
		to = dirty
	}
	return t.arrive(st, e, to)
}

// Fail ends a message without an answer: nobody knows whether Redis has it. Requests that wait get
// the error.
func (t *Table) Fail(m *Message, err error) {
	e := m.entry
	st := t.stripe(e.key)
	st.mu.Lock()
	defer st.mu.Unlock()
	e.unsure, e.reread = e.unsure || !m.Ask, e.reread || m.rereads
	for _, w := range append(m.waiters, e.waiters...) {
		w.end(err)
	}
	e.waiters = nil
	t.arrive(st, e, dirty)
}

// arrive notes that the message of a key is no longer in flight. It returns the next message where
// requests wait.
func (t *Table) arrive(st *stripe, e *entry, to where) (next Message, more bool) {
	if e.waiters = slices.DeleteFunc(e.waiters, func(w *Waiter) bool { return w.gone }); len(e.waiters) > 0 {
		return st.message(e, e.waiters[0].now), true
	}
	if c := t.config.Load(); !c.Shared {
		to = e.rest()
	} else if to = max(to, e.after); to == urgent && !t.urgent.Swap(true) {
		c.Waker.Wake()
	}
	st.put(e, to)
	return next, false
}

// restart prepares for another Redis, or for none.
func (t *Table) restart(shared bool) {
	for st := range t.locked {
		for _, e := range st.entries {
			e.sent, e.unsure, e.others, e.asked = 0, false, 0, 0
			switch {
			case shared && (e.own > 0 || e.in == inFlight):
				t.mark(st, e, false)
			case e.in != inFlight:
				st.put(e, e.rest())
			}
		}
	}
}

// Restart prepares for another Redis, which knows nothing of this node.
func (t *Table) Restart() { t.restart(true) }

// Unsent is how many keys Redis has another gauge of than this node, or may have: what is on its
// way is not there yet.
func (t *Table) Unsent() (keys int) {
	for st := range t.locked {
		for _, in := range [...]where{dirty, due, urgent, inFlight} {
			for e := st.lists[in].first; e != nil; e = e.next {
				if e.own != e.sent || e.unsure || in == inFlight && e.after != nowhere {
					keys++
				}
			}
		}
	}
	return keys
}

// Totals are sums over all keys.
type Totals struct {
	// Keys is how many keys have a gauge of their own, InUse how many slots this node has given
	// out, and Others how many the other nodes had when they were last heard of.
	Keys          int
	InUse, Others int64
}

// Totals returns the sums at now.
func (t *Table) Totals(now int64) (sum Totals) {
	t.Each(now, func(g Gauge) {
		sum.Keys++
		sum.Others += g.Others
	})
	sum.InUse = t.InUse()
	return sum
}

// InUse is how many slots this node has given out.
func (t *Table) InUse() (sum int64) {
	for st := range t.locked {
		sum += st.inUse
	}
	return sum
}

// Overflowed is how many decisions were made for keys without a gauge of their own.
func (t *Table) Overflowed() int64 { return t.overflowed.Load() }

// Find returns the key of an ID; ok is false where nothing is kept of it.
func (t *Table) Find(id keys.ID) (key keys.Key, ok bool) {
	for st := range t.locked {
		for _, e := range st.entries {
			if e.id == id {
				return e.key, true
			}
		}
	}
	return key, false
}

// A Gauge is that of one key.
type Gauge struct {
	Key         keys.Key
	ID          keys.ID
	Own, Others int64
}

// Each calls f with the gauge of each key. f must be quick: requests of a few keys wait for it.
func (t *Table) Each(now int64, f func(Gauge)) {
	for st := range t.locked {
		for _, e := range st.entries {
			s := e.state(&Ask{Now: now})
			f(Gauge{e.key, e.id, s.Own, s.Others})
		}
	}
}
