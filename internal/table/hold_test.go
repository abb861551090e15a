package table

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// runs is a machine that counts the keys it is asked about in a row that are in one stripe. Whoever
// takes a stripe's lock for more of them at once, or again as soon as it has let it go, has a
// longer row.
type runs struct {
	algorithms.Machine[algorithms.WindowState]
	*tally
}

type tally struct {
	stripes map[*algorithms.WindowState]int
	last    *algorithms.WindowState
	stripe  int
	row     int
	longest int
}

func (r *tally) note(s *algorithms.WindowState) {
	stripe, ok := r.stripes[s]
	if !ok || s == r.last {
		return
	}
	if r.last = s; stripe != r.stripe {
		r.stripe, r.row = stripe, 0
	}
	r.row++
	r.longest = max(r.longest, r.row)
}

func (r runs) Advance(s *algorithms.WindowState, l algorithms.Limit, now int64) {
	r.note(s)
	r.Machine.Advance(s, l, now)
}
func (r runs) Idle(s *algorithms.WindowState, l algorithms.Limit, now int64) bool {
	r.note(s)
	return r.Machine.Idle(s, l, now)
}
func (r runs) Shift(s *algorithms.WindowState, l algorithms.Limit, now int64, by time.Duration) {
	r.note(s)
	r.Machine.Shift(s, l, now, by)
}
func (r runs) Ledger(s *algorithms.WindowState) *algorithms.Ledger {
	r.note(s)
	return r.Machine.Ledger(s)
}

// even is a table with as many keys in every stripe: where one has more than the others, it is
// rightly alone in the end.
func even(each int, alg algorithms.Params) *windows {
	t := newTable(2*million, alg)
	var full int
	for i := 0; full < stripeCount; i++ {
		if st := t.stripe(keys.KeyOf(raw(i))); st.index.Len() < each {
			if take(t, alg, i, t0); st.index.Len() == each {
				full++
			}
		}
	}
	return t
}

// Whatever goes over all keys goes over a few of a stripe and lets its lock go for as long as it
// takes to go to the others.
func TestNoStripeIsHeldForManyKeys(t *testing.T) {
	const each = 1500 // more than ten times as many as may be looked at in a row
	rows := &tally{stripes: make(map[*algorithms.WindowState]int)}
	alg := sliding(1000, time.Hour)
	tab := even(each, alg)
	tab.machine = runs{window, rows}
	for s := range tab.stripes {
		st := &tab.stripes[s]
		for i := range st.size {
			rows.stripes[&st.slot(i).state] = s
		}
	}
	synced := SyncConfig{Params: alg, Interval: time.Second}
	late := t0 + int64(24*time.Hour)
	for _, work := range []struct {
		name string
		do   func()
	}{
		{"a reload that begins to sync", func() { tab.Configure(synced, 2*million) }},
		{"draining", func() {
			tab.MakeOutgoing()
			var all []Update
			for more := []Update{{}}; len(more) > 0; {
				more = tab.TakeUpdates(t0, 1, 1000, false, nil)
				all = append(all, more...)
			}
			tab.Unanswered(all)
		}},
		{"sending all again", tab.Resend},
		{"adopting another store", tab.ResetAcks},
		{"a step of the clock", func() { tab.setOffset(t0, time.Second, true) }},
		{"totals", func() { tab.Totals(t0) }},
		{"saving", func() { tab.Save(t0) }},
		{"what was spent", func() {
			tab.EachSpend(t0, func(s Spend) {
				if tab.stripe(s.Key).mu.TryLock() {
					t.Fatal("a stripe is read without its lock")
				}
			})
		}},
		{"resuming", func() { tab.Resume(alg, t0, SavedCounts{keys.ID{}: nil}) }},
		{"a sweep that finds nothing", func() { tab.Sweep(t0) }},
		{"a sweep that drops all", func() { tab.Sweep(late) }},
	} {
		rows.longest, rows.row, rows.last = 0, 0, nil
		work.do()
		most := walkBatch
		if work.name == "a step of the clock" {
			most = int(tab.stripes[0].size) // all keys of a stripe go by one clock
		}
		if rows.longest > most {
			t.Errorf("%s looks at %d keys of a stripe in a row, want at most %d", work.name, rows.longest, most)
		}
		if rows.longest == 0 && work.name != "resuming" {
			t.Errorf("%s looks at no key", work.name)
		}
	}
	if got := tab.Keys(); got != 0 {
		t.Errorf("Keys() = %d after all were dropped", got)
	}
}

