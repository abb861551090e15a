// Package table holds the counters of one limit: a state per key, in stripes with a lock each. It
// bounds how many there are, drops the idle ones, and keeps what has not been sent. It knows the
// algorithms and nothing of Redis or Caddy.
//
// No lock is held over I/O. A request takes its stripe's lock, beyond max_keys then that of a
// shared counter, and below it that of what is reserved or was saved. A walk over all keys holds
// walking, as does a strict request whose answer shows a step of the store's clock; and who takes
// out what is to be sent holds taking.
package table

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

const (
	stripeCount = 64
	// chunkSize is how many slots are allocated together. 30 slots of windows and the allocator's
	// header fill one of its size classes; with 32 an eighth would be lost.
	chunkSize = 30
	// walkBatch is how many slots are gone through under a stripe's lock before it is let go.
	walkBatch = 128
)

// A Table is the counters of one limit. It outlives configurations: limits are passed to Take, so a
// new configuration's applies at once to what is spent.
//
// It is safe for concurrent use.
type Table[S any] struct {
	// What each request reads and little else writes, on one cache line.

	machine algorithms.Machine[S] // of the kind
	// config is what the latest configuration says; requests bring their own limits.
	config atomic.Pointer[SyncConfig]
	// offset is added to the clock of callers: see Clock.
	offset      atomic.Int64
	overflow    atomic.Pointer[Table[S]] // of keys beyond max_keys, nil where there are none
	missedTwice atomic.Uint64
	maxKeys     atomic.Int64
	kind        algorithms.Kind

	stripes [stripeCount]stripe[S]

	keys       atomic.Int64
	overflowed atomic.Int64

	// stepped is when the clock stepped last, by the callers' clock.
	stepped atomic.Int64
	// clocked is set once SetClock has been called.
	clocked atomic.Bool

	// urgent has a bit for each stripe with keys that should not wait for the next sync.
	urgent atomic.Uint64
	// nextStripe is where dequeue goes on, modulo stripeCount.
	nextStripe atomic.Uint32

	// walking lets one walk over all keys at a time. A request takes it only in strict, where an
	// answer shows a step of the store's clock.
	walking sync.Mutex
	// taking is held while TakeUpdates takes updates out, and while resets are applied: what is
	// sent has the stamp that its counts belong to. It is taken after walking.
	taking sync.Mutex

	bucket algorithms.Bucketed[S] // the machine, nil where it has no bucket

	saved savedStore // what an earlier process has counted, until the keys come back

	reservations Reservations // see Settle
	// resets are those that the keys count under, nil where there are none.
	resets atomic.Pointer[reset.Applied]
}

type stripe[S any] struct {
	// What a decision on a key of its own reads, on one cache line.

	mu     sync.Mutex
	index  index
	chunks []*[chunkSize]slot[S]
	clock  Clock

	size     uint32                  // slots used or in free
	hand     uint32                  // where the search for an idle slot goes on
	synced   []*[chunkSize]syncState // as chunks; nil where no slot has been synced
	dirty    []uint32                // since the last cycle began
	urgent   []uint32
	outgoing []uint32 // dirty before the last cycle began, not sent yet
	free     []uint32

	forgiven map[keys.ID]keyReset // see forgive.go

	_ [40]byte // to whole cache lines: the neighbour's lock is on another one
}

// slot is what is kept of one key. The zero key is a slot without one.
type slot[S any] struct {
	key   keys.Key
	state S
	id    keys.ID // last: requests don't read it
}

// entry is a slot with what is known of its syncs, nil where nobody has asked for that yet.
type entry[S any] struct {
	*slot[S]
	*syncState
}

func (s *slot[S]) used() bool { return s.key != keys.Key{} }

// New returns an empty table for at most maxKeys keys of a kind, whose state is S.
func New[S any](kind algorithms.Kind, maxKeys int) *Table[S] {
	return NewOf(kind, algorithms.MachineOf[S](kind), maxKeys)
}

// NewOf is New with the machine of that kind.
func NewOf[S any](kind algorithms.Kind, machine algorithms.Machine[S], maxKeys int) *Table[S] {
	t := &Table[S]{kind: kind, machine: machine}
	t.bucket, _ = t.machine.(algorithms.Bucketed[S])
	t.maxKeys.Store(int64(maxKeys))
	return t
}

