package control

import (
	"maps"
	"slices"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The records of regions converge as those of nodes do: the node that is the relay merges into the
// record of its region what those of others have and this one lacks. It compares digests and whole
// records, and no stamps: an entry that comes by a third region may be older than what is here.

// regionRecord is what this node has read of the record of another region. One goroutine uses it.
type regionRecord struct {
	c     *Control
	wants bool // all entries are to be read
	clock int64
	// read is the record there of which this one lacks nothing, where it is one of done: what it
	// was before that was merged, or after.
	read Version
	done [2]Version
}

// OfRegion returns what reads the record of another region.
func (c *Control) OfRegion() ratesync.RegionRecord { return &regionRecord{c: c} }

// Wants reports whether the record's entries are to be read there.
func (e *regionRecord) Wants() bool { return e.wants }

// Clock is up to which clock of the record there this region has all of it, 0 where nothing is
// known.
func (e *regionRecord) Clock() int64 { return e.clock }

// Hear merges what was read there: the version, and the entries where whole is set. What fails is
// tried again: by the nodes there that log that another program uses the record's key, or here.
func (e *regionRecord) Hear(version string, entries []any, whole bool) {
	there, err := parseVersion(version)
	all, here, known, ok := e.c.kept()
	if err != nil || !ok {
		e.wants = false
		return
	}
	e.wants = here.Digest != there.Digest && (there != e.read || !slices.Contains(e.done[:], here))
	switch {
	case !e.wants:
		e.clock = there.Clock
		return
	case !whole:
		return
	}
	lacks := slices.DeleteFunc(parseEntries(entries), func(entry Entry) bool {
		other, has := all[entry.ID]
		return has && !entry.wins(other)
	})
	after := here
	for part := range slices.Chunk(lacks, batch) {
		args := []any{known, ""}
		for _, entry := range part {
			args = append(args, entry.ID, "", "", entry.value())
		}
		if _, after, err = e.c.write(part, args); err != nil {
			return
		}
	}
	e.wants, e.read, e.done, e.clock = false, there, [2]Version{here, after}, there.Clock
}

// kept returns the entries that the record of this region keeps, its version, and the highest stamp
// that is known. ok is false where this node does not know the record as it is.
func (c *Control) kept() (all map[string]Entry, v Version, known int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.record
	at := r.redisTime(c.Now())
	all = make(map[string]Entry, len(r.stored))
	for id, s := range r.stored {
		if s.isKept(at) {
			all[id] = s.Entry
		}
	}
	return all, r.merged, r.known, r.read && !r.wants
}

// Told notes up to which clock of this region's record each other region has read it.
func (c *Control) Told(regions map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if maps.Equal(c.regions, regions) {
		return
	}
	c.regions = regions
	close(c.beats)
	c.beats = make(chan struct{})
}