// A list may name many slots that have gone, of which no message comes.
func TestDrainingLooksAtFewPlacesThatHaveGone(t *testing.T) {
	tab := newTable(10, hour)
	st := &tab.stripes[0]
	st.outgoing = make([]uint32, 10*walkBatch)
	if tab.dequeueFrom(st, &st.outgoing, dirty, tab.config.Load(), t0, million, nil); len(st.outgoing) != 9*walkBatch {
		t.Errorf("%d of %d slots are left after one hold, want %d", len(st.outgoing), 10*walkBatch, 9*walkBatch)
	}
}

// A mover is a table that is synced with a store while its keys are moved, and what both should
// hold.
type mover struct {
	*windows
	alg    algorithms.Params
	random *rand.Rand
	now    int64
	want   map[keys.Key]int64
	store  map[keys.Key]int64
	seq    int64
	// rejects is set where the store can't do some messages.
	rejects bool
}

// requests come for some of the keys, and a sync may be begun or go on.
func (m *mover) requests(keyCount, n int) {
	for range n {
		i := m.random.IntN(keyCount)
		if take(m.windows, m.alg, i, m.now).Allowed {
			m.want[keys.KeyOf(raw(i))]++
		}
	}
	if m.random.IntN(4) == 0 {
		m.MakeOutgoing()
	}
	if m.random.IntN(2) == 0 {
		m.sync(m.random.IntN(40), m.random.IntN(3) == 0)
	}
}

func (m *mover) sync(most int, urgent bool) int {
	m.seq++
	updates := m.TakeUpdates(m.now, m.seq, most, urgent, nil)
	heard := make([]cell.Reply, len(updates))
	for i := range updates {
		h, state, before := &heard[i], &updates[i].State, m.store[updates[i].Key]
		h.Previous = cell.State{Seq: m.seq - 1, Epoch: state.Epoch, Totals: []int64{before}}
		if state.Epoch != m.now/int64(m.alg.Window) || m.rejects && m.random.IntN(9) == 0 {
			h.Err = "WRONGTYPE"
			continue
		}
		h.Sum = cell.Sum{Epoch: state.Epoch, Totals: state.Totals}
		m.store[updates[i].Key] = state.At(state.Epoch)
	}
	m.Merge(m.now, m.now, updates, heard)
	return len(updates)
}

// Moving keys while requests and syncs go on loses none of them, no count, and nothing that is to
// be sent; and each step moves few.
func TestMovingKeysLosesNothing(t *testing.T) {
	for round := range uint64(30) {
		m := &mover{
			windows: New[algorithms.WindowState](algorithms.SlidingWindow, million), alg: fixed(1<<30, time.Hour), now: t0,
			random: rand.New(rand.NewPCG(round, 1)), want: make(map[keys.Key]int64), store: make(map[keys.Key]int64),
		}
		b := SyncConfig{Params: m.alg, Interval: time.Second, Early: round%2 == 0, Waker: cycle.NewWaker()}
		m.rejects = true
		m.Configure(b, million)
		for i := range 20_000 {
			take(m.windows, m.alg, i, m.now)
		}
		for range 100 {
			m.requests(20_000, 5)
		}
		m.now += int64(3 * time.Hour)
		clear(m.want)
		clear(m.store)
		for range 30 {
			m.requests(1+m.random.IntN(2000), 20)
		}
		m.each(func(st *stripe[algorithms.WindowState], i uint32, e entry[algorithms.WindowState]) {
			if window.Idle(&e.state, m.alg.Compile(), m.now) {
				m.drop(st, i)
			}
		})
		moved := m.moveAll(t)
		if moved == 0 {
			t.Fatalf("round %d: nothing was moved", round)
		}
		m.check(t)
	}
}

