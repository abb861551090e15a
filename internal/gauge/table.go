package gauge

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const (
	// Lease is how long what a node has said of a key counts, on other nodes and in Redis.
	Lease = 10 * time.Second
	// Refresh is how often a node repeats what it says of a key that is above 0.
	Refresh = 3 * time.Second

	stripeCount = 64
)

// A Table has a gauge for each key of a zone. It outlives configurations: the limit is passed to
// Take, so a new configuration's applies at once to what is in use.
//
// It is safe for concurrent use. No lock is held over a callback or I/O, and a request takes one:
// its stripe's.
type Table struct {
	config  atomic.Pointer[Config]
	maxKeys atomic.Int64
	keys    atomic.Int64
	urgent  atomic.Bool // some keys should not wait for the next sync
	// overflowed counts the decisions for keys without a gauge of their own.
	overflowed atomic.Int64
	stripes    [stripeCount]stripe
}

// Config is what the latest configuration says.
type Config struct {
	// Shared is set where other nodes are told. The rest is for that.
	Shared bool
	// Early has a key synced before the interval is over when it is new or may be taken too often.
	Early bool
	// Strict has what is free again synced at once: Redis decides, and others may wait for it.
	Strict bool
	// Nodes returns how many nodes there are, and Waker asks for a sync of urgent keys.
	Nodes func() int64
	Waker cycle.Waker
}

type stripe struct {
	mu      sync.Mutex
	entries map[keys.Key]*entry
	most    int // entries since the map was made
	lists   [lists]list
	cells   *cells // nil where no key beyond max_keys has a slot
	inUse   int64  // slots given out, those of cells as well

	_ [24]byte
}

// entry is the gauge of one key.
type entry struct {
	key keys.Key
	id  keys.ID

	own int64 // slots that this node has given out
	// others is what the other nodes have, and asked when this node asked for that, 0 never.
	others, asked int64
	// sent is what Redis has of this node, as the last answer said. unsure is set where a message
	// has had no answer since: Redis may have something else.
	sent   int64
	unsure bool
	// reread is set where others may have changed in the same cycle: it is asked for once more.
	reread bool

	in         where
	after      where // for one in flight: where it goes then, waiting for where its answer says
	prev, next *entry
	waiters    []*Waiter
}

// New returns a table for at most maxKeys keys that is not synced.
func New(maxKeys int) *Table {
	t := &Table{}
	t.maxKeys.Store(int64(maxKeys))
	t.config.Store(&Config{})
	for i := range t.stripes {
		t.stripes[i].entries = make(map[keys.Key]*entry)
	}
	return t
}

// Configure sets what requests and syncs go by and the bound on keys. A table that begins to be
// synced says what it has.
func (t *Table) Configure(c Config, maxKeys int) {
	t.maxKeys.Store(int64(maxKeys))
	old := t.config.Swap(&c)
	if old.Shared != c.Shared {
		t.restart(c.Shared)
	}
}

// IsStrict reports whether Redis decides.
func (t *Table) IsStrict() bool { return t.config.Load().Strict }

// An Ask is what a request asks of a key.
type Ask struct {
	Key keys.Key
	// Raw is the bytes of which Key is keys.KeyOf. It is not kept.
	Raw []byte
	Now int64
	// Limit is how many slots all nodes have, and Alone how many this one has where it has not
	// heard of the others for a Lease.
	Limit, Alone int64
}

// A State is how a key stands after a Take, with the slot that it gave.
type State struct {
	Allowed bool
	// Own is what this node has given out, and Others what the others have. Bound is the limit that
	// decided.
	Own, Others, Bound int64
	// Overflow is set for a key without a gauge of its own.
	Overflow bool
}

// Remaining is how many slots are free.
func (s State) Remaining() int64 { return max(0, s.Bound-s.Own-s.Others) }

// A Slot is what a Take gave. The zero value is none.
type Slot struct {
	table *Table
	entry *entry // nil in the overflow
	key   keys.Key
}

// Take gives a slot of a key, if one is free as far as this node knows.
func (t *Table) Take(a *Ask) (Slot, State) {
	c, st := t.config.Load(), t.stripe(a.Key)
	st.mu.Lock()
	e := t.enter(st, a)
	if e == nil {
		defer st.mu.Unlock()
		t.overflowed.Add(1)
		return t.takeCell(st, a)
	}
	s := e.state(a)
	s.Allowed = s.Own+s.Others < s.Bound
	wake := false
	if s.Allowed {
		e.own++
		st.inUse++
		s.Own++
	}
	switch {
	case !c.Shared && e.in == inFlight:
	case !c.Shared:
		st.put(e, e.rest())
	case s.Allowed:
		e.reread = true
		wake = t.mark(st, e, c.Early && e.isUrgent(a, c))
	case e.own < a.Limit: // because of the others, who may have given some back
		wake = t.mark(st, e, c.Early && e.asked == 0)
	}
	st.mu.Unlock()
	if wake {
		c.Waker.Wake()
	}
	if !s.Allowed {
		return Slot{}, s
	}
	return Slot{t, e, a.Key}, s
}

