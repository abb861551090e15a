// Package control is the control record: the few things that operators say at run time, which every
// node of a namespace applies and acknowledges. It is a map of entries in one hash in Redis, with a
// copy on each node.
//
//	entry.go    one entry, and which of two of a name wins
//	record.go   a node's copy: what is merged, and what Redis has to be told
//	control.lua the script that writes to the hash; sync/heartbeat.lua reads it
//	control.go  a copy at work
//	change.go   what an operator changes, until all nodes have applied it
//	beat.go     what heartbeats say and ask, and what Redis is sent
//	reset.go    the entries that forgive, and who applies them
//	regions.go  what is read of the records of other regions
//	rules.go    what the other active entries say, for requests
//	lease.go    which nodes there are, also where Redis has forgotten them
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
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// awayFor is how long a node may be away and still bring its copy along: deletions may have
	// ended since.
	awayFor = 24 * time.Hour
	// rememberFor is how long a copy outlives its end, for a Redis whose clock steps back
	// meanwhile.
	rememberFor = 2 * time.Hour
)

// A Version says what the record holds. It is compared for equality and never for order: after a
// failover and two writes the same clock can mean other content.
type Version struct {
	// Clock rises with each change. Digest is the sum of the hashes of all entries.
	Clock, Digest int64
}

// A Record is a node's copy of the record. It does no I/O and reads no clock: now is always this
// node's, in nanoseconds, which never steps. It is not safe for concurrent use.
type Record struct {
	copies map[string]*entryCopy

	// merged is the record's version when it was read last and merged, and seq the latest heartbeat
	// at which it still was.
	merged Version
	seq    int64
	read   bool // it was read at all
	// stored is what the record held then, and sum the sum of the hashes.
	stored map[string]storedEntry
	sum    int64
	// wants is set where the record is to be read, and all of it where it is not enough to read
	// what is newer.
	wants, all bool
	// stale is set after a long absence: what the record lacks then, this node must not bring back.
	stale bool
	// wrote is set where Redis was told of something after the last question.
	wrote bool

	known      int64 // the highest stamp or clock heard of
	changes    int64 // how often a copy was made or dropped
	ahead      int64 // nanoseconds that Redis' clock is ahead
	answeredAt int64 // when Redis answered last, 0 never
}

type storedEntry struct {
	Entry
	hash int64
}

// entryCopy is an entry on this node.
type entryCopy struct {
	Entry
	hash int64
	// ends is when its length has passed since it was first applied here, by this node's clock, and
	// kept until when it is kept.
	ends, kept int64
	// missing is set where Redis is to be told of it; pending, where Redis never had it.
	missing, pending bool
	// since is the clock of the record at which it was there, 0 where that is not known. Who has
	// applied the record up to it has applied the entry.
	since int64
}

// NewRecord returns an empty copy, which wants to read all.
func NewRecord() *Record {
	return &Record{copies: make(map[string]*entryCopy), stored: make(map[string]storedEntry), wants: true, all: true}
}

// A Question is what a heartbeat says and asks of the record.
type Question struct {
	// Applied is the clock up to which the record was read and merged, and At the heartbeat that
	// told so. Together they are worth something only in that history of the server.
	Applied, At int64
	// From is the stamp beyond which entries are wanted, -1 for all. Read is set where the record
	// is known to be different.
	From int64
	Read bool
}

// Ask returns what the next heartbeat has to say and to ask.
func (r *Record) Ask() Question {
	r.wrote = false
	q := Question{Applied: r.merged.Clock, At: r.seq, Read: r.wants, From: r.merged.Clock}
	if r.all {
		q.From = -1
	}
	return q
}

// A Reply is the answer to a Question.
type Reply struct {
	Question
	Seq     int64 // of the heartbeat
	Server  int64 // its time, nanoseconds since the Unix epoch
	Version Version
	// Applied is what is noted of this node: 0 where the server doesn't know the heartbeat At.
	Applied int64
	Entries []Entry
}

// Merge merges the answer to a Question. It reports whether there is more to say or to ask at once.
func (r *Record) Merge(a Reply, now int64) (again bool) {
	if away := now - r.answeredAt; r.answeredAt != 0 && (away > int64(awayFor) && a.Version.Clock != 0 || away > int64(keepMost)) {
		r.read, r.all, r.stale = false, true, true
	}
	r.answeredAt, r.ahead, r.known = now, a.Server-now, max(r.known, a.Version.Clock)
	if a.Applied != a.Question.Applied {
		// The server has forgotten that this node had read the record. It may have another one, in
		// which entries are back later than they were there.
		r.read, r.all = false, true
	}
	switch {
	case a.Read && a.From < 0:
		r.mergeAll(a, now)
	case r.read && (a.Read || len(a.Entries) > 0 && !r.wrote): // else the next answer has them
		r.mergeNewer(a, now)
	}
	if r.read && a.Version == r.merged {
		r.seq, r.wants, r.all = a.Seq, r.wrote, false
		return r.wrote || a.Applied != r.merged.Clock
	}
	r.wants, r.all = true, r.all || !r.read || a.Version.Clock <= r.merged.Clock
	return true
}

// mergeNewer merges the entries beyond a stamp. If something else is different, all is read next.
func (r *Record) mergeNewer(a Reply, now int64) {
	for _, e := range a.Entries {
		r.store(e)
		r.take(e, a.Version.Clock, now)
	}
	if r.sum == a.Version.Digest {
		r.merged = a.Version
		r.compare(now)
	} else {
		r.all = true
	}
}

// mergeAll merges a whole record, and notes what it lacks.
func (r *Record) mergeAll(a Reply, now int64) {
	clear(r.stored)
	r.sum = 0
	for _, e := range a.Entries {
		r.store(e)
		r.take(e, a.Version.Clock, now)
	}
	r.merged, r.read, r.all = a.Version, true, false
	if r.stale {
		r.dropOthers()
	}
	r.compare(now)
}

