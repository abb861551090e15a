package sim

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A Store is say.lua in Go, without what that does about other programs' data, steps of the clock
// and resets.
type Store struct{ cells map[keys.ID]*cellOf }

// cellOf is what each node has said of a key, and until when that is kept. Of a bucket it is also
// what is in it at an instant.
type cellOf struct {
	states  map[string]cell.State
	expires int64

	level           float64
	total, rate, at int64
}

// NewStore returns an empty one.
func NewStore() *Store { return &Store{cells: make(map[keys.ID]*cellOf)} }

// Apply is one call of say.lua at a time of its clock, in nanoseconds since the epoch. p are the
// parameters of the limit.
func (s *Store) Apply(now int64, node string, p algorithms.Params, updates []table.Update) []cell.Reply {
	replies := make([]cell.Reply, len(updates))
	for i := range updates {
		c := s.cells[updates[i].ID]
		if c == nil || now >= c.expires {
			c = &cellOf{states: make(map[string]cell.State), expires: now, at: now}
			s.cells[updates[i].ID] = c
		}
		replies[i].Previous = c.states[node]
		if p.Kind.Traits().Draining {
			replies[i].Sum = c.fill(now, node, p.Window, &updates[i])
		} else {
			replies[i].Sum = c.count(now, node, p.Epochs(), p.Compile().History, updates[i].State)
		}
	}
	return replies
}

// count is about windows. epochs are its, and live how many before the current one
// count.
func (c *cellOf) count(now int64, node string, epochs algorithms.Epochs, live int, state cell.State) (sum cell.Sum) {
	if state.Seq > c.states[node].Seq {
		state.Totals = slices.Clone(state.Totals)
		c.states[node] = state
		if stays := epochs.Length*int64(live+1) + int64(time.Minute); c.expires < now+stays {
			c.expires = now + 2*stays
		}
	}
	sum.Epoch = epochs.At(now)
	for _, one := range c.states {
		sum.Epoch = max(sum.Epoch, one.Epoch)
	}
	sum.Totals = make([]int64, live+1)
	for _, one := range c.states {
		for age := range sum.Totals {
			sum.Totals[age] += one.At(sum.Epoch - int64(age))
		}
		if one.Epoch == sum.Epoch {
			sum.Reserved += one.Reserved
		}
	}
	return sum
}

// fill is about buckets, which drain in a window.
func (c *cellOf) fill(now int64, node string, window time.Duration, m *table.Update) cell.Sum {
	if m.State.Seq > c.states[node].Seq {
		c.take(now, node, float64(window), m)
	}
	whole := math.Floor(c.level)
	return cell.Sum{
		Total: c.total, Whole: int64(whole), Rest: int64((c.level - whole) * float64(window.Microseconds())), At: c.at / int64(time.Microsecond), Rate: c.rate,
	}
}

// take takes what a node says.
func (c *cellOf) take(now int64, node string, window float64, m *table.Update) {
	state, had := m.State, c.states[node]
	idle := c.rate // at which it drained while the node spent what it says: the lower one of two
	if m.Decided {
		idle = min(idle, m.Rate)
	}
	least := -float64(idle) * float64(state.UnackedFor) * float64(time.Microsecond) / window
	c.level = max(c.level-float64(c.rate)*float64(max(0, now-c.at))/window, least)
	more := state.Unacked
	if c.at = now; had.Seq > 0 && had.Incarnation == state.Incarnation {
		more = state.Total - had.Total
		if c.total += more; more < 0 && c.level >= 0 {
			c.level = max(0, c.level+float64(more))
		}
	} else {
		c.total += state.Total
		c.level = max(c.level, float64(state.Whole-state.Unacked)+float64(state.Rest)/(window/float64(time.Microsecond)))
	}
	if more = min(more, state.Unacked); c.rate == 0 || m.Decided && (more > 0 || more == 0 && m.Rate > c.rate) {
		c.rate = m.Rate
	}
	c.level += max(0, min(float64(more), float64(m.Size+m.Rate)-math.Floor(c.level)))
	known := float64(state.Whole) + float64(state.Rest)/(window/float64(time.Microsecond))
	if m.Filled && math.Abs(c.level-known) <= 1 {
		c.level = known
	}
	c.states[node] = state
	if c.rate > 0 {
		stays := int64(max(0, c.level+1)/float64(c.rate)*window) + int64(time.Minute)
		c.expires = max(c.expires, now+stays)
	}
}

// Expire drops what is no longer kept at an instant.
func (s *Store) Expire(now int64) {
	maps.DeleteFunc(s.cells, func(_ keys.ID, c *cellOf) bool { return now >= c.expires })
}
