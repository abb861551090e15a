package sim

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Store is push.lua and say.lua in Go, without what these do about other programs' data, steps of
// the clock and resets. The first has a hash for each key and epoch, with a field per node, and a
// fill for each bucket's key, the second a cell for each key.
type Store struct {
	hashes map[hashKey]*hash
	fills  map[keys.ID]fill
	cells  map[keys.ID]*cellOf
	// flushed counts how often it has lost everything.
	flushed int
}

type hashKey struct {
	id    keys.ID
	span  time.Duration
	epoch int64
}

type hash struct {
	fields                 map[string]field
	sum, attempts, settled int64
	expires                int64
}

type field struct{ seq, total, attempts, settled int64 }

// fill is what stands in a bucket at an instant, what flows out in requests per millisecond, and
// until when that is kept. Instants are in milliseconds.
type fill struct {
	requests, drain float64
	at, till        int64
}

// cellOf is what each node has said of a key, and until when that is kept.
type cellOf struct {
	said    map[string]cell.State
	expires int64
}

// NewStore returns an empty one.
func NewStore() *Store {
	return &Store{hashes: make(map[hashKey]*hash), fills: make(map[keys.ID]fill), cells: make(map[keys.ID]*cellOf)}
}

// Flush is FLUSHALL.
func (s *Store) Flush() {
	clear(s.hashes)
	clear(s.fills)
	clear(s.cells)
	s.flushed++
}

// Unfill loses the fills alone, as an eviction may.
func (s *Store) Unfill() { clear(s.fills) }

// Say is one call of say.lua at a time of its clock, in nanoseconds since the epoch. length is that
// of an epoch, and live how many before the current one count.
func (s *Store) Say(now int64, node string, length time.Duration, live int, said []table.Said) []cell.Heard {
	heard := make([]cell.Heard, len(said))
	for i := range said {
		c := s.cells[said[i].ID]
		if c == nil || now >= c.expires {
			c = &cellOf{said: make(map[string]cell.State), expires: now}
			s.cells[said[i].ID] = c
		}
		h, state := &heard[i], said[i].State
		if h.Held = c.said[node]; state.Seq > h.Held.Seq {
			state.Totals = slices.Clone(state.Totals)
			c.said[node] = state
			if stays := int64(length)*int64(live+1) + int64(time.Minute); c.expires < now+stays {
				c.expires = now + 2*stays
			}
		}
		h.Sum.Epoch = now / int64(length)
		for _, one := range c.said {
			h.Sum.Epoch = max(h.Sum.Epoch, one.Epoch)
		}
		for age := range int64(live + 1) {
			h.Sum.Totals = append(h.Sum.Totals, c.in(h.Sum.Epoch-age))
		}
		for _, one := range c.said {
			if one.Epoch == h.Sum.Epoch {
				h.Sum.Open += one.Open
			}
		}
	}
	return heard
}

// in is what all have said of an epoch.
func (c *cellOf) in(epoch int64) (sum int64) {
	for _, one := range c.said {
		sum += one.At(epoch)
	}
	return sum
}

// Push is one call of the script at a time of its clock, in nanoseconds since the epoch; live is
// how many epochs before the current one count.
func (s *Store) Push(now int64, node string, seq int64, live int, rate time.Duration, messages []table.Message) []table.Answer {
	answers := make([]table.Answer, len(messages))
	for first := 0; first < len(messages); {
		n := first + 1
		for n < len(messages) && messages[n].Key == messages[first].Key {
			n++
		}
		s.client(now, node, seq, live, rate, messages[first:n], answers[first:n])
		first = n
	}
	return answers
}