// Peek returns how a key stands, and whether a Take would give a slot. It changes nothing.
func (t *Table) Peek(a *Ask) State {
	st := t.stripe(a.Key)
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.entries[a.Key]
	if e == nil {
		e = &entry{}
	}
	s := e.state(a)
	if e.own == 0 && st.cells != nil {
		if n := st.cells.least(a.Key); n > 0 || st.entries[a.Key] == nil && t.isFull(st) {
			s = State{Own: n, Bound: a.Alone, Overflow: true}
		}
	}
	s.Allowed = s.Own+s.Others < s.Bound
	return s
}

// state returns how a key stands before a request.
func (e *entry) state(a *Ask) State {
	if e.asked == 0 || a.Now-e.asked >= int64(Lease) {
		return State{Own: e.own, Bound: a.Alone}
	}
	return State{Own: e.own, Others: e.others, Bound: a.Limit}
}

// isUrgent reports whether a slot that was just given should be told at once: the others have not
// been heard of, or all nodes together may give out what is left if each gives out as many as this
// one has since it was last synced.
func (e *entry) isUrgent(a *Ask, c *Config) bool {
	if e.asked == 0 || a.Now-e.asked >= int64(Lease) {
		return true
	}
	nodes := max(2, c.Nodes())
	return e.own > e.sent && (e.own-e.sent)*nodes >= a.Limit-e.sent-e.others
}

// IsOf reports whether a slot is one of a key in a table.
func (s Slot) IsOf(t *Table, key keys.Key) bool { return s.table == t && s.key == key }

// Free gives a slot back. It does nothing for none.
func (s Slot) Free() {
	if s.table == nil {
		return
	}
	t, st := s.table, s.table.stripe(s.key)
	c := t.config.Load()
	wake := false
	st.mu.Lock()
	st.inUse--
	switch e := s.entry; {
	case e == nil:
		st.freeCell(s.key)
	case c.Shared:
		e.own--
		wake = t.mark(st, e, c.Strict)
	default:
		if e.own--; e.in != inFlight {
			st.put(e, e.rest())
		}
	}
	st.mu.Unlock()
	if wake {
		c.Waker.Wake()
	}
}

func (t *Table) stripe(key keys.Key) *stripe { return &t.stripes[key.A>>58] }

// locked gives one stripe after the other, each with its lock held.
func (t *Table) locked(yield func(*stripe) bool) {
	for i := range t.stripes {
		st := &t.stripes[i]
		st.mu.Lock()
		more := yield(st)
		st.mu.Unlock()
		if !more {
			return
		}
	}
}

// enter finds the gauge of a key, or makes one; nil where the table is full, or the key has slots
// in cells. The stripe's lock is held, and let go for the time the ID takes: a long key must not
// stop others.
func (t *Table) enter(st *stripe, a *Ask) *entry {
	if e := st.entries[a.Key]; e != nil {
		return e
	}
	if st.cells != nil && st.cells.least(a.Key) > 0 || t.isFull(st) {
		return nil
	}
	st.mu.Unlock()
	id := keys.IDOf(a.Raw)
	st.mu.Lock()
	if e := st.entries[a.Key]; e != nil {
		return e
	}
	if st.cells != nil && st.cells.least(a.Key) > 0 || !t.makeRoom(st) {
		return nil
	}
	e := &entry{key: a.Key, id: id}
	st.entries[a.Key] = e
	st.most = max(st.most, len(st.entries))
	st.put(e, idle)
	return e
}

// isFull reports whether a stripe has no room for a key.
func (t *Table) isFull(st *stripe) bool {
	return t.keys.Load() >= t.maxKeys.Load() && st.lists[idle].first == nil
}

// Overflowing reports whether new keys of some stripe share a gauge.
func (t *Table) Overflowing() (some bool) {
	t.locked(func(st *stripe) bool {
		some = t.isFull(st)
		return !some && t.keys.Load() >= t.maxKeys.Load()
	})
	return some
}

// Keys is how many keys have a gauge of their own.
func (t *Table) Keys() int64 { return t.keys.Load() }

// makeRoom counts one key more. Where that is too many it forgets one that has no slot: of such a
// key nothing is lost but what the others have told.
func (t *Table) makeRoom(st *stripe) bool {
	if t.keys.Add(1) <= t.maxKeys.Load() {
		return true
	}
	if e := st.lists[idle].first; e != nil {
		t.drop(st, e)
		return true
	}
	t.keys.Add(-1)
	return false
}

// drop forgets a gauge.
func (t *Table) drop(st *stripe, e *entry) {
	st.put(e, nowhere)
	delete(st.entries, e.key)
	t.keys.Add(-1)
	if len(st.entries) == 0 && st.most > 1<<10 {
		st.entries, st.most = make(map[keys.Key]*entry), 0 // a map keeps its memory
	}
}

// Sweep forgets the keys that have had no slot for a Lease.
func (t *Table) Sweep(now int64) {
	for i := range t.stripes {
		st := &t.stripes[i]
		for more := true; more; {
			st.mu.Lock()
			more = t.sweep(st, now)
			st.mu.Unlock()
		}
	}
}

// sweep looks at a few keys. It reports whether there are more.
func (t *Table) sweep(st *stripe, now int64) bool {
	for range 128 {
		e := st.lists[idle].first
		if e == nil || now-e.asked < int64(Lease) {
			return false
		}
		t.drop(st, e)
	}
	return true
}