// Configure sets what syncs and sweeps go by and the bound on keys. A table that begins to be
// synced sends what it holds.
func (t *Table[S]) Configure(b SyncConfig, maxKeys int) {
	old := t.config.Swap(b.Compile())
	t.maxKeys.Store(int64(maxKeys))
	if b.IsSynced() && !old.IsSynced() {
		t.Resend()
	}
}

// Ask is what a request asks of one key.
type Ask struct {
	Limit  algorithms.Limit // may differ from request to request
	Key    keys.Key
	Raw    []byte          // of which Key is KeyOf; it is not kept
	Now, N int64           // the instant by the caller's clock, and how many units
	Want   algorithms.Want // the waits to work out; of a denial that is Retry in any case
}

// Taken is the decision of a Take, and where it was taken from, to refund it.
type Taken struct {
	algorithms.Decision
	// N is how many units were asked for.
	N int64
	// At is the instant by the table's clock, and clock is how that stood.
	At    int64
	clock Clock
	// Overflow reports that the key has no counter of its own: the table is full. Then At is the
	// caller's clock.
	Overflow bool
	// Unspent reports that a store has decided, and that nothing was spent in this limit.
	Unspent bool
	// reservation numbers what was reserved of which a part may be refunded, 0 for none. Other
	// units were reserved in an epoch, of which these are the lowest bits.
	reservation, reservedEpoch uint32
	// addedBefore is what had been added to a bucket by then, where a store has granted it.
	addedBefore int64
}

// Retried says in the want of a Take that the request has been counted as an attempt before.
const Retried algorithms.Want = 1 << 7

// Take is Decide with the answer as a value.
func (t *Table[S]) Take(l algorithms.Limit, key keys.Key, raw []byte, now, n int64, want algorithms.Want) (taken Taken) {
	t.Decide(&Ask{l, key, raw, now, n, want}, &taken)
	return taken
}

// Decide decides on what a request asks. It keeps neither a nor taken.
func (t *Table[S]) Decide(a *Ask, taken *Taken) {
	st := t.stripe(a.Key)
	st.mu.Lock()
	i, s := st.find(a.Key)
	if s == nil {
		if i, s = t.enter(st, a.Limit, a.Key, a.Raw, a.Now); s == nil {
			st.mu.Unlock()
			t.takeOverflow(a, taken)
			return
		}
	}
	b, n, want := t.config.Load(), a.N, a.Want
	e, unseen, synced := entry[S]{slot: s}, int64(0), b.IsSynced()
	*taken = Taken{N: n, At: st.clock.In(a.Now), clock: st.clock}
	if synced {
		e, unseen = t.observe(st, b, a.Limit, i, taken.At)
	}
	if taken.Result = t.machine.Take(&e.state, a.Limit, taken.At, n, unseen); !taken.Allowed {
		want |= algorithms.WantRetry
	}
	if want != 0 {
		taken.Waits = t.machine.Waits(&e.state, a.Limit, taken.At, n, unseen, want)
	}
	if taken.Estimated {
		taken.Retry = e.Retry(b.Interval, taken.At, taken.Retry)
	}
	switch {
	case want&Reserve == 0 || n == 0:
	case want&InParts != 0 && t.kind.Traits().Draining:
		t.reserveInParts(a.Limit, a.Key, taken)
	default:
		t.reserve(a.Limit, a.Key, taken, t.machine.Ledger(&e.state).Epoch)
	}
	attempts := min(n, 1)
	if want&Retried != 0 {
		attempts = 0
	}
	wake := synced && t.noteAttempts(st, b, e, i, taken, a.Limit, attempts)
	st.mu.Unlock()
	if wake {
		b.Waker.Wake()
	}
}

// Refund returns n units of an allowed Take, which asked for as many. It counts as no attempt
// either.
func (t *Table[S]) Refund(l algorithms.Limit, key keys.Key, taken Taken, n int64) {
	t, key = t.of(key, &taken)
	t.correct(key, taken, func(s *S, at int64) {
		t.machine.Refund(s, l, at, n)
		ledger := t.machine.Ledger(s)
		ledger.Attempts -= min(1, ledger.Attempts)
	})
}

