package table

// Unsent is what the store doesn't have yet, or no longer, of what a decision can still use:
// requests admitted here, and of how many keys.
func (t *Table[S]) Unsent(now int64) (keys int, requests int64) {
	b := t.background.Load()
	if b == nil {
		return 0, 0
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock(now)
	charged := t.chargeable(b)
	t.each(func(_ *shard[S], _ uint32, e entry[S]) {
		if charged != nil {
			if n := charged.Owed(&e.state, b.limit, now); n > 0 {
				keys++
				requests += n
			}
			return
		}
		t.machine.Advance(&e.state, b.limit, now)
		l := t.machine.Ledger(&e.state)
		var n int64
		for age := range int64(b.limit.History + 1) {
			if c, _ := l.At(l.Epoch - age); l.Redo == 0 {
				n += c.Unsent()
			} else {
				n += c.Own
			}
		}
		if n > 0 {
			keys++
			requests += n
		}
	})
	return keys, requests
}
