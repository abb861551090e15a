package ban

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/reset"
)

// tick is how exactly a reset says when it was made.
const tick = int64(time.Millisecond)

// Reset ends the bans that began up to the reset of their key, and goes by these resets from now
// on; nil are none. What is in the store ends with the next message that asks for it. now is
// this node's clock. It returns 0: no request's units are cleared by it.
func (r *Register) Reset(now int64, set *reset.Set) int64 {
	// madeAt is by this node's clock, as now.
	madeAt := func(one reset.Reset) int64 { return min(now, one.At-one.At%tick+tick-1-r.ahead.Load()) }
	r.resets.Store(r.resets.Load().NextAt(set, madeAt))
	if set == nil {
		return 0
	}
	r.each(func(st *stripe, id ID, e entry) {
		if r.isReset(id, e.Ban) {
			r.drop(st, id)
		}
	})
	return 0
}

func (r *Register) isReset(id ID, b Ban) bool { return r.resets.Load().Covers(id, b.Begun) }

// resetOf is the stamp of the latest reset of a key, 0 for none. One that is over is none: who has
// started since knows nothing of it.
func (r *Register) resetOf(id ID, now int64) int64 {
	if a := r.resets.Load(); a != nil && a.Of(id).Until > now+r.ahead.Load() {
		return a.Of(id).Stamp
	}
	return 0
}
