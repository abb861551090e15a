package table

import (
	"math"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// store is say.lua in Go, as far as a table needs it: cells, with what each node has said of a key.
// It knows of no grants or ends.
type store struct {
	cells map[keys.ID]*kept
}

// kept is one cell.
type kept struct {
	updates map[string]cell.State
	stamp   int64 // of the reset that it is under
	basin
}

// basin is what is in a bucket at an instant in microseconds: level in requests times the window in
// microseconds, below 0 where it has been idle. It is that of all nodes, and total what they have
// spent.
type basin struct{ level, at, rate, total int64 }

func newStore() *store { return &store{cells: make(map[keys.ID]*kept)} }

// copied is a replica of it.
func (s *store) copied() *store {
	c := newStore()
	for id, k := range s.cells {
		other := &kept{updates: make(map[string]cell.State), stamp: k.stamp, basin: k.basin}
		for node, state := range k.updates {
			other.updates[node] = state
		}
		c.cells[id] = other
	}
	return c
}

// say is one message of a node, at an instant of the store's clock in nanoseconds.
func (s *store) say(now int64, node string, b *SyncConfig, updates []Update) []cell.Reply {
	heard := make([]cell.Reply, len(updates))
	for i := range updates {
		k := s.cells[updates[i].ID]
		if k == nil {
			k = &kept{updates: make(map[string]cell.State)}
			s.cells[updates[i].ID] = k
		}
		if under := updates[i].State.Stamp; under > k.stamp {
			*k = kept{updates: make(map[string]cell.State), stamp: under}
		} else if under < k.stamp {
			heard[i].NewerStamp = k.stamp
			continue
		}
		heard[i].Previous = k.updates[node]
		if b.Params.Kind.Traits().Draining {
			window := b.Params.Window.Microseconds()
			k.take(now/int64(time.Microsecond), window, k.updates[node], &updates[i])
			heard[i].Sum = k.sum(window)
		}
		if state := updates[i].State; state.Seq > heard[i].Previous.Seq {
			state.Totals = slices.Clone(state.Totals)
			k.updates[node] = state
		}
		if !b.Params.Kind.Traits().Draining {
			heard[i].Sum = k.epochs(b.Epochs.At(now), b.Limit.History)
		}
		heard[i].Sum.Stamp = k.stamp
	}
	return heard
}

// epochs is what all have spent in the epochs of a window.
func (k *kept) epochs(newest int64, history int) (sum cell.Sum) {
	sum.Epoch = newest
	for _, state := range k.updates {
		sum.Epoch = max(sum.Epoch, state.Epoch)
	}
	for age := range sum.Epoch - newest + int64(history) + 1 {
		total := int64(0)
		for _, state := range k.updates {
			total += state.At(sum.Epoch - age)
		}
		sum.Totals = append(sum.Totals, total)
	}
	for _, state := range k.updates {
		if state.Epoch == sum.Epoch {
			sum.Reserved += state.Reserved
		}
	}
	return sum
}

// sum is what is in a bucket, by parts of the window.
func (b *basin) sum(window int64) cell.Sum {
	whole := b.level / window
	if b.level%window < 0 {
		whole--
	}
	return cell.Sum{Total: b.total, Whole: whole, Rest: b.level - whole*window, At: b.at, Rate: b.rate}
}

// take takes in what a node says, of which the store had something else.
func (b *basin) take(now, window int64, had cell.State, m *Update) {
	state := m.State
	if state.Seq <= had.Seq {
		return
	}
	if b.at == 0 { // it was idle ever since
		b.level, b.rate = math.MinInt64, m.Rate
	} else {
		b.level -= b.rate * max(0, now-b.at)
	}
	idle := b.rate
	if m.Decided {
		idle = min(idle, m.Rate)
	}
	b.level, b.at = max(b.level, -idle*state.UnackedFor), now
	more := state.Unacked
	if had.Seq > 0 && had.Incarnation == state.Incarnation {
		more = state.Total - had.Total
		if b.total += more; more < 0 && b.level >= 0 {
			b.level = max(0, b.level+more*window)
		}
	} else {
		b.total += state.Total
		if known := (state.Whole-state.Unacked)*window + state.Rest; known >= 0 {
			b.level = max(b.level, known)
		}
	}
	if more = min(more, state.Unacked); more > 0 || m.Rate > b.rate {
		b.rate = m.Rate
	}
	b.level += max(0, min(more*window, (m.Size+m.Rate)*window-b.level))
}

// total is what all nodes have spent of a key, of windows in all epochs that any has said.
func (s *store) total(raw []byte) (sum int64) {
	k := s.cells[keys.IDOf(raw)]
	if k == nil {
		return 0
	}
	sum = k.total
	for _, state := range k.updates {
		for _, n := range state.Totals {
			sum += n
		}
	}
	return sum
}

// A talker is a table that is synced with a store, as a node.
type talker[S any] struct {
	*Table[S]
	name string
	seq  int64
	// ahead is by how much the store's clock is ahead of what the table takes it for.
	ahead time.Duration
}

// server is the store's clock.
func (n *talker[S]) server(now int64) int64 { return n.in(now) + int64(n.ahead) }

// takeOut takes out what there is to say.
func (n *talker[S]) takeOut(now int64, early bool) []Update {
	n.seq++
	return n.TakeUpdates(now, n.seq, 1000, early, nil)
}

// deliver brings it to a store.
func (n *talker[S]) deliver(s *store, now int64, updates []Update) []cell.Reply {
	return s.say(n.server(now), n.name, n.config.Load(), updates)
}

// hear takes in the answer.
func (n *talker[S]) mergeOne(now int64, updates []Update, heard []cell.Reply) (forgot bool) {
	return n.Merge(now, n.server(now), updates, heard)
}

// sync is one cycle.
func (n *talker[S]) sync(s *store, now int64) (forgot bool) {
	n.MakeOutgoing()
	updates := n.takeOut(now, false)
	return n.mergeOne(now, updates, n.deliver(s, now, updates))
}

// syncEarly is a sync before the next cycle, of so many keys.
func (n *talker[S]) syncEarly(s *store, now int64) (keys int) {
	updates := n.takeOut(now, true)
	n.mergeOne(now, updates, n.deliver(s, now, updates))
	return len(updates)
}

type node = talker[algorithms.WindowState]

// newNode returns a node that makes no estimate of what it can't see, for tests of what it does
// see.
func newNode(name string, alg algorithms.Params) *node {
	n := &node{Table: New[algorithms.WindowState](algorithms.SlidingWindow, 1000), name: name}
	n.Configure(SyncConfig{Params: alg, Interval: time.Second, Early: true}, 1000)
	n.SetMissedTwice(^uint64(0))
	return n
}

// first is what was said of the newest epoch of the first key, of the only one in most tests.
func first(updates []Update) int64 {
	if len(updates) == 0 {
		return -1
	}
	return updates[0].State.At(updates[0].State.Epoch)
}

// beside answers what is said of keys at an instant of the store's clock: all of it is new to the
// store, and of each key others have spent n, which stands in a bucket.
func beside(b *SyncConfig, server int64, updates []Update, n int64) []cell.Reply {
	heard := make([]cell.Reply, len(updates))
	for i := range updates {
		state, sum := &updates[i].State, &heard[i].Sum
		if b.Params.Kind.Traits().Draining {
			*sum = cell.Sum{Total: state.Total + n, Whole: state.Whole + n, Rest: state.Rest, At: server / int64(time.Microsecond), Rate: updates[i].Rate}
			continue
		}
		sum.Epoch, sum.Totals = state.Epoch, append([]int64{state.At(state.Epoch) + n}, state.Totals[min(1, len(state.Totals)):]...)
	}
	return heard
}
