package table

import (
	"math"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Spend is what one key has spent.
type Spend struct {
	Key keys.Key
	ID  keys.ID
	// Used is what all nodes have counted in the epochs that can count, two at least, as far as
	// this node knows.
	Used int64
	// Asked is how many requests of the key have come to this node in the latest epoch in which it
	// came. It is known where a table syncs at an interval, and 0 in other tables.
	Asked int64
	// Regions is set where another region has something of the key, too.
	Regions bool
}

// EachSpend calls f with what each key has spent that counted something lately, under the lock of
// its stripe, a few at a time. f must be quick. Nothing changes. A key of an earlier process that
// has not come back has no Key.
func (t *Table[S]) EachSpend(now int64, f func(Spend)) {
	b := t.config.Load()
	if b == nil {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	at, counted := t.in(now), b.IsSynced()
	epoch, epochs := b.Epochs.At(at), int64(max(2, b.Limit.History+1))
	t.each(func(_ *stripe[S], _ uint32, e entry[S]) {
		l := t.machine.Ledger(&e.state)
		s := Spend{Key: e.key, ID: e.id, Regions: e.syncState != nil && e.regions&inOtherRegions != 0}
		level, _ := t.machine.Level(&e.state, b.Limit, at)
		s.Used = int64(math.Ceil(level))
		for age := int64(0); age < epochs && t.bucket == nil; age++ {
			c, _ := l.At(epoch - age)
			s.Used += c.Total()
		}
		if !b.IsSynced() { // a log has the older ones elsewhere
			own, _ := t.machine.Spent(&e.state, b.Limit, at)
			s.Used = max(s.Used, own)
		}
		if counted && e.syncState != nil && epoch-l.Epoch <= 1 {
			s.Asked = int64(l.Attempts)
		}
		if s.Used > 0 || s.Asked > 0 {
			f(s)
		}
	})
	t.saved.Drop(b.Limit, at, func(id [16]byte, reports []algorithms.Report) bool {
		s := Spend{ID: id}
		for _, r := range reports {
			if age := epoch - r.Epoch; age >= 0 && age < epochs {
				s.Used += r.Remote
			}
		}
		if t.bucket != nil {
			var state S
			t.machine.Merge(&state, b.Limit, at, reports)
			level, _ := t.machine.Level(&state, b.Limit, at)
			s.Used = int64(math.Ceil(level))
		}
		if s.Used > 0 {
			f(s)
		}
		return false
	})
}
