// Package control is the control record: the few things that operators say at run time, which every
// node of a namespace applies and acknowledges. It is a map of entries in one hash in Redis, with a
// copy on each node.
//
//	entry.go    one entry, and which of two of a name wins
//	record.go   a node's copy: what is merged, and what Redis has to be told
//	control.lua the script that writes to the hash; sync/record.lua reads it
//	control.go  a copy at work
//	change.go   what an operator changes, until all nodes have applied it
//	beat.go     what heartbeats say and ask, and what Redis is sent
//	reset.go    the entries that forgive, and who applies them
//	regions.go  what is read of the records of other regions
//	rules.go    what the other active entries say, for requests
//	lease.go    which nodes there are, and when that is known after a loss
//	name.go     what this node is called
//	save.go     a copy over a restart
//	state.go    what the record says, for people
//
// The record converges as a map of last-writer-wins registers does (a CRDT): entries are merged one
// by one, the higher stamp wins. A deletion is an entry as well, or a node that was away would
// bring back what was deleted. After a failover or FLUSHALL every node writes back what it finds
// missing.
package control

import (
	"strings"
	"time"
)

const (
	// awayFor is how long a node may be away and still bring its copy along: deletions may have
	// ended since.
	awayFor = 24 * time.Hour
	// rememberFor is how long a copy outlives its end, for a Redis whose clock steps back
	// meanwhile.
	rememberFor = 3 * time.Hour
)

// A Version says what the record holds.
type Version struct {
	// Revision rises with each change. Born is when the record began: one that begins again
	// has another Born.
	Revision, Born int64
}

// A Record is a node's copy of the record. It does no I/O and reads no clock: now is always this
// node's, in nanoseconds, which never steps. It is not safe for concurrent use.
type Record struct {
	copies map[string]*entryCopy

	// version is up to which the record was read and merged. read is set where all of it was, and
	// stale after a long absence: what the record lacks then, this node must not bring back.
	version     Version
	read, stale bool

	known      int64 // the highest stamp or revision heard of
	changes    int64 // how often a copy was made or dropped
	ahead      int64 // nanoseconds that Redis' clock is ahead
	answeredAt int64 // when Redis answered last, 0 never
}

// entryCopy is an entry on this node.
type entryCopy struct {
	Entry
	// ends is when its length has passed since it was first applied here, by this node's clock.
	ends int64
	// at is the revision of the record with which it was read there: who has applied the record up
	// to that has applied the entry. It is 0 where Redis is to be told of the entry.
	at int64
	// pending is set where no Redis was seen to have it.
	pending bool
}

// NewRecord returns an empty copy, which wants to read all.
func NewRecord() *Record { return &Record{copies: make(map[string]*entryCopy)} }

// Ask returns up to which version this node has applied the record, false where it wants all.
func (r *Record) Ask() (v Version, ok bool) { return r.version, r.read }

// A Reply is what a heartbeat is answered of the record.
type Reply struct {
	Server  int64 // its time, nanoseconds since the Unix epoch
	Version Version
	// Entries are those after the version that the heartbeat named, and all that there are where
	// Whole is set.
	Entries []Entry
	Whole   bool
}

// Merge merges a Reply. It reports whether there is something to say at once: that it was read.
func (r *Record) Merge(a Reply, now int64) (again bool) {
	if away := now - r.answeredAt; r.answeredAt != 0 && (away > int64(awayFor) && a.Version.Revision != 0 || away > int64(keepMost)) {
		r.read, r.stale = a.Whole, true
	}
	r.answeredAt, r.ahead, r.known = now, a.Server-now, max(r.known, a.Version.Revision)
	if a.Whole {
		for _, c := range r.copies {
			c.at = 0
		}
	}
	for _, e := range a.Entries {
		r.take(e, a.Version.Revision, now)
	}
	if a.Whole && r.stale {
		r.dropOthers()
	}
	said := r.version.Revision
	if a.Whole || !r.read {
		said = 0
	}
	r.version, r.read = a.Version, r.read || a.Whole
	return said != a.Version.Revision || !r.read
}

// dropOthers drops the copies that the record lacks, except what Redis never had.
func (r *Record) dropOthers() {
	r.stale = false
	for id, c := range r.copies {
		if c.at == 0 && !c.pending {
			delete(r.copies, id)
			r.changes++
		}
	}
}

// take merges an entry that the record holds, read with a revision. A copy that is over gives way
// to what is kept in the record, which has forgotten it.
func (r *Record) take(e Entry, at, now int64) {
	c := r.copies[e.ID]
	switch {
	case c != nil && c.Entry == e:
		c.at, c.pending = at, false
	case c == nil || e.wins(c.Entry) || r.stale && !c.pending || !r.isKept(c.Entry, now) && r.isKept(e, now):
		r.put(e, now).at = at
	default:
		c.at = 0
	}
}

