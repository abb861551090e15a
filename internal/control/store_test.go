package control

import (
	"maps"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

const lease = int64(ratesync.Lease / 1e6)

// store is Redis with the two scripts, in Go: what control.lua and the part of heartbeat.lua that
// is about the record do. TestTheStoreIsRedis holds it to them.
type store struct {
	clock, digest int64
	first, last   int64 // milliseconds
	exists        bool  // the field version
	expires       int64 // of the hash, milliseconds
	nodesExpire   int64 // of the leases' hash
	entries       map[string]Entry
	// By node: its last heartbeat, the one at which it was found that the server has forgotten,
	// what it has applied, and when its lease ends in milliseconds.
	seqs, marks, applied, leases map[string]int64
}

func newStore() *store {
	return &store{entries: map[string]Entry{}, seqs: map[string]int64{}, marks: map[string]int64{}, applied: map[string]int64{}, leases: map[string]int64{}}
}

// save copies what a replica has.
func (s *store) save() *store {
	saved := *s
	saved.entries, saved.leases = maps.Clone(s.entries), maps.Clone(s.leases)
	saved.seqs, saved.marks, saved.applied = maps.Clone(s.seqs), maps.Clone(s.marks), maps.Clone(s.applied)
	return &saved
}

// expire has the hash expire. us is the server's time in microseconds.
func (s *store) expire(us int64) {
	if s.exists && us/1000 >= s.expires {
		s.exists, s.clock, s.digest, s.first, s.last = false, 0, 0, 0, 0
		clear(s.entries)
	}
	if us/1000 >= s.nodesExpire {
		clear(s.seqs)
		clear(s.marks)
		clear(s.applied)
		clear(s.leases)
	}
}

func (s *store) version() Version {
	if !s.exists {
		return Version{}
	}
	return Version{s.clock, s.digest}
}

// beat is heartbeat.lua.
func (s *store) beat(us int64, node string, seq, answered int64, q Question) Reply {
	s.expire(us)
	r := Reply{Question: q, Seq: seq, Server: us * 1000, Version: s.version(), Applied: q.Applied}
	for _, e := range s.entries {
		if e.Stamp > q.From {
			r.Entries = append(r.Entries, e)
		}
	}
	held, ok := s.seqs[node]
	if !ok {
		held = -1
	}
	mark := s.marks[node]
	if held < answered {
		mark = seq
	}
	if mark > q.At || q.Applied > s.clock {
		r.Applied = 0
	}
	if held < seq {
		s.marks[node] = mark
		s.seqs[node], s.applied[node], s.leases[node] = seq, r.Applied, us/1000+lease
	}
	s.nodesExpire = us/1000 + 4*lease
	for node, ends := range s.leases {
		if s.leases[node] = min(ends, us/1000+lease); ends < us/1000 {
			delete(s.leases, node)
			delete(s.seqs, node)
			delete(s.marks, node)
			delete(s.applied, node)
		}
	}
	return r
}

// order is one entry that control.lua is told of: a new one where length is 0 or more, else one
// that another node has written.
type order struct {
	Entry
	length, rest int64
}

// args are the arguments of the script.
func args(known int64, most int, orders []order) []any {
	all := []any{known, ""}
	if most > 0 {
		all[1] = most
	}
	for _, o := range orders {
		if o.length >= 0 {
			all = append(all, o.ID, o.length, o.rest, o.Body)
		} else {
			all = append(all, o.ID, "", "", o.value())
		}
	}
	return all
}

// write is control.lua.
func (s *store) write(us, known int64, most int, orders []order) (holds []Entry, v Version) {
	s.expire(us)
	ms, grace := us/1000, graceTTL.Milliseconds()
	if s.first > 0 && ms > s.first+grace {
		s.first, s.last = 0, 0
		maps.DeleteFunc(s.entries, func(_ string, e Entry) bool { return ms > e.Keep+grace })
		for _, e := range s.entries {
			s.span(e)
		}
	}
	had := s.exists
	for _, o := range orders {
		holds = append(holds, s.one(us, known, most, o))
	}
	if s.exists = had || len(s.entries) > 0; s.exists {
		s.expires = ms + max(s.last-ms, 0) + 2*grace
	}
	s.sum()
	return holds, Version{s.clock, s.digest}
}

func (s *store) sum() {
	s.digest = 0
	for _, e := range s.entries {
		s.digest = (s.digest + e.hash()) & (1<<digestBits - 1)
	}
}

func (s *store) span(e Entry) {
	if s.first == 0 || e.Keep < s.first {
		s.first = e.Keep
	}
	s.last = max(s.last, e.Keep)
}

func (s *store) one(us, known int64, most int, o order) Entry {
	ms, e := us/1000, o.Entry
	old, ok := s.entries[e.ID]
	switch {
	case o.length >= 0 && !ok && most > 0 && len(s.entries) >= most, o.length < 0 && e.Keep <= ms && !ok:
		return Entry{}
	case o.length < 0 && (e.Keep <= ms || ok && !e.wins(old)):
		return old
	case o.length >= 0:
		e.Stamp, e.Until, e.Length = 0, ms+o.length, o.length
		e.Keep = max(e.Until, min(max(ms+o.rest, old.Keep), ms+keepMost.Milliseconds()))
	}
	s.clock = max(us, s.clock+1, known+1, e.Stamp)
	if o.length >= 0 {
		e.Stamp = s.clock
	}
	s.entries[e.ID] = e
	s.span(e)
	return e
}
