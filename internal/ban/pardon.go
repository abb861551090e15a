package ban

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/reset"
)

// pardons are up to when bans are pardoned, by resets. They don't change.
type pardons struct {
	set *reset.Set
	// at is when each reset was made, by its stamp and this node's clock.
	at map[int64]int64
}

// tick is how exactly a reset says when it was made.
const tick = int64(time.Millisecond)

// Reset ends the bans that began up to the reset of their key, and goes by these resets from now
// on; nil are none. What is in the store ends with the next message that asks for it. now is this
// node's clock. It returns 0: no request is forgiven by it.
func (r *Register) Reset(now int64, set *reset.Set) int64 {
	if set == nil {
		r.pardons.Store(nil)
		return 0
	}
	next, had := &pardons{set, make(map[int64]int64, 1+len(set.Keys))}, r.pardons.Load()
	note := func(one reset.Reset) {
		next.at[one.Stamp] = min(now, one.At-one.At%tick+tick-1-r.ahead.Load())
		if had != nil {
			if at, known := had.at[one.Stamp]; known {
				next.at[one.Stamp] = at
			}
		}
	}
	note(set.All)
	for _, one := range set.Keys {
		note(one)
	}
	r.pardons.Store(next)
	r.each(func(st *stripe, id ID, e entry) {
		if r.isPardoned(id, e.Ban) {
			r.drop(st, id)
		}
	})
	return 0
}

// pardoned is up to when the bans of a key are pardoned, by this node's clock.
func (r *Register) pardoned(id ID) (at int64, ok bool) {
	p := r.pardons.Load()
	if p == nil {
		return 0, false
	}
	one := p.set.Of(id)
	return p.at[one.Stamp], one.Stamp != 0
}

func (r *Register) isPardoned(id ID, b Ban) bool {
	at, ok := r.pardoned(id)
	return ok && b.Begun <= at
}
