package sim

import (
	"math"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Store is say.lua in Go, without what that does about other programs' data, steps of the clock
// and resets.
type Store struct {
	cells   map[keys.ID]*cellOf
	buckets map[keys.ID]*drainOf
	// flushed counts how often it has lost everything.
	flushed int
}

// drainOf is what each node has said of a bucket, and what is in it at an instant.
type drainOf struct {
	said        map[string]cell.State
	level       float64
	total, rate int64
	at, expires int64
}

// cellOf is what each node has said of a key, and until when that is kept.
type cellOf struct {
	said    map[string]cell.State
	expires int64
}

// NewStore returns an empty one.
func NewStore() *Store {
	return &Store{cells: make(map[keys.ID]*cellOf), buckets: make(map[keys.ID]*drainOf)}
}

// Flush is FLUSHALL.
func (s *Store) Flush() {
	clear(s.cells)
	clear(s.buckets)
	s.flushed++
}

// Say is one call of say.lua at a time of its clock, in nanoseconds since the epoch. length is that
// of an epoch, and live how many before the current one count.
func (s *Store) Say(now int64, node string, length time.Duration, live int, said []table.Said) []cell.Reply {
	replies := make([]cell.Reply, len(said))
	for i := range said {
		c := s.cells[said[i].ID]
		if c == nil || now >= c.expires {
			c = &cellOf{said: make(map[string]cell.State), expires: now}
			s.cells[said[i].ID] = c
		}
		h, state := &replies[i], said[i].State
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
	return replies
}

// in is what all have said of an epoch.
func (c *cellOf) in(epoch int64) (sum int64) {
	for _, one := range c.said {
		sum += one.At(epoch)
	}
	return sum
}

// Fill is Say for buckets, which drain in a window.
func (s *Store) Fill(now int64, node string, window time.Duration, said []table.Said) []cell.Reply {
	replies := make([]cell.Reply, len(said))
	for i := range said {
		b := s.buckets[said[i].ID]
		if b == nil || now >= b.expires {
			b = &drainOf{said: make(map[string]cell.State), at: now}
			s.buckets[said[i].ID] = b
		}
		replies[i].Held = b.said[node]
		b.take(now, node, float64(window), &said[i])
		whole := math.Floor(b.level)
		replies[i].Sum = cell.Sum{
			Total: b.total, Whole: int64(whole), Rest: int64((b.level - whole) * float64(window.Microseconds())), At: b.at / int64(time.Microsecond), Rate: b.rate,
		}
	}
	return replies
}

// take takes what a node says.
func (b *drainOf) take(now int64, node string, window float64, m *table.Said) {
	state, had := m.State, b.said[node]
	if state.Seq <= had.Seq {
		return
	}
	least := -float64(b.rate) * float64(state.Span) * float64(time.Microsecond) / window
	b.level = max(b.level-float64(b.rate)*float64(max(0, now-b.at))/window, least)
	more := state.Fresh
	if b.at = now; had.Seq > 0 && had.Start == state.Start {
		more = state.Total - had.Total
		if b.total += more; more < 0 && b.level >= 0 {
			b.level = max(0, b.level+float64(more))
		}
	} else {
		b.total += state.Total
		b.level = max(b.level, float64(state.Whole-state.Fresh)+float64(state.Rest)/(window/float64(time.Microsecond)))
	}
	if more = min(more, state.Fresh); b.rate == 0 || m.Asked && (more > 0 || more == 0 && m.Rate > b.rate) {
		b.rate = m.Rate
	}
	b.level += max(0, min(float64(more), float64(m.Size+m.Rate)-math.Floor(b.level)))
	known := float64(state.Whole) + float64(state.Rest)/(window/float64(time.Microsecond))
	if m.Filled && math.Abs(b.level-known) <= 1 {
		b.level = known
	}
	b.said[node] = state
	if b.rate > 0 {
		stays := int64(max(0, b.level+1)/float64(b.rate)*window) + int64(time.Minute)
		b.expires = max(b.expires, now+stays)
	}
}

// expire drops what is no longer kept.
func (s *Store) expire(now int64) {
	for id, c := range s.cells {
		if now >= c.expires {
			delete(s.cells, id)
		}
	}
	for id, b := range s.buckets {
		if now >= b.expires {
			delete(s.buckets, id)
		}
	}
}

// total is what it counts of all epochs that it holds.
func (s *Store) total() (sum int64) {
	for _, b := range s.buckets {
		sum += b.total
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
