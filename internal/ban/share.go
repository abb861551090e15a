package ban

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// What a register tells the store, and hears from it.

// A Message asks the store for the ban of a key, and tells it of one where Length is not 0.
type Message struct {
	ID     ID
	Rest   time.Duration
	Length time.Duration
	// Pardoned is set where an operator has pardoned the key: all that began so long ago or longer
	// is over, and Age is that time.
	Pardoned bool
	Age      time.Duration

	begun int64
}

// An Answer is what the store has of a key after a message. Without a Length that is nothing.
type Answer struct {
	Rest   time.Duration
	Length time.Duration
	// Stamp is when the ban began by the store's clock, in microseconds.
	Stamp int64
}

// Share has bans be sent to a store from now on, all that hold at first; wake is called, without a
// lock held, when there is another one. nil ends that.
func (r *Register) Share(wake cycle.Waker) {
	if wake == nil {
		r.wake.Store(nil)
		return
	}
	r.wake.Store(&wake)
	r.Resend()
}

func (r *Register) wakeUp() {
	if wake := r.wake.Load(); wake != nil && r.HasUnsent() {
		wake.Wake()
	}
}

// SetClock notes how far the store's clock is ahead of this node's.
func (r *Register) SetClock(ahead time.Duration) { r.ahead.Store(int64(ahead)) }

// HasUnsent reports whether there are bans that the store is to be told of.
func (r *Register) HasUnsent() bool { return r.listed.Load() > 0 }

// Resend has all bans be sent again: the store has forgotten, or it is another one.
func (r *Register) Resend() {
	if r.wake.Load() == nil {
		return
	}
	r.each(func(st *stripe, id ID, e entry) {
		if e.stamp, e.unsent = 0, true; !e.listed {
			e.listed = true
			st.unsent = append(st.unsent, id)
			r.listed.Add(1)
		}
		st.bans[id] = e
	})
	r.wakeUp()
}

// Drain takes out what there is to send at now, up to most messages, and appends it to dst. Each
// message comes back through Ack or Fail.
func (r *Register) Drain(now int64, most int, dst []Message) []Message {
	if !r.HasUnsent() {
		return dst
	}
	for s := range r.stripes {
		st := &r.stripes[s]
		st.mu.Lock()
		for n := len(st.unsent); n > 0 && len(dst) < most; n-- {
			id := st.unsent[n-1]
			st.unsent = st.unsent[:n-1]
			r.listed.Add(-1)
			e := st.bans[id]
			if !e.listed {
				continue // it was dropped
			}
			e.listed = false
			st.bans[id] = e
			if rest := e.Rest(now); e.unsent && rest > 0 {
				m := r.Ask(id, now)
				m.Rest, m.Length, m.begun = min(ceil(rest), e.Length), e.Length, e.Begun
				dst = append(dst, m)
			}
		}
		st.mu.Unlock()
	}
	return dst
}

// ceil rounds up to the microseconds of the store's clock.
func ceil(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// Ask is a message that asks for the ban of a key at now.
func (r *Register) Ask(id ID, now int64) (m Message) {
	m.ID = id
	if at, ok := r.pardoned(id); ok {
		m.Pardoned, m.Age = true, max(0, time.Duration(now-at))
	}
	return m
}

// Fail takes messages back that got no answer.
func (r *Register) Fail(messages []Message) {
	for _, m := range messages {
		st := r.stripeOf(m.ID)
		st.mu.Lock()
		if e := st.bans[m.ID]; m.Length > 0 && e.unsent && !e.listed {
			e.listed = true
			st.unsent = append(st.unsent, m.ID)
			r.listed.Add(1)
			st.bans[m.ID] = e
		}
		st.mu.Unlock()
	}
}

// Ack merges the answer to a message, at now. A ban that the store has and this node has not
// holds here from now on, with what the store says is left of it. One that began before the node's
// own means that the store has lost that, so it is sent again.
func (r *Register) Ack(now int64, m Message, a Answer) {
	if a.Length <= 0 || a.Rest <= 0 {
		return
	}
	st := r.stripeOf(m.ID)
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.bans[m.ID]
	theirs := Ban{now + int64(a.Rest-a.Length), a.Length}
	switch {
	case r.isPardoned(m.ID, theirs):
	case e.Length > 0 && e.stamp == a.Stamp:
		// It is known. What a message takes on its way would make it longer each time.
	case m.Length > 0 && a.Rest == m.Rest && a.Length == m.Length && e.Begun == m.begun:
		e.stamp, e.unsent = a.Stamp, false // the store has it from here
		st.bans[m.ID] = e
	case Later(e.Ban, theirs) == theirs || e.Rest(now) == 0:
		r.put(st, m.ID, now, entry{Ban: theirs, stamp: a.Stamp})
	case !e.unsent:
		e.unsent = true
		r.put(st, m.ID, now, e)
	}
}
