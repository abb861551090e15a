package limits

import (
	"context"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Key names what a zone counts.
type Key struct {
	// Raw is the bytes of the key, nothing where there is none. ID names it to other nodes.
	Raw []byte
	ID  keys.ID
	// ByID is set where the ID is all that is known. Then Raw is some other key.
	ByID bool
}

// KeyOf returns the Key of these bytes.
func KeyOf(raw []byte) Key { return Key{Raw: raw, ID: keys.IDOf(raw)} }

// KeyOfID returns the Key of which only the ID is known.
func KeyOfID(id keys.ID) Key { return Key{Raw: id[:], ID: id, ByID: true} }

// Fork returns counters of one key, which are part of no configuration; ok is false where the key
// is not found by its ID.
func (c *Counters) Fork(l algorithms.Limit, k Key, now int64) (f *Counters, ok bool) {
	t, ok := c.fork(l, k, now)
	if !ok {
		return nil, false
	}
	return &Counters{Key: c.Key, Table: t, Source: c.Source, zone: c.zone}, true
}

// learn has two forks of a key know what Redis has of it.
func (l *Limit) learn(ctx context.Context, same *Limit, raw []byte) error {
	now, key := clock.Now(), keys.KeyOf(raw)
	var reads []table.Said
	for _, f := range []*Limit{same, l} {
		f.Table.Take(f.Enforced, key, raw, now, 0, 0) // it has a slot then
		reads = f.Table.Reads(now)
	}
	if len(reads) == 0 {
		return nil
	}
	if ratesync.LostFor(l.Source.Lost(), reads[0].ID) {
		return redisconn.ErrDown
	}
	heard, server, err := l.Source.Look(ctx, reads)
	if err != nil {
		return err
	}
	l.Table.Hear(clock.Now(), server, reads, heard)
	same.Table.Hear(clock.Now(), server, reads, heard)
	return nil
}

// Standing is how a limit stands for the key of a fork, before the next request.
type Standing struct {
	// Used of Size is spent, as this node knows: what can still be taken is what is left of that.
	// Used is more than Size where responses have cost more than was left, or the limit was higher.
	Used, Size int64
	// Remote is the part of Used that other nodes counted, as far as this node knows them apart.
	Remote int64
	// Regions is set where other regions have counted some of Remote.
	Regions bool
}

// Stand returns how a limit stands for the key of a fork.
func (c *Counters) Stand(l algorithms.Limit, raw []byte, now int64) (s Standing) {
	key := keys.KeyOf(raw)
	if s.Size = l.Size; l.N == 0 {
		s.Size = 0
	}
	t := c.Table.Take(l, key, raw, now, 0, 0)
	if s.Used = max(0, s.Size-t.Remaining); t.Remaining == 0 && !t.Overflow {
		l.N, l.Size = max(l.N, 1), l.Size+1<<53 // it may be a debt, or a limit that was higher
		s.Used = max(s.Used, l.Size-c.Table.Take(l, key, raw, now, 0, 0).Remaining)
	}
	s.Remote = min(s.Used, c.Table.Remote(l, key, now))
	// A fork has one key.
	c.EachSpend(func(one table.Spend) { s.Regions = s.Remote > 0 && one.Regions })
	return s
}
