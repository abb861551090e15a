// What requests were admitted with and may get back when their responses begin or, with
// response_cost, end, by key: what is reserved, and not settled yet.
//
// They hold a key only as long as something of it is reserved. They know no limits and have no
// clock.

package table

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/saturate"
)

const reservationStripes = 16

// Reservations count what is reserved. The zero value is empty. It is safe for concurrent use.
type Reservations struct {
	stripes [reservationStripes]reservationStripe
	// lost is when the store was found to have lost something, see IsRecovering.
	lost atomic.Int64
	// requests numbers those that are alone in a group.
	requests atomic.Uint32
}

type reservationStripe struct {
	mu sync.Mutex
	of map[keys.Key]*reservedKey
}

// reservedKey is what is reserved of one key.
type reservedKey struct {
	own []*ReservedGroup
	// others is what other nodes had reserved in an epoch, as of the last reply.
	others []reservedByOthers
	// rate is that of a bucket, as far as SetDrainRate was told.
	rate int64
}

type reservedByOthers struct{ epoch, n int64 }

// A ReservedGroup is units that this node has reserved in one epoch, and that count until one
// instant of the process' clock. After a reset of the key a group is in no Reservations any more.
//
// Units of a bucket, of which a part may be refunded, are a group for each request, in the order in
// which they were taken: they stand in the bucket in that order.
type ReservedGroup struct {
	epoch, until, n int64
	// drainsAt is when they really end to count: before until where a bucket drains faster since.
	drainsAt int64
	// number is that of a request that is alone in its group, 0 for none, and window that of its
	// limit.
	number uint32
	window int64
	// refundedAfter is what was taken after it and has been refunded since.
	refundedAfter int64
}

func (r *Reservations) stripe(key keys.Key) *reservationStripe { return &r.stripes[key.B>>60] }

// change gives f the entry of a key, a new one if need be, and drops one that is empty afterwards.
func (r *Reservations) change(key keys.Key, f func(*reservedKey)) {
	st := r.stripe(key)
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.of[key]
	if e == nil {
		e = new(reservedKey)
	}
	f(e)
	switch {
	case len(e.own)+len(e.others) == 0:
		delete(st.of, key)
	case st.of == nil:
		st.of = map[keys.Key]*reservedKey{key: e}
	default:
		st.of[key] = e
	}
}

// look gives f the entry of a key, if there is one.
func (r *Reservations) look(key keys.Key, f func(*reservedKey)) {
	st := r.stripe(key)
	st.mu.Lock()
	defer st.mu.Unlock()
	if e := st.of[key]; e != nil {
		f(e)
	}
}

// group returns a group of an entry, nil if there is none.
func (e *reservedKey) group(epoch, until int64) *ReservedGroup {
	for _, g := range e.own {
		if g.epoch == epoch && g.until == until {
			return g
		}
	}
	return nil
}

// reservedParts is the part of a window by which groups know when their units end to count. So a
// key has few of them, however many of its requests are under way.
const reservedParts = 64

// roundUp returns the end of a part of a window.
func roundUp(until, window int64) int64 {
	part := max(1, window/reservedParts)
	return saturate.Add(until, part-1) / part * part
}

// Add notes n units that are reserved in an epoch, and that count until an instant. window is that
// of the limit.
func (r *Reservations) Add(key keys.Key, n, epoch, until, window int64) {
	until = roundUp(until, window)
	r.change(key, func(e *reservedKey) {
		g := e.group(epoch, until)
		if g == nil {
			g = &ReservedGroup{epoch: epoch, until: until, drainsAt: until}
			e.own = append(e.own, g)
		}
		g.n += n
	})
}

// SetDrainRate notes at which rate the bucket of a key drains from now on, so that nothing in it
// counts from an instant on. Where that is faster than before, what is reserved ends to count
// sooner. A limit of 0 leaves the rate as it is.
func (r *Reservations) SetDrainRate(key keys.Key, rate, until int64) {
	if rate == 0 {
		return
	}
	r.look(key, func(e *reservedKey) {
		for _, g := range e.own {
			if e.rate != rate {
				g.drainsAt = min(g.drainsAt, until)
			}
		}
		e.rate = rate
	})
}

