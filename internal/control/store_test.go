package control

import (
	"fmt"
	"maps"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

const (
	lease = int64(ratesync.Lease / 1e6)
	// Milliseconds that an entry stays in Redis beyond its end, and between two looks for such.
	grace    = 60_000
	lookRate = 3600_000
)

// store is Redis with the two scripts, in Go: what control.lua and the part of heartbeat.lua that
// is about the record do. TestTheStoreIsRedis holds it to them.
type store struct {
	Version
	due, last   int64 // milliseconds
	expires     int64 // of the hash, milliseconds
	nodesExpire int64 // of the leases' hash
	entries     map[string]stored
	// By node: its last heartbeat, since when that is known here, what it has applied, and when its
	// lease ends in milliseconds.
	seqs, knownSince, applied, leases map[string]int64
	said                              int64 // knownSince in the last answer
}

type stored struct {
	Entry
	at int64
}

func newStore() *store {
	return &store{entries: map[string]stored{}, seqs: map[string]int64{}, knownSince: map[string]int64{}, applied: map[string]int64{}, leases: map[string]int64{}}
}

// save copies what a replica has.
func (s *store) save() *store {
	saved := *s
	saved.entries, saved.leases = maps.Clone(s.entries), maps.Clone(s.leases)
	saved.seqs, saved.knownSince, saved.applied = maps.Clone(s.seqs), maps.Clone(s.knownSince), maps.Clone(s.applied)
	return &saved
}

// expire has the hashes expire. us is the server's time in microseconds.
func (s *store) expire(us int64) {
	if us/1000 >= s.expires {
		s.Version, s.due, s.last = Version{}, 0, 0
		clear(s.entries)
	}
	if us/1000 >= s.nodesExpire {
		clear(s.seqs)
		clear(s.knownSince)
		clear(s.applied)
		clear(s.leases)
	}
}

// A question is what a heartbeat says of the record.
type question struct {
	Version
	ok         bool
	knownSince int64 // that the node knows
}

// beat is heartbeat.lua.
func (s *store) beat(us int64, node string, seq, answered int64, q question) Reply {
	s.expire(us)
	held, ok := s.seqs[node]
	if !ok {
		held = -1
	}
	since := s.knownSince[node]
	if held < answered || since == 0 {
		since = us / 1000
	}
	s.said = since
	r := Reply{Server: us * 1000, Version: s.Version, Whole: held < answered || since != q.knownSince || !q.ok || q.Born != s.Born || q.Revision > s.Revision}
	applied := q.Revision
	if r.Whole {
		applied = 0
	}
	for _, e := range s.entries {
		if r.Whole || e.at > q.Revision {
			r.Entries = append(r.Entries, e.Entry)
		}
	}
	if held < seq {
		s.knownSince[node] = since
		s.seqs[node], s.applied[node], s.leases[node] = seq, applied, us/1000+lease
	}
	s.nodesExpire = us/1000 + 4*lease
	for node, ends := range s.leases {
		if s.leases[node] = min(ends, us/1000+lease); ends < us/1000 {
			delete(s.leases, node)
			delete(s.seqs, node)
			delete(s.knownSince, node)
			delete(s.applied, node)
		}
	}
	return r
}

// order is one entry that control.lua is told of: a new one where length is 0 or more, else one
// that was made elsewhere.
type order struct {
	Entry
	length, rest int64
}

// args are the arguments of the script.
func args(known int64, orders []order) []any {
	all := []any{known}
	for _, o := range orders {
		if o.length >= 0 {
			all = append(all, o.ID, o.length, fmt.Sprint(o.rest, " ", o.Body))
		} else {
			all = append(all, o.ID, "", o.value())
		}
	}
	return all
}

// write is control.lua.
func (s *store) write(us, known int64, orders []order) (holds []Entry) {
	s.expire(us)
	ms := us / 1000
	if s.Born == 0 {
		s.Born = us
	}
	if ms > s.due {
		s.due, s.last = ms+lookRate, 0
		maps.DeleteFunc(s.entries, func(_ string, e stored) bool { return ms > e.Keep+grace })
		for _, e := range s.entries {
			s.last = max(s.last, e.Keep)
		}
	}
	for _, o := range orders {
		holds = append(holds, s.one(us, known, o))
	}
	if s.Revision == 0 {
		*s = store{entries: s.entries, nodesExpire: s.nodesExpire, seqs: s.seqs, knownSince: s.knownSince, applied: s.applied, leases: s.leases}
	} else {
		s.expires = ms + max(s.last-ms, 0) + 2*grace
	}
	return holds
}

func (s *store) one(us, known int64, o order) Entry {
	ms, e := us/1000, o.Entry
	old, ok := s.entries[e.ID]
	after := max(us, s.Revision+1, known+1)
	if o.length >= 0 {
		e.Stamp, e.Until, e.Length = after, ms+o.length, o.length
		e.Keep = max(e.Until, ms+o.rest)
	}
	e.Keep = max(e.Keep, min(old.Keep, ms+keepMost.Milliseconds()))
	if e.Keep <= ms || ok && (old.Stamp > e.Stamp || old.Entry == e) {
		return old.Entry
	}
	s.Revision, s.last = max(after, e.Stamp), max(s.last, e.Keep)
	s.entries[e.ID] = stored{e, s.Revision}
	return e
}