// moveAll moves the keys of all stripes, with requests after each step, and returns how many slots
// were refunded.
func (m *mover) moveAll(t *testing.T) (moved int) {
	for s := range m.stripes {
		st := &m.stripes[s]
		if !st.sparse() {
			continue
		}
		for at := new(move); !at.ends; {
			next, size := at.next, st.size
			m.move(st, at)
			if looked := at.next - next + size - st.size; looked > 2*walkBatch {
				t.Fatalf("one step passes %d slots, want at most %d", looked, 2*walkBatch)
			}
			moved += int(size - st.size)
			m.requests(3000, 10)
			m.forget(st)
		}
	}
	return moved
}

// forget drops a key, as requests do that need its slot in a full table.
func (m *mover) forget(st *stripe[algorithms.WindowState]) {
	if st.size == 0 {
		return
	}
	i := m.random.Uint32N(st.size)
	if e := st.at(i); e.used() && !e.isInFlight() {
		delete(m.want, e.key)
		delete(m.store, e.key)
		m.drop(st, i)
	}
}

// check holds the table to what it should be, and sends the rest.
func (m *mover) check(t *testing.T) {
	t.Helper()
	for s := range m.stripes {
		st := &m.stripes[s]
		free := make(map[uint32]bool)
		for _, i := range st.free {
			if free[i] || i >= st.size || st.slot(i).key != (keys.Key{}) {
				t.Fatalf("slot %d is in the list of free ones twice, or behind the end, or has a key", i)
			}
			free[i] = true
		}
		if st.index.Len()+len(free) != int(st.size) {
			t.Fatalf("%d keys and %d free slots are %d slots", st.index.Len(), len(free), st.size)
		}
	}
	m.rejects = false
	for range 3 { // what is under way when its turn comes has another one
		m.MakeOutgoing()
		for m.sync(1000, false) > 0 {
		}
	}
	// of keys that were only asked about
	maps.DeleteFunc(m.store, func(_ keys.Key, total int64) bool { return total == 0 })
	if !maps.Equal(m.store, m.want) {
		missing := slices.Collect(maps.Keys(m.want))
		missing = slices.DeleteFunc(missing, func(k keys.Key) bool { return m.store[k] == m.want[k] })
		t.Fatalf("%d of %d keys are not in the store as they were counted", len(missing), len(m.want))
	}
	for key, want := range m.want {
		got := int64(-1)
		m.With(key, func(s *algorithms.WindowState) {
			c, _ := window.Ledger(s).At(m.now / int64(m.alg.Window))
			got = c.Own
		})
		if got != want {
			t.Fatalf("a key counts %d, want %d", got, want)
		}
	}
}

// What is refunded of a request whose key was reset since stands above none that came after.
func TestARefundOfBeforeAResetStandsAboveNothing(t *testing.T) {
	var u Reservations
	key := keys.KeyOf(raw(1))
	before := u.FindOne(key, u.AddOne(key, 5, 0, t0+int64(time.Hour), 10, int64(time.Hour)))
	u.Drop(key)
	since := u.FindOne(key, u.AddOne(key, 5, 0, t0+int64(time.Hour), 10, int64(time.Hour)))
	u.ExpireSooner(key, before, 5)
	if _, refunded := u.Undrained(key, since, t0); refunded != 0 {
		t.Errorf("%d are taken for refunded above it", refunded)
	}
	later := u.FindOne(key, u.AddOne(key, 5, 0, t0+int64(time.Hour), 10, int64(time.Hour)))
	u.ExpireSooner(key, later, 3)
	if _, refunded := u.Undrained(key, since, t0); refunded != 3 {
		t.Errorf("%d are taken for refunded above it, want 3", refunded)
	}
}
