package counters

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Key names what a zone counts.
type Key struct {
	// Raw is the bytes of the key, nothing where there is none. ID names it to other nodes.
	Raw []byte
	ID  table.ID
	// ByID is set where the ID is all that is known. Then Raw is some other key.
	ByID bool
}

// KeyOf returns the Key of these bytes.
func KeyOf(raw []byte) Key { return Key{Raw: raw, ID: table.IDOf(raw)} }

// KeyOfID returns the Key of which only the ID is known.
func KeyOfID(id table.ID) Key { return Key{Raw: id[:], ID: id, ByID: true} }

// A Fork is the counters of one key, apart from all others.
type Fork interface {
	Decider
	Settler
	HasDebt(key table.Key) (table.ID, bool)
	Remote(l algorithms.Limit, key table.Key, now int64) int64
}

// Fork returns counters of one key, which are part of no configuration; ok is false where the key
// is not found by its ID.
func (c *Counters) Fork(l algorithms.Limit, k Key, now int64) (f *Counters, ok bool) {
	t, ok := c.fork(l, k, now)
	if !ok {
		return nil, false
	}
	return &Counters{Key: c.Key, Table: t, Settler: t, Source: c.Source, zone: c.zone}, true
}