// Penalize spends n units of a key whose request was denied.
func (t *Table[S]) Penalize(l algorithms.Limit, key keys.Key, taken Taken, n int64) {
	t, key = t.of(key, &taken)
	t.correct(key, taken, func(s *S, at int64) { t.machine.Penalize(s, l, at, n) })
}

// Leave frees the n places in a queue of a client that went away at now while it waited. It does
// nothing for kinds without a queue.
func (t *Table[S]) Leave(l algorithms.Limit, key keys.Key, taken Taken, now, n int64) {
	queue, ok := t.machine.(algorithms.Leaver[S])
	if !ok {
		return
	}
	t, key = t.of(key, &taken)
	waited := taken.clock.In(now) - taken.At
	t.correct(key, taken, func(s *S, at int64) { queue.Leave(s, l, at, at+waited, n, taken.Delay) })
}

// With gives f the state of a key under its stripe's lock, if the table holds it. f must be quick.
func (t *Table[S]) With(key keys.Key, f func(*S)) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if ok {
		f(&st.slot(i).state)
	}
}

// Keys is how many keys have a counter of their own; Overflowed is how many decisions were made
// without one.
func (t *Table[S]) Keys() int         { return int(t.keys.Load()) }
func (t *Table[S]) Overflowed() int64 { return t.overflowed.Load() }

func (t *Table[S]) stripe(key keys.Key) *stripe[S] { return &t.stripes[key.A>>58] }

// lock locks the stripe of a key, and finds the key if the table holds it.
func (t *Table[S]) lock(key keys.Key) (st *stripe[S], i uint32, ok bool) {
	st = t.stripe(key)
	st.mu.Lock()
	i, s := st.find(key)
	return st, i, s != nil
}

// lockOrEnter is lock for a key that gets a slot if it has none; ok is false where the table is
// full, or raw is nil.
func (t *Table[S]) lockOrEnter(l algorithms.Limit, key keys.Key, raw []byte, now int64) (st *stripe[S], i uint32, ok bool) {
	if st, i, ok = t.lock(key); ok || raw == nil {
		return st, i, ok
	}
	i, s := t.enter(st, l, key, raw, now)
	return st, i, s != nil
}

// find looks a key up; the slot is nil where it has none. The stripe's lock is held, as for all
// methods of a stripe.
func (st *stripe[S]) find(key keys.Key) (i uint32, s *slot[S]) {
	tag := tagOf(key)
	for i, at, ok := st.index.Seek(tag, tag); ok; i, at, ok = st.index.Seek(tag, at) {
		if s = st.slot(i); s.key == key {
			return i, s
		}
	}
	return 0, nil
}

func (st *stripe[S]) slot(i uint32) *slot[S] { return &st.chunks[i/chunkSize][i%chunkSize] }

// at returns a slot and its syncs, if it has had any.
func (st *stripe[S]) at(i uint32) entry[S] {
	e := entry[S]{slot: st.slot(i)}
	if x := st.synced[i/chunkSize]; x != nil {
		e.syncState = &x[i%chunkSize]
	}
	return e
}

// enter gives a new key a counter, unless the table is full. now is the caller's clock. The
// stripe's lock is held, and let go for the time the ID takes: a long key must not stop others.
// nil means full.
func (t *Table[S]) enter(st *stripe[S], l algorithms.Limit, key keys.Key, raw []byte, now int64) (uint32, *slot[S]) {
	if t.keys.Load() >= t.maxKeys.Load() && !t.reclaim(st, l, now) {
		return 0, nil
	}
	st.mu.Unlock()
	id := keys.IDOf(raw)
	st.mu.Lock()
	if i, s := st.find(key); s != nil {
		return i, s
	}
	if t.keys.Add(1) > t.maxKeys.Load() {
		t.keys.Add(-1)
		return 0, nil
	}
	i := st.allocate()
	e := st.at(i)
	*e.slot = slot[S]{key: key, id: id}
	at := st.clock.In(now)
	t.restore(&e.state, l, at, t.saved.Take(id, l, at))
	st.index.Add(tagOf(key), i)
	return i, e.slot
}

