package sim

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// A store is push.lua in Go: a hash for each key and epoch, with a field per node.
type store struct {
	hashes map[hashKey]*hash
}

type hashKey struct {
	id    table.ID
	span  time.Duration
	epoch int64
}

type hash struct {
	fields        map[string]field
	sum, attempts int64
	level         float64
	at            int64 // of the level, in milliseconds
	expires       int64
}

type field struct{ seq, total, attempts int64 }

func newStore() *store { return &store{make(map[hashKey]*hash)} }

// push is one call of the script. drain is in requests per millisecond, 0 without a bucket.
func (s *store) push(now int64, node string, seq int64, drain float64, live int, rate time.Duration, messages []table.Message) []table.Answer {
	answers := make([]table.Answer, len(messages))
	for i, m := range messages {
		answers[i] = s.one(now, node, seq, drain, live, rate, m)
	}
	return answers
}

func (s *store) one(now int64, node string, seq int64, drain float64, live int, rate time.Duration, m table.Message) table.Answer {
	key := hashKey{m.ID, m.Span, m.Epoch}
	h := s.hashes[key]
	if h == nil || now >= h.expires {
		h = &hash{fields: make(map[string]field), expires: math.MaxInt64}
	}
	f, had := h.fields[node]
	a := table.Answer{Message: m, Held: f.total, Seen: h.level, SeenAt: h.at * int64(time.Millisecond)}
	if m.Push && (!had || seq > f.seq) {
		s.hashes[key] = h
		more := m.Total - f.total
		h.sum += more
		h.attempts = max(0, h.attempts+m.Attempts-f.attempts)
		if drain > 0 {
			ms := now / int64(time.Millisecond)
			fill := h.level
			if h.at != 0 {
				fill = max(0, fill-drain*float64(max(0, ms-h.at)))
			}
			h.level, h.at = math.Round(1000*max(0, fill+float64(more), m.Level))/1000, ms
		}
		h.fields[node] = field{seq, m.Total, m.Attempts}
		if !had {
			h.expires = now + int64(2*m.Span*time.Duration(live+1)+rate+time.Minute)
		}
	}
	a.Sum, a.SumAttempts = h.sum, h.attempts
	return a
}

// total is what it counts of all epochs that it holds.
func (s *store) total() (sum int64) {
	for _, h := range s.hashes {
		sum += h.sum
	}
	return sum
}
