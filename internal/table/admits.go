package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A reservedAsk is for N units of a key that were denied. Now is the instant by the process'
// clock, and At by that of the state. Unseen is what others have probably spent that is not in it
// yet.
type reservedAsk struct {
	Limit           algorithms.Limit
	Key             keys.Key
	Now, At, Unseen int64
	N               int64
}

// admitsReleased reports whether they would be admitted if all that is reserved were refunded. The
// state stays as it is.
func (t *Table[S]) admitsReleased(s *S, a reservedAsk) bool {
	t.machine.Advance(s, a.Limit, a.At)
	l := t.machine.Ledger(s)
	if t.kind.Traits().Draining {
		a.Limit.Size += t.reservations.Sum(a.Key, a.Now, l.Epoch)
	} else {
		counts := l.Clone()
		defer func() { *l = counts }()
		if n := t.reservations.takeOut(a.Key, l, a.Limit.History); !t.kind.Traits().Windowed {
			*l = counts.Clone() // a log has instants beside it, and all that it counts does in full
			a.Limit.Size += n
		}
	}
	return t.machine.Take(s, a.Limit, a.At, 0, a.Unseen).Remaining >= a.N
}

// takeOut takes what is reserved of a key out of a ledger's current epoch and so many before it. It
// returns how much that is.
func (r *Reservations) takeOut(key keys.Key, l *algorithms.Ledger, history int) (n int64) {
	for age := range int64(history + 1) {
		epoch := l.Epoch - age
		own, others := r.In(key, epoch)
		if c, ok := l.At(epoch); ok && own+others > 0 {
			own, others = min(own, max(0, c.Own)), min(others, max(0, c.Remote))
			n += own + others
			c.Own, c.Remote = c.Own-own, c.Remote-others
			l.Put(epoch, c)
		}
	}
	return n
}