// allocate returns an unused slot.
func (st *stripe[S]) allocate() uint32 {
	if n := len(st.free); n > 0 {
		i := st.free[n-1]
		st.free = st.free[:n-1]
		return i
	}
	if int(st.size) == len(st.chunks)*chunkSize {
		st.chunks = append(st.chunks, new([chunkSize]slot[S]))
		st.synced = append(st.synced, nil)
	}
	st.size++
	return st.size - 1
}

// drop forgets an entry.
func (t *Table[S]) drop(st *stripe[S], i uint32) {
	e := st.at(i)
	st.index.Remove(tagOf(e.key), i)
	delete(st.forgiven, e.id)
	*e.slot = slot[S]{}
	if e.syncState != nil {
		// the slot may still stand in a list
		*e.syncState = syncState{flags: e.flags & (dirty | urgent)}
	}
	st.free = append(st.free, i)
	t.keys.Add(-1)
}

// reclaim looks at a few entries of a full table for one that is idle. Live counters are never
// evicted: that would be a bypass.
func (t *Table[S]) reclaim(st *stripe[S], l algorithms.Limit, now int64) (ok bool) {
	if st.hand, ok = t.idle(st, l, now); ok {
		t.drop(st, st.hand)
	}
	return ok
}

// idle looks at a few entries, and returns the last one of them: one that is idle where ok is set.
func (t *Table[S]) idle(st *stripe[S], l algorithms.Limit, now int64) (hand uint32, ok bool) {
	at, hand := st.clock.In(now), st.hand
	for range min(st.size, 8) {
		hand = (hand + 1) % st.size
		if e := st.at(hand); e.used() && t.isIdle(st, e, l, at) {
			return hand, true
		}
	}
	return hand, false
}

// isIdle reports whether a key can be dropped at now: not while it waits for an answer of the
// store, nor for a response, whose cost may have to be charged to it, nor while it is forgiven.
func (t *Table[S]) isIdle(st *stripe[S], e entry[S], l algorithms.Limit, at int64) bool {
	return !e.isInFlight() && t.machine.Idle(&e.state, l, at) && t.reservations.isEmpty(e.key) && st.forgiven[e.id].Until <= at
}

// correct has f change the state of a key after a Take, at being the instant of that Take by the
// table's clock as it is now. The key becomes dirty: the store may have been sent what is now
// refunded, and perhaps no other request ever comes to make it dirty.
func (t *Table[S]) correct(key keys.Key, taken Taken, f func(s *S, at int64)) {
	b := t.config.Load()
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok || t.wasReset(st, st.slot(i).id, taken) {
		return
	}
	f(&st.slot(i).state, st.since(taken))
	if b.IsSynced() {
		t.changed(st, b, t.withSyncState(st, i), i)
	}
}

// Room returns how many units of a key are left at now, and spends none. A key that was never seen
// gets a slot; ok is false where the table is full and has none. raw is the bytes of which key is
// KeyOf; it is not kept.
func (t *Table[S]) Room(l algorithms.Limit, key keys.Key, raw []byte, now int64) (left int64, ok bool) {
	st, i, ok := t.lockOrEnter(l, key, raw, now)
	defer st.mu.Unlock()
	if !ok {
		return 0, false
	}
	return t.machine.Take(&st.slot(i).state, l, st.clock.In(now), 0, 0).Remaining, true
}

// Wait returns how long it takes until a key has room for n units, as far as its counts tell; 0
// where it has, or would if all that is reserved were refunded, or where the table doesn't hold the
// key.
func (t *Table[S]) Wait(l algorithms.Limit, key keys.Key, now, n int64) time.Duration {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return 0
	}
	state, at := &st.slot(i).state, st.clock.In(now)
	if t.machine.Take(state, l, at, 0, 0).Remaining >= n {
		return 0
	}
	if !t.reservations.isEmpty(key) && t.admitsReleased(state, reservedAsk{Limit: l, Key: key, Now: now, At: at, N: n}) {
		return 0
	}
	return t.machine.Waits(state, l, at, n, 0, algorithms.WantRetry).Retry
}
