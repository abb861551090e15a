// Package ban holds which keys of a zone are banned, and until when: a register for each key, whose
// value is the ban that ends last. It has no clock and does no I/O.
//
// A node holds bans by its own clock, which never steps, so what is known holds whatever becomes of
// the store. Messages say by the store's clock when a ban began.
package ban

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// An ID names a key, the same on all nodes.
type ID = [16]byte

// A Ban is from when and for how long requests of a key are denied. The zero Ban is none.
type Ban struct {
	// Begun is by the clock of this node, in nanoseconds.
	Begun  int64
	Length time.Duration
}

// End is the first instant at which requests are not denied any more.
func (b Ban) End() int64 { return b.Begun + int64(b.Length) }

// Rest is what is left of the ban at now, never more than its length; 0 where it is over.
func (b Ban) Rest(now int64) time.Duration {
	return min(max(0, time.Duration(b.End()-now)), b.Length)
}

// Later is the one of two bans of a key that holds: the one that ends later, and of two that end
// together the one that began later. So no node lets a key go before a ban is over that it knows
// of, whatever a node begins that does not know of it.
func Later(a, b Ban) Ban {
	if b.End() > a.End() || b.End() == a.End() && b.Begun > a.Begun {
		return b
	}
	return a
}

// Next is how long a ban of a key lasts that begins at now. Where bans grow, so that they are
// remembered for a while after their end, it is twice the last one, up to that while.
func (b Ban) Next(now int64, length, memory time.Duration) time.Duration {
	if !b.IsRemembered(now, memory) {
		return length
	}
	return max(length, min(2*b.Length, memory))
}

// IsRemembered reports whether a ban holds at now, or has ended less than a while ago.
func (b Ban) IsRemembered(now int64, memory time.Duration) bool {
	return b.Length > 0 && now-b.End() < int64(memory)
}

// entry is the ban of a key, and what the store knows of it.
type entry struct {
	Ban
	// stamp is when it began by the store's clock, in microseconds, 0 where the store has not
	// confirmed it. It tells bans apart and is compared with nothing else: that clock steps.
	stamp int64
	// unsent is set while the store is to be told. listed is set while the list of its stripe names
	// it.
	unsent, listed bool
}

const (
	stripeCount = 64
	// looks is at how many bans of a full register is looked for one that is over.
	looks = 8
)

type stripe struct {
	mu   sync.Mutex
	bans map[ID]entry
	// unsent names those that are to be sent. It may name some that are not, or that are over.
	unsent []ID
	// texts are those of keys, for whoever lists bans. Nobody else needs them.
	texts map[ID]string
	_     [16]byte
}

// A Register holds the bans of a zone. The zero value has room for none. It is safe for concurrent
// use.
type Register struct {
	count   atomic.Int64 // bans, with those that are over and not swept yet
	listed  atomic.Int64 // IDs in lists
	maxKeys atomic.Int64
	memory  atomic.Int64 // for how long bans are remembered after their end, in nanoseconds
	ahead   atomic.Int64 // how far the store's clock is ahead, in nanoseconds
	wake    atomic.Pointer[cycle.Waker]
	resets  atomic.Pointer[reset.Applied] // with up to when they end bans

	stripes [stripeCount]stripe
}

// Configure sets how many bans there may be, and for how long they are remembered after their end:
// 0 where they don't grow.
func (r *Register) Configure(maxKeys int, memory time.Duration) {
	r.maxKeys.Store(int64(maxKeys))
	r.memory.Store(int64(memory))
}

func (r *Register) isRemembered(b Ban, now int64) bool {
	return b.IsRemembered(now, time.Duration(r.memory.Load()))
}

// IsEmpty reports whether no key is banned, or was lately. It is what most requests ask.
func (r *Register) IsEmpty() bool { return r.count.Load() == 0 }

// Rest is how much longer a key is banned at now, 0 where it is not.
func (r *Register) Rest(id ID, now int64) time.Duration {
	if r.IsEmpty() {
		return 0
	}
	st := r.stripeOf(id)
	st.mu.Lock()
	b := st.bans[id].Ban
	st.mu.Unlock()
	return b.Rest(now)
}

// Begin bans a key from now on, and returns for how long: for length, or longer where bans grow. It
// returns 0 where the key is banned already, which nothing prolongs, and where there is no room for
// another ban.
func (r *Register) Begin(id ID, now int64, length time.Duration) time.Duration {
	st := r.stripeOf(id)
	st.mu.Lock()
	length = r.next(st.bans[id].Ban, now, length)
	b := Ban{now, length}
	if length > 0 && (r.isReset(id, b) || !r.put(st, id, now, entry{Ban: b, unsent: true})) {
		length = 0 // a reset has come since now, or there is no room
	}
	st.mu.Unlock()
	if length > 0 {
		r.wakeUp()
	}
	return length
}

