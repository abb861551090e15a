package ban

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// What a register tells the store, and hears from it.

// A State is what is known of the ban of a key: when it began, by the store's clock in
// microseconds, and the stamp of the reset that the key is under. Without a Length there is none,
// and what began under an earlier reset is over. Memory is for how long it is remembered after its
// end.
type State struct {
	Begun  int64
	Length time.Duration
	Reset  int64
	Memory time.Duration
}

// End is the first instant of the store's clock at which it does not hold any more.
func (s State) End() int64 { return s.Begun + s.Length.Microseconds() }

// IsRemembered reports whether it holds or is remembered at now by the store's clock.
func (s State) IsRemembered(now int64) bool { return s.End()+s.Memory.Microseconds() > now }

// maxLength is longer than any ban of a configuration.
const maxLength = 100 * 365 * 24 * time.Hour

// String is what the store has: numbers of microseconds, or nothing.
func (s State) String() string {
	if s.Length == 0 && s.Reset == 0 {
		return ""
	}
	text := fmt.Sprint(s.Begun, " ", s.Length.Microseconds(), " ", s.Reset)
	if s.Memory > 0 {
		text += fmt.Sprint(" ", s.Memory.Microseconds())
	}
	return text
}

// Parse reads what the store has. What makes no sense is none.
func Parse(text string) (s State) {
	var length, memory int64
	numbers := []any{&s.Begun, &length, &s.Reset, &memory}[:3+min(1, strings.Count(text, " ")/3)]
	n, err := fmt.Sscanln(text, numbers...)
	most := maxLength.Microseconds()
	if n != len(numbers) || err != nil || s.Begun <= 0 || length <= 0 || length > most || s.Reset < 0 || memory < 0 || memory > most {
		return State{}
	}
	s.Length, s.Memory = time.Duration(length)*time.Microsecond, time.Duration(memory)*time.Microsecond
	return s
}

// A Message tells the store of the ban of a key, as far as there is one, and asks for it.
type Message struct {
	ID ID
	State

	begun int64
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
		e.stamp, e.unsent = 0, true
		r.put(st, id, 0, e)
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
			if e.unsent && r.isRemembered(e.Ban, now) {
				dst = append(dst, r.message(id, e, now))
			}
		}
		st.mu.Unlock()
	}
	return dst
}

// message is what is sent about a key. A ban that the store knows goes by the name that it has
// there: its clock may have stepped since.
func (r *Register) message(id ID, e entry, now int64) Message {
	under := r.resetOf(id, now)
	if !r.isRemembered(e.Ban, now) || r.isReset(id, e.Ban) { // a reset is about to drop it
		return Message{ID: id, State: State{Reset: under}}
	}
	begun := cmp.Or(e.stamp, (e.Begun+r.ahead.Load())/int64(time.Microsecond))
	return Message{id, State{begun, e.Length, under, time.Duration(r.memory.Load())}, e.Begun}
}

// Ask is a message that asks for the ban of a key at now.
func (r *Register) Ask(id ID, now int64) Message {
	st := r.stripeOf(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	return r.message(id, st.bans[id], now)
}

// Fail takes messages back that got no answer.
func (r *Register) Fail(messages []Message) {
	for _, m := range messages {
		st := r.stripeOf(m.ID)
		st.mu.Lock()
		if e := st.bans[m.ID]; m.Length > 0 && e.unsent {
			r.put(st, m.ID, 0, e)
		}
		st.mu.Unlock()
	}
}

// Ack merges the answer to a message at now, when the store's clock said server, in microseconds. A
// ban that the store has and this node has not holds here from now on. One that ends before the
// node's own means that the store has lost that, so it is sent again; and so it is where the store
// takes it for over, as its clock has stepped.
func (r *Register) Ack(now, server int64, m Message, a State) {
	a.Memory = m.Memory // the store's may be of another configuration
	passed := max(0, server-a.Begun) * int64(time.Microsecond)
	theirs := entry{Ban: Ban{now - passed, a.Length}, stamp: a.Begun}
	under := r.resetOf(m.ID, now)
	st := r.stripeOf(m.ID)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch e := st.bans[m.ID]; {
	case a.Length == 0:
		if m.Length > 0 && e.Begun == m.begun && r.isRemembered(e.Ban, now) && !r.isReset(m.ID, e.Ban) {
			e.stamp, e.unsent = 0, true
			r.put(st, m.ID, now, e)
		}
	case !r.isRemembered(theirs.Ban, now), a.Reset < under, a.Reset == under && r.isReset(m.ID, theirs.Ban):
	case e.Length > 0 && e.stamp == a.Begun && e.Length < a.Length:
		// Another node began it in the same microsecond.
		e.Length = a.Length
		st.bans[m.ID] = e
	case e.Length > 0 && e.stamp == a.Begun && e.Length == a.Length:
		// It is known. What is not certain of the store's time would make it longer each time.
	case a == m.State && e.Begun == m.begun:
		e.stamp, e.unsent = a.Begun, false // the store has it from here
		st.bans[m.ID] = e
	case a.Reset > under, !r.isRemembered(e.Ban, now), Later(e.Ban, theirs.Ban) == theirs.Ban:
		r.put(st, m.ID, now, theirs)
	case !e.unsent:
		e.unsent = true
		r.put(st, m.ID, now, e)
	}
}