// dropOthers drops the copies that the record lacks, except what Redis never had.
func (r *Record) dropOthers() {
	r.stale = false
	for id, c := range r.copies {
		if r.stored[id].hash != c.hash && !c.pending {
			delete(r.copies, id)
			r.changes++
		}
	}
	for id, s := range r.stored {
		if r.copies[id] == nil {
			r.put(s.Entry, r.answeredAt).since = r.merged.Clock
		}
	}
}

// compare notes what the record lacks, also of what was written to it just now. A copy that is over
// gives way to what is kept in the record, which has forgotten it.
func (r *Record) compare(now int64) {
	at := r.redisTime(now)
	for id, c := range r.copies {
		s := r.stored[id]
		switch {
		case s.hash == c.hash:
		case !c.isKept(at) && s.isKept(at):
			r.put(s.Entry, now).since = r.merged.Clock
		default:
			c.missing, c.since = c.isKept(at), 0
		}
	}
}

// store notes what the record holds under a name.
func (r *Record) store(e Entry) {
	h := e.hash()
	r.sum = (r.sum + h - r.stored[e.ID].hash) & (1<<digestBits - 1)
	r.stored[e.ID] = storedEntry{e, h}
}

// take merges an entry that the record held at a clock.
func (r *Record) take(e Entry, clock, now int64) {
	c := r.copies[e.ID]
	switch {
	case c == nil || e.wins(c.Entry):
		r.put(e, now).since = clock
	case c.Entry == e:
		c.missing, c.pending, c.since = false, false, clock
	}
}

// put replaces the copy of an entry, which is active from now on.
func (r *Record) put(e Entry, now int64) *entryCopy {
	c := &entryCopy{Entry: e, hash: e.hash(), ends: now + lengthOf(e), kept: e.Keep*int64(time.Millisecond) - r.ahead}
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

// Unsent returns what Redis has to be told of, at most so many entries, the oldest first.
func (r *Record) Unsent(most int) []Entry {
	var all []Entry
	for _, c := range r.copies {
		if c.missing {
			all = append(all, c.Entry)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), cmp.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), most)]
}

// Sent notes what the record holds after Redis was told of entries: now holds one for each name,
// and the zero Entry where Redis did not take it.
func (r *Record) Sent(told, holds []Entry, v Version, now int64) {
	r.known = max(r.known, v.Clock)
	for i, e := range told {
		c := r.copies[e.ID]
		switch {
		case holds[i] == e:
			r.take(e, v.Clock, now)
			continue
		case c == nil || c.Entry != e:
			continue // something else was said here meanwhile
		case holds[i].isKept(r.redisTime(now)):
			delete(r.copies, e.ID)
			r.changes++
		}
		c.missing = false // it is over there, or another one wins
		if holds[i] != (Entry{}) {
			r.take(holds[i], v.Clock, now)
		}
	}
	r.wants, r.wrote = true, true
}

// Take merges an entry that was written just now, with the record's version after that.
func (r *Record) Take(e Entry, v Version, now int64) {
	r.known = max(r.known, v.Clock)
	r.take(e, v.Clock, now)
	r.wants, r.wrote = true, true
}

// Propose makes an entry here, for Redis to be told of as soon as it is there, and returns it. It
// returns false if the copy is full; most is 0 where it may not be.
func (r *Record) Propose(id string, length time.Duration, body string, most int, now int64) (Entry, bool) {
	old := r.copies[id]
	if old == nil && most > 0 && r.count(isReset(id)) >= most {
		return Entry{}, false
	}
	at := r.redisTime(now)
	e := Entry{ID: id, Stamp: max(at*1000, r.known+1), Length: length.Milliseconds(), Body: body}
	e.Until = at + e.Length
	e.Keep = max(e.Until, at+r.Rest(id, now).Milliseconds())
	c := r.put(e, now)
	c.missing, c.pending = true, true
	return e, true
}

// HasRoom reports whether the copy takes entries of these names, which are no resets, beside those
// that it has.
func (r *Record) HasRoom(ids []string, most int) bool {
	added := map[string]bool{}
	for _, id := range ids {
		if r.copies[id] == nil {
			added[id] = true
		}
	}
	return len(added) == 0 || r.count(false)+len(added) <= most
}

// isReset reports whether a name is that of a reset, which have a budget of their own.
func isReset(id string) bool { return strings.HasPrefix(id, resetPrefix) }

// count is how many resets there are, or how many other entries.
func (r *Record) count(resets bool) (n int) {
	for id := range r.copies {
		if isReset(id) == resets {
			n++
		}
	}
	return n
}

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
	return !c.IsDeletion() && now < c.ends && !c.isPast(r.redisTime(now))
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
	c := r.copies[e.ID]
	return min(c.ends, c.Until*int64(time.Millisecond)-r.ahead)
}

// IsPending reports whether Redis has yet to be told of an entry.
func (r *Record) IsPending(id string) bool {
	c := r.copies[id]
	return c != nil && c.missing
}

// AppliedBy returns the clock of the record up to which a node must have applied it to have applied
// the entry of this name, 0 where that is not known yet.
func (r *Record) AppliedBy(id string) int64 {
	if c := r.copies[id]; c != nil && !c.missing {
		return c.since
	}
	return 0
}

// Forget drops the copies that ended long ago. Those that the record still has stay.
func (r *Record) Forget(now int64) {
	for id, c := range r.copies {
		_, stored := r.stored[id]
		if !stored && !c.isKept(r.redisTime(now)) && now > max(c.ends, c.kept)+int64(rememberFor) {
			delete(r.copies, id)
		}
	}
}
