package algorithms

import "github.com/caddy-tide/ratelimit/internal/saturate"

// Reset forgets what was spent up to an epoch, and what is known of the store for that: there these
// epochs have other names from now on. Later ones stay. It returns what was spent.
func (l *Ledger) Reset(upTo int64) (forgiven int64) {
	for age := range int64(MaxHistory + 1) {
		c, ok := l.At(l.Epoch - age)
		if !ok {
			break
		}
		if l.Epoch-age > upTo {
			continue
		}
		forgiven = saturate.Add(forgiven, c.Total())
		l.Put(l.Epoch-age, EpochCount{})
		bit := uint32(1) << age
		l.onlyRises &^= bit
	}
	if l.Epoch <= upTo {
		l.Attempts = 0
	}
	l.Synced = false // what came since the last reply says nothing of what came since the reset
	return forgiven
}