// Learn merges an entry that was made or read elsewhere, for Redis to be told of unless it is read
// there.
func (r *Record) Learn(e Entry, now int64) *entryCopy {
	if c := r.copies[e.ID]; !r.isKept(e, now) || c != nil && !e.wins(c.Entry) {
		return nil
	}
	c := r.put(e, now)
	c.pending = true
	return c
}

// put replaces the copy of an entry, which is active from now on.
func (r *Record) put(e Entry, now int64) *entryCopy {
	c := &entryCopy{Entry: e, ends: now + lengthOf(e)}
	r.copies[e.ID] = c
	r.known = max(r.known, e.Stamp)
	r.changes++
	return c
}

// lengthOf is how long an entry is active, in nanoseconds.
func lengthOf(e Entry) int64 {
	return min(e.Length, int64(maxFor/time.Millisecond)) * int64(time.Millisecond)
}

// redisTime is Redis' time in milliseconds, as far as this node knows.
func (r *Record) redisTime(now int64) int64 { return (now + r.ahead) / int64(time.Millisecond) }

func (r *Record) isKept(e Entry, now int64) bool { return r.redisTime(now) < e.Keep }

// Unsent returns what Redis has to be told of, at most so many entries.
func (r *Record) Unsent(most int, now int64) (all []Entry) {
	for _, c := range r.copies {
		if c.at == 0 && r.isKept(c.Entry, now) && len(all) < most {
			all = append(all, c.Entry)
		}
	}
	return all
}

// Propose makes an entry here, for Redis to be told of as soon as it is there, and returns it.
func (r *Record) Propose(id string, length time.Duration, body string, now int64) Entry {
	at := r.redisTime(now)
	e := Entry{ID: id, Stamp: max(at*1000, r.known+1), Length: length.Milliseconds(), Body: body}
	e.Until = at + e.Length
	e.Keep = max(e.Until, at+r.Rest(id, now).Milliseconds())
	r.put(e, now).pending = true
	return e
}

// HasRoom reports whether the copy takes entries of these names, all of resets or none, beside
// those that it has.
func (r *Record) HasRoom(ids ...string) bool {
	added := map[string]bool{}
	for _, id := range ids {
		if r.copies[id] == nil {
			added[id] = true
		}
	}
	n := len(added)
	for id := range r.copies {
		if n > 0 && isReset(id) == isReset(ids[0]) {
			n++
		}
	}
	return n <= MaxEntries
}

// isReset reports whether a name is that of a reset, which have a budget of their own.
func isReset(id string) bool { return strings.HasPrefix(id, resetPrefix) }

// Rest is how long what takes the place of an entry has to be kept.
func (r *Record) Rest(id string, now int64) time.Duration {
	c := r.copies[id]
	if c == nil {
		return 0
	}
	rest := time.Duration(c.Keep-r.redisTime(now)) * time.Millisecond
	return min(max(rest, 0), keepMost)
}

// Get returns the entry of a name that is active.
func (r *Record) Get(id string, now int64) (Entry, bool) {
	c := r.copies[id]
	if c == nil || !r.isActive(c, now) {
		return Entry{}, false
	}
	return c.Entry, true
}

func (r *Record) isActive(c *entryCopy, now int64) bool {
	return !c.IsDeletion() && now < r.Ends(c.Entry)
}

// Active calls yield with each entry that is active, in no order.
func (r *Record) Active(now int64) func(yield func(Entry) bool) {
	return func(yield func(Entry) bool) {
		for _, c := range r.copies {
			if r.isActive(c, now) && !yield(c.Entry) {
				return
			}
		}
	}
}

// Ends returns when an entry that is active stops being so here, by this node's clock.
func (r *Record) Ends(e Entry) int64 {
	return min(r.copies[e.ID].ends, e.Until*int64(time.Millisecond)-r.ahead)
}

// IsPending reports whether Redis has yet to be told of an entry.
func (r *Record) IsPending(id string) bool {
	c := r.copies[id]
	return c != nil && c.at == 0
}

// AppliedBy returns the revision of the record up to which a node must have applied it to have
// applied the entry of this name, 0 where that is not known yet.
func (r *Record) AppliedBy(id string) int64 {
	if c := r.copies[id]; c != nil {
		return c.at
	}
	return 0
}

// Forget drops the copies that ended long ago.
func (r *Record) Forget(now int64) {
	for id, c := range r.copies {
		if over := now - int64(rememberFor); over > c.ends && !r.isKept(c.Entry, over) {
			delete(r.copies, id)
		}
	}
}
