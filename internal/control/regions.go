package control

import (
	"maps"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The records of regions converge as those of nodes do: the node that is the relay takes what those
// of others have, as if it had said so itself.

// regionRecord is what this node has read of the record of another region. One goroutine uses it.
type regionRecord struct {
	c        *Control
	read     Version
	revision int64
}

// OfRegion returns what reads the record of another region.
func (c *Control) OfRegion() ratesync.RegionRecord { return &regionRecord{c: c} }

// Version is up to which version the record was read there, "" for nothing.
func (e *regionRecord) Version() string {
	if e.read == (Version{}) {
		return ""
	}
	return e.read.String()
}

// Revision is up to which one of the record there the Redis of this region has all of it, 0 where
// nothing is known.
func (e *regionRecord) Revision() int64 { return e.revision }

// Receive merges what was read there: the version, and the entries after the one that was read
// before. What can't be read the nodes there log.
func (e *regionRecord) Receive(version string, entries []any) {
	there, err := parseVersion(version)
	if err != nil {
		return
	}
	c, now := e.c, e.c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, entry := range parseEntries(entries) {
		c.record.Learn(entry, now)
	}
	e.read = there
	switch {
	case len(c.record.Unsent(1, now)) > 0:
		c.Beat()
	case c.record.read:
		e.revision = there.Revision
	}
}

// ReadBy notes up to which revision of this region's record each other region has read it.
func (c *Control) ReadBy(regions map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.regions, regions) {
		c.regions = regions
		c.wake()
	}
}
