package bandwidth

import (
	"container/list"
	"time"
)

const (
	// maxTurn is how many bytes a response sends in one turn.
	maxTurn = 16 << 10
	// catchUp is how far a key may fall behind its rate and still make up for it: what wakes late
	// on a busy machine must not cost throughput. It is also what a key that sent nothing for a
	// while may send at once, beside a turn.
	catchUp = time.Second / 8
)

// A Rate is how many bytes a second the responses of one key may send together, 1 or more.
type Rate int64

// turn returns how many bytes a response sends in one turn: less than maxTurn where that would take
// longer than catchUp, so that slow responses go on evenly.
func (r Rate) turn() int { return int(min(maxTurn, max(1, int64(r)/int64(time.Second/catchUp)))) }

// time returns how many nanoseconds n bytes take, and what is left of the division.
func (r Rate) time(n int, rest int64) (t, left int64) {
	all := int64(n)*int64(time.Second) + rest
	return all / int64(r), all % int64(r)
}

// turnTime returns how long a turn takes.
func (r Rate) turnTime() int64 {
	t, _ := r.time(r.turn(), 0)
	return t
}

// A queue lets the responses of one key take turns. It knows no clock and no lock: now is an
// argument, in nanoseconds, and never runs backward by more than it matters.
//
// Two lists wait in order of arrival: members whose turn has begun and still has bytes left go
// before those that wait for a turn. So a response that writes little at a time gets as much as one
// that writes much, as long as it has something to write; and nobody is overtaken by more than what
// others had left of their turns.
type queue struct {
	// paid is the time up to which the bytes that were sent use the rate up. rest is the part of a
	// nanosecond that is missing in it, in bytes times nanoseconds a second.
	paid, rest int64
	// The lists hold members.
	begun, waiting list.List
}

// A member is a response in a queue. Its zero value is one that has not had a turn.
type member struct {
	left int           // bytes of its turn
	in   *list.List    // the one in which it waits
	at   *list.Element // its place there
	wake func()        // called when it becomes the first
}

// restart has the queue begin at now as if nothing had been sent before, except for what is not
// paid for.
func (q *queue) restart(now int64) {
	if q.paid < now {
		q.paid, q.rest = now, 0
	}
}

// first returns the member whose turn is next, nil for none.
func (q *queue) first() *member {
	at := q.begun.Front()
	if at == nil {
		at = q.waiting.Front()
	}
	if at == nil {
		return nil
	}
	return at.Value.(*member)
}

// join has a member wait.
func (q *queue) join(m *member) {
	m.in = &q.waiting
	if m.left > 0 {
		m.in = &q.begun
	}
	m.at = m.in.PushBack(m)
}

// leave ends the waiting of a member. The next one is woken if that is the first now.
func (q *queue) leave(m *member) {
	before := q.first()
	m.in.Remove(m.at)
	m.in, m.at = nil, nil
	if now := q.first(); now != nil && now != before {
		now.wake()
	}
}

// take asks for n bytes, 1 or more, for a member that waits or comes by. It returns how many it may
// send now. If that is 0, wait is after how long it should ask again; negative where others are
// before it, and it will be woken.
func (q *queue) take(m *member, n int, now int64, rate Rate) (granted int, wait time.Duration) {
	// A turn that has begun goes on while what was sent lies ahead by less than a turn: then many
	// small writes need not wait one by one.
	ahead := q.paid - now
	if m.left > 0 {
		ahead -= rate.turnTime() - 1
	}
	switch first := q.first(); {
	case m.in == nil && first != nil && (m.left == 0 || first.left > 0), m.in != nil && first != m:
		return 0, -1
	case ahead > 0:
		return 0, time.Duration(ahead)
	}
	if m.in != nil {
		q.leave(m)
	}
	if m.left == 0 {
		m.left = rate.turn()
	}
	granted = min(n, m.left)
	m.left -= granted
	q.pay(granted, now, rate)
	return granted, 0
}

// pay notes that n bytes are sent at now.
func (q *queue) pay(n int, now int64, rate Rate) {
	if from := now - int64(catchUp); q.paid < from {
		q.paid, q.rest = from, 0
	}
	t, rest := rate.time(n, q.rest)
	q.paid, q.rest = q.paid+t, rest
}

// refund takes back that n bytes were sent.
func (q *queue) refund(n int, rate Rate) {
	t, _ := rate.time(n, 0)
	q.paid -= t
}