// AddOne notes n units of a request that are reserved in an epoch of a bucket which drains at a
// rate, and that stand in it until an instant. It returns the number by which FindOne finds them.
func (r *Reservations) AddOne(key keys.Key, n, epoch, until, rate, window int64) (number uint32) {
	for number == 0 {
		number = r.requests.Add(1)
	}
	r.change(key, func(e *reservedKey) {
		e.rate = rate
		e.own = append(e.own, &ReservedGroup{epoch: epoch, until: until, drainsAt: until, n: n, number: number, window: window})
	})
	return number
}

// FindOne returns the group of a request; nil if the key was reset since.
func (r *Reservations) FindOne(key keys.Key, number uint32) (found *ReservedGroup) {
	r.look(key, func(e *reservedKey) {
		if i := slices.IndexFunc(e.own, func(g *ReservedGroup) bool { return g.number == number }); i >= 0 {
			found = e.own[i]
		}
	})
	return found
}

// Undrained returns how much of a request's units still stands in its bucket at now, and what was
// taken after them and has been refunded since.
func (r *Reservations) Undrained(key keys.Key, g *ReservedGroup, now int64) (n, refunded int64) {
	r.look(key, func(e *reservedKey) { n, refunded = e.undrained(g, now), g.refundedAfter })
	return n, refunded
}

// undrained is what of a group counts at now. Of a bucket that is what has yet to drain of it.
func (e *reservedKey) undrained(g *ReservedGroup, now int64) int64 {
	switch {
	case now >= g.drainsAt:
		return 0
	case g.number == 0:
		return g.n
	}
	return min(g.n, saturate.MulDiv(e.rate, g.drainsAt-now, g.window))
}

// RescaleDrains notes at which rate the bucket of a key drains from now on. What stands in it ends
// to count as much sooner or later.
func (r *Reservations) RescaleDrains(key keys.Key, rate, now int64) {
	if rate == 0 {
		return
	}
	r.look(key, func(e *reservedKey) {
		if e.rate == rate {
			return
		}
		for _, g := range e.own {
			if g.number > 0 && g.drainsAt > now {
				g.drainsAt = now + saturate.MulDiv(g.drainsAt-now, e.rate, rate)
			}
		}
		e.rate = rate
	})
}

// ExpireSooner notes that n units of a group have left the bucket of a key before they drained.
// What was taken after that group drains sooner by n: without this it would be refunded when it has
// drained already. For the groups before it n less was taken after them. Of nil nobody knows what
// was taken before, so all groups drain sooner.
func (r *Reservations) ExpireSooner(key keys.Key, after *ReservedGroup, n int64) {
	r.look(key, func(e *reservedKey) {
		moves := after == nil
		if !moves && !slices.Contains(e.own, after) {
			return // the key was reset since
		}
		for _, g := range e.own {
			if moves && g.number > 0 && e.rate > 0 {
				g.drainsAt = saturate.Add(g.drainsAt, -saturate.MulDivUp(n, g.window, 0, e.rate))
			}
			if moves = moves || g == after; !moves {
				g.refundedAfter += n
			}
		}
	})
}

// Ended reports whether the units of a group count no more at now, as far as SetDrainRate was told.
// Units without a group always count.
func (r *Reservations) Ended(key keys.Key, g *ReservedGroup, now int64) (ended bool) {
	if g != nil {
		r.look(key, func(*reservedKey) { ended = now >= g.drainsAt })
	}
	return ended
}

