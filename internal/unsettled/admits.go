package unsettled

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/algorithms/ledger"
)

// An Ask is for one unit of a key that was denied. Now is the instant by the process' clock, and At
// by that of the state. Pending is what others have probably spent that is not in it yet.
type Ask struct {
	Limit            algorithms.Limit
	Key              Key
	Now, At, Pending int64
}

// Admits reports whether a unit would be admitted if all that is reserved were refunded. The state
// stays as it is.
func Admits[S any](r *Register, m algorithms.Machine[S], s *S, a Ask) bool {
	m.Advance(s, a.Limit, a.At)
	l := m.Ledger(s)
	if _, windows := any(s).(*algorithms.WindowState); windows { // it decides by the ledger
		defer func(counts ledger.Ledger) { *l = counts }(l.Clone())
		r.takeOut(a.Key, l, a.Limit.History)
	} else {
		a.Limit.Size += r.Sum(a.Key, a.Now, l.Epoch-1)
	}
	return m.Take(s, a.Limit, a.At, 0, a.Pending).Remaining > 0
}

// takeOut takes what is reserved of a key out of a ledger's current epoch and so many before it.
func (r *Register) takeOut(key Key, l *ledger.Ledger, history int) {
	for age := range int64(history + 1) {
		epoch := l.Epoch - age
		own, others := r.In(key, epoch)
		if c, ok := l.At(epoch); ok && own+others > 0 {
			c.Own, c.Remote = max(0, c.Own-own), max(0, c.Remote-others)
			l.Put(epoch, c)
		}
	}
}
