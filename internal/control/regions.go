package control

import (
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The records of regions converge as those of nodes do: the node that is the relay merges into the
// record of each other region what that one lacks. It compares digests and whole records, and no
// stamps: an entry that comes by a third region may be older than what is there.

// regionRecord is what this node has told the record of another region. One goroutine uses it.
type regionRecord struct {
	c      *Control
	client redis.UniversalClient
	key    string

	wants bool       // all entries are to be read
	done  [2]Version // the records here and there of which that one lacks nothing
	clock int64
}

// OfRegion returns what goes along with the heartbeats at the Redis of another region.
func (c *Control) OfRegion(client redis.UniversalClient, key string) ratesync.RegionRecord {
	return &regionRecord{c: c, client: client, key: key}
}

// Ask returns what the next heartbeat asks of the record there.
func (e *regionRecord) Ask() []any {
	from := ""
	if e.wants {
		from = "-1"
	}
	return []any{0, 0, from, "", ""}
}

// Clock is up to which clock of the record here the other region has all of it, 0 where nothing is
// known.
func (e *regionRecord) Clock() int64 { return e.clock }

// Merge tells the record there what it lacks, by the answer to a heartbeat. It reports whether the
// next one should come at once.
func (e *regionRecord) Merge(h ratesync.HeartbeatReply) (again bool, err error) {
	reply, _, err := parseReply(h)
	if err != nil {
		return false, err
	}
	all, here, known, ok := e.c.kept()
	now := [2]Version{here, reply.Version}
	asked := e.wants
	e.wants = ok && here.Digest != reply.Version.Digest && now != e.done
	switch {
	case !ok:
		return false, nil
	case !e.wants:
		e.clock = here.Clock
		return false, nil
	case !asked:
		return true, nil
	}
	there := make(map[string]Entry, len(reply.Entries))
	for _, entry := range reply.Entries {
		there[entry.ID] = entry
	}
	all = slices.DeleteFunc(all, func(entry Entry) bool {
		other, has := there[entry.ID]
		return has && !entry.wins(other)
	})
	for part := range slices.Chunk(all, batch) {
		args := []any{known, ""}
		for _, entry := range part {
			args = append(args, entry.ID, "", "", entry.value())
		}
		if _, now[1], err = e.c.write(e.client, e.key, part, args); err != nil {
			return false, err
		}
	}
	e.wants, e.done, e.clock = false, now, here.Clock
	return false, nil
}

// kept returns the entries that the record of this region keeps, its version, and the highest stamp
// that is known. ok is false where this node does not know the record as it is.
func (c *Control) kept() (all []Entry, v Version, known int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.record
	at := r.redisTime(c.Now())
	for _, s := range r.stored {
		if s.isKept(at) {
			all = append(all, s.Entry)
		}
	}
	return all, r.merged, r.known, r.read && !r.wants
}

// Told notes up to which clock of this region's record each other region has been told of it.
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
