package ratesync

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Where responses decide what requests cost: they reserve some units, and settle in any order,
// early or late, to less or to more, while messages are lost and nodes end. Once all is well, the
// store has of each living node what its responses have cost and what is still reserved, and which
// is which. Every node knows how much others have reserved.
func TestEveryScheduleOfResponses(t *testing.T) {
	t.Parallel()
	everySchedule(t, redistest.Seeds(1, 125), true)
}

// An openUnit is units of a request whose response has not begun. They count in a hash until an
// instant.
type openUnit struct {
	table.Reserved
	key, hash string
	until     int64
}

// reserve is take for requests that reserve.
func (s *schedule[S]) reserve(m *member[S], key string, n int) {
	for range n {
		now, k := wallClock(), keys.KeyOf([]byte(key))
		units := 1 + s.random.Int64N(4)
		d := m.table.Take(m.alg.Compile(), k, []byte(key), now, units, table.Reserve|table.InParts|algorithms.WantReset)
		if !d.Allowed {
			continue
		}
		hash := s.hash(key, s.epoch(d.At))
		m.own[hash] += units
		m.open = append(m.open, openUnit{m.table.ReservationOf(m.alg.Compile(), k, d), key, hash, now + int64(d.Reset)})
	}
}

// respond has so many responses tell their cost, in any order. Two of three cost nothing, or half,
// or half as much again.
func (s *schedule[S]) respond(m *member[S], n int) {
	for range min(len(m.open), n) {
		i, last, now := s.random.IntN(len(m.open)), len(m.open)-1, wallClock()
		u := m.open[i]
		m.open[i], m.open = m.open[last], m.open[:last]
		cost := u.N
		if s.random.IntN(3) > 0 {
			cost = u.N * s.random.Int64N(4) / 2
		}
		latest := s.hash(u.key, s.epoch(now+int64(m.table.Offset())))
		before, charged := s.ownIn(m, u.key, u.hash), s.ownIn(m, u.key, latest)
		m.table.Settle(keys.KeyOf([]byte(u.key)), u.Reserved, now, cost)
		more, charge := min(0, cost-u.N), max(0, cost-u.N)
		if now >= u.until {
			more = 0
		}
		if s.drains { // which refund what still stands, and are charged up to a bound
			more, charge = min(0, s.ownIn(m, u.key, u.hash)-before), max(0, s.ownIn(m, u.key, latest)-charged)
		}
		m.own[u.hash] += more
		m.own[latest] += charge
		m.gave[u.hash] = m.gave[u.hash] || more < 0
	}
}

// ownIn returns what a node's ledger has as its own in a hash, 0 where that is not held.
func (s *schedule[S]) ownIn(m *member[S], key, hash string) (own int64) {
	m.table.With(keys.KeyOf([]byte(key)), func(state *S) {
		l := ledgerOf(m.alg, state)
		for age := range int64(2) {
			if c, ok := l.At(l.Epoch - age); ok && s.hash(key, l.Epoch-age) == hash {
				own = c.Own
			}
		}
	})
	return own
}

// respondAll has all responses begin at last, or on each node but some.
func (s *schedule[S]) respondAll() {
	all := s.random.IntN(2) == 0
	for _, m := range s.nodes {
		if n := len(m.open); all {
			s.respond(m, n)
		} else {
			s.respond(m, n-min(n, 1+s.random.IntN(3)))
		}
	}
}

// settledIn checks what the store has as settled of a node's total.
func (s *schedule[S]) settledIn(m *member[S], hash string) {
	if !s.alg.Reserves {
		return
	}
	open := m.reserved(hash)
	if !s.drains && !strings.HasSuffix(hash, fmt.Sprint("#", s.store.newestIn(hash, m.source.Node()))) {
		return // of older epochs the store isn't told
	}
	if total, settled := s.store.settled(hash, m.source.Node()); settled != total-open {
		s.t.Errorf("%s: of %d of node %s the store has %d as settled, and %d are reserved", hash, total, m.source.Node(), settled, open)
	}
}

// reserved is how many units of a hash a node's requests have reserved.
func (m *member[S]) reserved(hash string) (n int64) {
	for _, u := range m.open {
		if u.hash == hash {
			n += u.N
		}
	}
	return n
}

// knowsReserved checks what a node takes for reserved, by itself and by others; the dead have left
// what they had reserved.
func (s *schedule[S]) knowsReserved(m *member[S], key string, epoch int64) {
	if !s.alg.Reserves || s.drains { // of which no more than the level is reserved
		return
	}
	hash := s.hash(key, epoch)
	total, settled := s.store.settled(hash, m.source.Node())
	all, allSettled := s.store.settled(hash, "sum")
	own, others := m.table.Reservations().In(keys.KeyOf([]byte(key)), epoch)
	want := (all - total) - (allSettled - settled)
	if open := m.reserved(hash); own != open || others != want {
		s.t.Errorf("%s: node %s takes %d of its own and %d of others for reserved; %d are, and the store has %d of others", hash, m.source.Node(), own, others, open, want)
	}
}

// settled returns what a field of a hash has, and how much of it is settled.
func (s *luaStore) settled(hash, field string) (total, settled int64) {
	name, at, _ := strings.Cut(hash, "#")
	c, _ := parseCellKey(name)
	text := s.Hash(name)[field]
	epoch, _ := strconv.ParseInt(at, 10, 64)
	total, parts := totalsIn(c.spec, field, text)[epoch], strings.Fields(text)
	switch own := int(one(field != "sum")); {
	case c.spec.isBucket() && len(parts) > 2:
		return total, total - first(parts[2-own])
	case !c.spec.isBucket() && len(parts) > 4-own && parts[3-own] == at:
		return total, total - first(parts[4-own])
	}
	return total, total
}

// respondAfter has the responses to requests of before a reset begin after it, some before what is
// spent then and some after. They change nothing.
func (w *resetWorld[S]) respondAfter() {
	for i, m := range w.nodes {
		w.respond(m, 5)
		w.spent += w.admitted(i, 6)
		w.respond(m, len(m.open)-1)
	}
	w.rest()
}

// reservesNothing checks that nobody takes anything for reserved: what was is forgiven, though some
// responses have not begun.
func (w *resetWorld[S]) reservesNothing() {
	for i, m := range w.nodes {
		n := m.table.Reservations().Len()
		w.respond(m, len(m.open))
		if n += m.table.Reservations().Len(); n != 0 {
			w.t.Errorf("node %d takes something for reserved in the end", i)
		}
	}
}

// newestIn is the newest epoch of a node's field in a cell.
func (s *luaStore) newestIn(hash, node string) int64 {
	name, _, _ := strings.Cut(hash, "#")
	if parts := strings.Fields(s.Hash(name)[node]); len(parts) > 3 {
		return first(parts[2])
	}
	return 0
}
