package table

import "github.com/caddy-tide/ratelimit/algorithms"

// Room returns how many units of a key are left at now, and spends none. A key that was never seen
// gets a place; ok is false where the table is full and has none. raw is the bytes of which key is
// KeyOf; it is not kept.
func (t *Table[S]) Room(l algorithms.Limit, key Key, raw []byte, now int64) (left int64, ok bool) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, ok := sh.find(key)
	if !ok {
		if i, ok = t.enter(sh, l, key, raw, now); !ok {
			return 0, false
		}
	}
	offset := t.offset.Load()
	now += offset &^ 1
	s := &t.follow(sh, l, i, now, offset).state
	return t.machine.Take(s, l, now, 0, 0).Remaining, true
}