// Find returns the group of units that were added, by the low bits of its epoch; nil if the key was
// reset since. After a Shift it is one of another epoch.
func (r *Reservations) Find(key keys.Key, epoch uint32, until, window int64) (found *ReservedGroup) {
	until = roundUp(until, window)
	r.look(key, func(e *reservedKey) {
		for _, g := range e.own {
			if g.until == until && (found == nil || uint32(g.epoch) == epoch) {
				found = g
			}
		}
	})
	return found
}

// Shift moves what is reserved of a key by a number of epochs, up to the newest one: the clock that
// numbers them has taken a step. What others have reserved moves as what they have spent does.
func (r *Reservations) Shift(key keys.Key, by, newest int64) {
	if r.isEmpty(key) {
		return
	}
	r.change(key, func(e *reservedKey) {
		for _, g := range e.own {
			g.epoch = min(g.epoch+by, newest)
		}
		for i := range e.others {
			e.others[i].epoch = min(e.others[i].epoch+by, newest)
		}
	})
}

// Remove settles n units of a group, and returns the epoch in which they were reserved, as the
// clock numbers it now. stood is false where the key was reset since, and for nil.
func (r *Reservations) Remove(key keys.Key, g *ReservedGroup, n int64) (epoch int64, stood bool) {
	if g == nil {
		return 0, false
	}
	r.change(key, func(e *reservedKey) {
		epoch, stood = g.epoch, slices.Contains(e.own, g)
		if g.n -= n; g.n <= 0 {
			e.own = slices.DeleteFunc(e.own, func(other *ReservedGroup) bool { return other == g })
		}
	})
	return epoch, stood
}

func (r *Reservations) isEmpty(key keys.Key) (empty bool) {
	empty = true
	r.look(key, func(*reservedKey) { empty = false })
	return empty
}

// In returns what is reserved of a key in an epoch, on this node and on the others.
func (r *Reservations) In(key keys.Key, epoch int64) (own, remote int64) {
	r.look(key, func(e *reservedKey) {
		for _, g := range e.own {
			if g.epoch == epoch {
				own += g.n
			}
		}
		for _, o := range e.others {
			if o.epoch == epoch {
				remote += o.n
			}
		}
	})
	return own, remote
}

// Sum returns what is reserved of a key and still counts at now: on this node, and on the others in
// epochs from oldest on.
func (r *Reservations) Sum(key keys.Key, now, oldest int64) (n int64) {
	r.look(key, func(e *reservedKey) {
		for _, g := range e.own {
			n += e.undrained(g, now)
		}
		for _, o := range e.others {
			if o.epoch >= oldest {
				n += o.n
			}
		}
	})
	return n
}

// Drop drops what is known of a key, which was reset: what was reserved before is forgiven.
func (r *Reservations) Drop(key keys.Key) {
	r.change(key, func(e *reservedKey) { *e = reservedKey{} })
}

// Prune drops what other nodes had reserved in epochs before oldest.
func (r *Reservations) Prune(oldest int64) {
	for i := range r.stripes {
		st := &r.stripes[i]
		st.mu.Lock()
		for key, e := range st.of {
			e.others = slices.DeleteFunc(e.others, func(o reservedByOthers) bool { return o.epoch < oldest })
			if len(e.own)+len(e.others) == 0 {
				delete(st.of, key)
			}
		}
		st.mu.Unlock()
	}
}

// CopyTo copies what is reserved of a key to other Reservations, which is empty.
func (r *Reservations) CopyTo(to *Reservations, key keys.Key) {
	to.requests.Store(r.requests.Load()) // none there has the number of one from here
	r.look(key, func(e *reservedKey) {
		c := &reservedKey{others: slices.Clone(e.others), rate: e.rate}
		for _, g := range e.own {
			copied := *g
			c.own = append(c.own, &copied)
		}
		to.stripe(key).of = map[keys.Key]*reservedKey{key: c}
	})
}

// Len is how many keys something is reserved of.
func (r *Reservations) Len() (n int) {
	for i := range r.stripes {
		st := &r.stripes[i]
		st.mu.Lock()
		n += len(st.of)
		st.mu.Unlock()
	}
	return n
}