// next is how long a ban after another one lasts, 0 where that holds at now.
func (r *Register) next(had Ban, now int64, length time.Duration) time.Duration {
	if had.Rest(now) > 0 {
		return 0
	}
	return had.Next(now, length, time.Duration(r.memory.Load()))
}

// WouldBegin is what Begin would return.
func (r *Register) WouldBegin(id ID, now int64, length time.Duration) time.Duration {
	st := r.stripeOf(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	had, known := st.bans[id]
	if _, over := st.findOver(now); !known && !over && r.count.Load() >= r.maxKeys.Load() {
		return 0
	}
	return r.next(had.Ban, now, length)
}

// put stores the ban of a key, which may be new, and lists it where it is unsent. It returns false
// where there is no room. The lock of the stripe is held.
func (r *Register) put(st *stripe, id ID, now int64, e entry) bool {
	had, known := st.bans[id]
	if !known {
		if r.count.Load() >= r.maxKeys.Load() {
			over, ok := st.findOver(now)
			if !ok {
				return false
			}
			r.drop(st, over)
		}
		if st.bans == nil {
			st.bans = make(map[ID]entry)
		}
		r.count.Add(1)
	}
	if e.listed = had.listed; e.unsent && !e.listed && r.wake.Load() != nil {
		e.listed = true
		st.unsent = append(st.unsent, id)
		r.listed.Add(1)
	}
	st.bans[id] = e
	return true
}

// findOver returns a key whose ban is over, if it comes across one: a map begins anywhere. The lock
// of the stripe is held.
func (st *stripe) findOver(now int64) (id ID, ok bool) {
	looked := 0
	for id, e := range st.bans {
		if e.Rest(now) == 0 {
			return id, true
		}
		if looked++; looked == looks {
			break
		}
	}
	return ID{}, false
}

// drop forgets a ban. The lock of its stripe is held.
func (r *Register) drop(st *stripe, id ID) {
	delete(st.bans, id)
	delete(st.texts, id)
	r.count.Add(-1)
}

// Count is how many keys are banned at now.
func (r *Register) Count(now int64) (n int) {
	r.each(func(_ *stripe, _ ID, e entry) {
		if e.Rest(now) > 0 {
			n++
		}
	})
	return n
}

// Sweep drops the bans that are over and not remembered any more. What is left of a flood is freed.
func (r *Register) Sweep(now int64) {
	if r.IsEmpty() {
		return
	}
	for s := range r.stripes {
		st := &r.stripes[s]
		st.mu.Lock()
		had := len(st.bans)
		for id, e := range st.bans {
			if !r.isRemembered(e.Ban, now) {
				r.drop(st, id)
			}
		}
		listed := len(st.unsent)
		st.unsent = slices.DeleteFunc(st.unsent, func(id ID) bool { return !st.bans[id].listed })
		r.listed.Add(int64(len(st.unsent) - listed))
		if len(st.bans) < had/4 || len(st.bans) == 0 {
			st.fit()
		}
		st.mu.Unlock()
	}
}

// fit gives memory back: a map keeps what it once took.
func (st *stripe) fit() {
	if len(st.bans) == 0 {
		st.bans, st.texts, st.unsent = nil, nil, st.unsent[:0:0]
		return
	}
	st.bans = maps.Collect(maps.All(st.bans))
}

// Save returns the bans that hold at now or are remembered, by the keys.
func (r *Register) Save(now int64) map[ID]Ban {
	all := make(map[ID]Ban)
	r.each(func(_ *stripe, id ID, e entry) {
		if r.isRemembered(e.Ban, now) {
			all[id] = e.Ban
		}
	})
	return all
}

// Resume takes in what was saved, by this process or an earlier one, as far as it still holds or is
// remembered. It returns how many bans that were.
func (r *Register) Resume(now int64, saved map[ID]Ban) (left int) {
	for id, b := range saved {
		b.Begun = min(b.Begun, now) // the clock was set back since
		st := r.stripeOf(id)
		st.mu.Lock()
		if had := st.bans[id].Ban; r.isRemembered(b, now) && !r.isReset(id, b) && Later(had, b) != had {
			if r.put(st, id, now, entry{Ban: b, unsent: true}) {
				left++
			}
		}
		st.mu.Unlock()
	}
	r.wakeUp()
	return left
}

func (r *Register) stripeOf(id ID) *stripe { return &r.stripes[id[0]%stripeCount] }

// each calls f with each ban, under the lock of its stripe, of which there are many.
func (r *Register) each(f func(st *stripe, id ID, e entry)) {
	if r.IsEmpty() {
		return
	}
	for s := range r.stripes {
		st := &r.stripes[s]
		st.mu.Lock()
		for id, e := range st.bans {
			f(st, id, e)
		}
		st.mu.Unlock()
	}
}