// client is the messages of one key, and what they change in the fill of its bucket.
func (s *Store) client(now int64, node string, seq int64, live int, rate time.Duration, messages []table.Message, answers []table.Answer) {
	var above int64
	wrote, alone := false, true
	for i, m := range messages {
		more, pushed := int64(0), false
		answers[i], more, pushed = s.one(now, node, seq, live, rate, m)
		mine := answers[i].Held
		if pushed {
			above += min(more, m.Unsent)
			wrote, mine = true, m.Total
		}
		alone = alone && answers[i].Sum <= mine
	}
	m := &messages[0]
	if !m.Bucket {
		return
	}
	ms := now / int64(time.Millisecond)
	had, known := s.fills[m.ID]
	if known = known && ms < had.till; known {
		had.requests = max(0, had.requests-had.drain*float64(max(0, ms-had.at)))
		answers[0].Seen, answers[0].Known = written(had.requests), true
	}
	drain := m.Drain
	if known && (above <= 0 || drain == 0) {
		drain = max(drain, had.drain)
	}
	writes := known && (above != 0 || drain != had.drain) || !known && alone
	if wrote && (writes || m.Resend) {
		f := filled(m, had, known, float64(above), ms)
		f.drain = drain
		f.keep(had.till, lifetime(m, live, rate))
		s.fills[m.ID] = f
	}
}

// filled is what a message leaves in a bucket.
func filled(m *table.Message, had fill, known bool, above float64, ms int64) fill {
	f := fill{requests: written(m.Level), at: ms}
	if known {
		f.requests = max(0, had.requests+above)
		if m.Resend {
			f.requests = max(f.requests, written(m.Level))
		}
		f.requests = written(f.requests)
	}
	return f
}

// written is a number as the script and its callers write it: with three decimals.
func written(x float64) float64 {
	var digits [32]byte
	x, _ = strconv.ParseFloat(string(strconv.AppendFloat(digits[:0], x, 'f', 3, 64)), 64)
	return x
}

// keep says how long it stays: longer than the hashes, and twice the time that it takes to drain.
func (f *fill) keep(till int64, ttl time.Duration) {
	stays := float64(ttl / time.Millisecond)
	if f.drain > 0 {
		stays = max(stays, 60_000+2*f.requests/f.drain)
	}
	f.till = max(f.at+int64(min(stays, 3e12)), till)
}

// lifetime is how long a hash stays.
func lifetime(m *table.Message, live int, rate time.Duration) time.Duration {
	return 2*m.Span*time.Duration(live+1) + rate + time.Minute
}

func (s *Store) one(now int64, node string, seq int64, live int, rate time.Duration, m table.Message) (a table.Answer, more int64, pushed bool) {
	key := hashKey{m.ID, m.Span, m.Epoch}
	h := s.hashes[key]
	if h == nil || now >= h.expires {
		h = &hash{fields: make(map[string]field), expires: math.MaxInt64}
	}
	f, had := h.fields[node]
	a = table.Answer{Message: m, Held: f.total}
	if m.Push && (!had || seq > f.seq) {
		s.hashes[key] = h
		more, pushed = m.Total-f.total, true
		h.sum += more
		h.attempts = max(0, h.attempts+m.Attempts-f.attempts)
		settled := m.Total
		if m.Settles {
			settled = m.Settled
		}
		h.settled = max(0, h.settled+settled-f.settled)
		h.fields[node] = field{seq, m.Total, m.Attempts, settled}
		if !had {
			h.expires = now + int64(lifetime(&m, live, rate))
		}
	}
	a.Sum, a.SumAttempts, a.SumSettled = h.sum, h.attempts, h.settled
	return a, more, pushed
}

// expire drops what is no longer kept.
func (s *Store) expire(now int64) {
	for key, h := range s.hashes {
		if now >= h.expires {
			delete(s.hashes, key)
		}
	}
	for id, c := range s.cells {
		if now >= c.expires {
			delete(s.cells, id)
		}
	}
	for id, f := range s.fills {
		if now/int64(time.Millisecond) >= f.till {
			delete(s.fills, id)
		}
	}
}

// total is what it counts of all epochs that it holds.
func (s *Store) total() (sum int64) {
	for _, h := range s.hashes {
		sum += h.sum
	}
	for _, c := range s.cells {
		epochs := make(map[int64]bool)
		for _, one := range c.said {
			for age, n := range one.Totals {
				if epoch := one.Epoch - int64(age); n > 0 && !epochs[epoch] {
					epochs[epoch] = true
					sum += c.in(epoch)
				}
			}
		}
	}
	return sum
}
