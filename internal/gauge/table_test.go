package gauge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const at = int64(1_795_000_000_000_000_000)

func askAt(key string, now, limit, alone int64) *Ask {
	return &Ask{Key: keys.KeyOf([]byte(key)), Raw: []byte(key), Now: now, Limit: limit, Alone: alone}
}

// shared has a table sync with two other nodes.
func shared(t *Table) *Table {
	t.Configure(Config{Shared: true, Early: true, Nodes: func() int64 { return 3 }, Waker: cycle.NewWaker()}, int(t.maxKeys.Load()))
	return t
}

// A model is a table and the slots that it has given out, and what Redis has of it.
type model struct {
	*rapid.T
	table    *Table
	now      int64
	slots    map[string][]Slot
	total    int64
	underWay []Message
	waiting  map[*Waiter]string
	redis    map[keys.ID]int64
}

// modelKeys are some of one stripe, and some of others.
var modelKeys = func() []string {
	all := []string{"a", "b", "c"}
	for i := 0; len(all) < 6; i++ {
		if k := fmt.Sprint("a", i); keys.KeyOf([]byte(k)).A>>58 == keys.KeyOf([]byte("a")).A>>58 {
			all = append(all, k)
		}
	}
	return all
}()

// take takes a slot, and checks that the table gives one where it must and none where it must not.
func (m *model) take(key string, limit int64) {
	alone := rapid.SampledFrom([]int64{limit, (limit + 2) / 3}).Draw(m.T, "alone")
	peek := m.table.Peek(askAt(key, m.now, limit, alone))
	slot, s := m.table.Take(askAt(key, m.now, limit, alone))
	if peek.Allowed != s.Allowed {
		m.Fatalf("%s: peeked %+v, taken %+v", key, peek, s)
	}
	has := int64(len(m.slots[key]))
	if s.Allowed && has >= limit || !s.Allowed && !s.Overflow && has < alone {
		m.Fatalf("%s has %d of %d, and got %+v", key, has, limit, s)
	}
	if s.Allowed {
		m.slots[key] = append(m.slots[key], slot)
		m.total++
	}
}

// free gives a slot back.
func (m *model) free(key string) {
	if all := m.slots[key]; len(all) > 0 {
		all[0].Free()
		m.slots[key] = all[1:]
		m.total--
	}
}

// wait has a request wait for Redis to decide.
func (m *model) wait(key string, limit int64) {
	w, next, slot, s := m.table.Join(askAt(key, m.now, limit, limit))
	switch {
	case w != nil:
		m.waiting[w] = key
	case s.Allowed:
		m.slots[key] = append(m.slots[key], slot)
		m.total++
	}
	if next.entry != nil {
		m.underWay = append(m.underWay, next)
	}
}

// land ends the messages that are on their way, with an answer or without one, which may have
// arrived all the same.
func (m *model) land(wellOnly bool) {
	for len(m.underWay) > 0 {
		i := rapid.IntRange(0, len(m.underWay)-1).Draw(m.T, "message")
		sent := m.underWay[i]
		m.underWay = slices.Delete(m.underWay, i, i+1)
		fate := 2
		if !wellOnly {
			fate = rapid.IntRange(0, 3).Draw(m.T, "fate")
		}
		var answer Answer
		if fate > 0 && !sent.Ask {
			answer.Granted = min(sent.Wanted, max(0, sent.Limit-sent.Own))
			m.redis[sent.ID] = sent.Own + answer.Granted
		}
		if fate < 2 {
			m.table.Fail(&sent, errLost)
		} else if next, more := m.table.Ack(&sent, answer); more {
			m.underWay = append(m.underWay, next)
		}
		for w, key := range m.waiting {
			select {
			case <-w.Done:
				if w.Err == nil && w.State.Allowed {
					m.slots[key] = append(m.slots[key], w.Slot)
					m.total++
				}
				delete(m.waiting, w)
			default:
			}
		}
	}
}

var errLost = errors.New("the message is lost")

// synced syncs until there is nothing to send, and checks that Redis has what this node has given
// out, and that what is above 0 is repeated in time.
func (m *model) synced() {
	m.land(true)
	m.now += int64(Refresh)
	repeated := make(map[keys.ID]bool)
	for m.table.MakeOutgoing(m.now) {
		m.underWay = m.table.Drain(m.now, true, 100, nil)
		for i := range m.underWay {
			repeated[m.underWay[i].ID] = true
		}
		m.land(true)
	}
	if len(m.waiting) > 0 || m.table.Unsent() != 0 {
		m.Fatalf("%d requests wait, and %d keys are unsent", len(m.waiting), m.table.Unsent())
	}
	m.table.Each(m.now, func(g Gauge) {
		if m.redis[g.ID] != g.Own || g.Own > 0 && !repeated[g.ID] {
			m.Fatalf("redis has %d of %d slots, and was told just now: %v", m.redis[g.ID], g.Own, repeated[g.ID])
		}
		delete(m.redis, g.ID)
	})
	for id, n := range m.redis {
		if n > 0 {
			m.Fatalf("redis has %d slots of %x, of which the node has none", n, id)
		}
	}
}

// empty gives all back, and checks that nothing is left.
func (m *model) empty(syncs bool) {
	if syncs {
		m.synced()
	}
	for key := range m.slots {
		for len(m.slots[key]) > 0 {
			m.free(key)
		}
	}
	if syncs {
		m.synced()
	}
	m.table.Sweep(m.now + int64(Lease))
	if n, keys := m.table.InUse(), m.table.keys.Load(); n != 0 || keys != 0 || m.table.Unsent() != 0 {
		m.Fatalf("%d slots and %d keys are left, %d unsent", n, keys, m.table.Unsent())
	}
	for i := range m.table.stripes {
		if st := &m.table.stripes[i]; st.cells != nil || len(st.entries) > 0 || st.lists != [lists]list{} {
			m.Fatalf("stripe %d is not empty", i)
		}
	}
}

// Whatever comes in whatever order, and however few keys have a gauge of their own: no key gets
// more slots than the limit of that moment, one with a gauge of its own gets all of them, and when
// all are free again nothing is left.
func TestGaugesCountWhatIsTaken(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tab := New(rapid.SampledFrom([]int{1, 3, 1000}).Draw(rt, "max_keys"))
		syncs := rapid.Bool().Draw(rt, "synced")
		if syncs {
			shared(tab)
		}
		m := &model{T: rt, table: tab, now: at, slots: map[string][]Slot{}, waiting: map[*Waiter]string{}, redis: map[keys.ID]int64{}}
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			key := rapid.SampledFrom(modelKeys).Draw(rt, "key")
			switch what := rapid.IntRange(0, 11).Draw(rt, "what"); {
			case what < 5:
				m.take(key, rapid.Int64Range(1, 3).Draw(rt, "limit"))
			case what < 8:
				m.free(key)
			case what < 9 && syncs:
				m.land(false)
				tab.MakeOutgoing(m.now)
				m.underWay = tab.Drain(m.now, true, rapid.IntRange(1, 10).Draw(rt, "most"), nil)
			case what < 11 && syncs:
				m.wait(key, rapid.Int64Range(1, 3).Draw(rt, "limit"))
			default:
				tab.Sweep(m.now)
				m.now += int64(rapid.SampledFrom([]time.Duration{0, time.Second, 11 * time.Second}).Draw(rt, "pause"))
			}
			if n := tab.InUse(); n != m.total {
				rt.Fatalf("%d slots are in use, want %d", n, m.total)
			}
		}
		m.empty(syncs)
	})
}

// Requests of all processors at once get no more slots than there are, of keys with and without a
// gauge of their own.
func TestGaugesUnderLoad(t *testing.T) {
	const limit = 3
	tab := shared(New(4))
	var inUse [10]atomic.Int64
	var wg, load sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			tab.MakeOutgoing(at)
			for _, m := range tab.Drain(at, true, 3, nil) {
				if rand.IntN(4) == 0 {
					tab.Fail(&m, nil)
				} else {
					tab.Ack(&m, Answer{})
				}
			}
			tab.Sweep(at + int64(Lease))
		}
	})
	for i := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		load.Go(func() {
			for range 5000 {
				k := random.IntN(len(inUse))
				slot, s := tab.Take(askAt(fmt.Sprint(k), at, limit, limit))
				if !s.Allowed {
					continue
				}
				if n := inUse[k].Add(1); n > limit {
					t.Errorf("key %d has %d slots", k, n)
				}
				inUse[k].Add(-1)
				slot.Free()
			}
		})
	}
	load.Wait()
	close(stop)
	wg.Wait()
	if n := tab.InUse(); n != 0 {
		t.Errorf("%d slots are in use, want none", n)
	}
}

// What the others have counts for a lease from when they were asked for. After that this node has
// all of the limit, or its part of it.
func TestOthersCountForALease(t *testing.T) {
	tab := shared(New(10))
	slot, _ := tab.Take(askAt("k", at, 4, 4))
	m := tab.Drain(at, false, 10, nil)
	tab.Ack(&m[0], Answer{Others: 3})
	almost := at + int64(Lease) - 1
	if _, s := tab.Take(askAt("k", almost, 4, 2)); s.Allowed || s.Others != 3 {
		t.Errorf("just before the end of the lease: %+v", s)
	}
	if _, s := tab.Take(askAt("k", almost+1, 4, 2)); !s.Allowed || s.Bound != 2 || s.Own != 2 {
		t.Errorf("after it: %+v, want the second of 2", s)
	}
	if _, s := tab.Take(askAt("k", almost+1, 4, 2)); s.Allowed {
		t.Errorf("then: %+v, want to be denied", s)
	}
	slot.Free()
}

// A key that nobody has heard of is sent at once, and one that changes is not sent before the next
// cycle unless the nodes may give out too many.
func TestWhatIsUrgent(t *testing.T) {
	tab := shared(New(10))
	take := func() bool {
		tab.Take(askAt("k", at, 100, 100))
		return tab.Urgent()
	}
	land := func(others int64) {
		for _, m := range tab.Drain(at, false, 10, nil) {
			tab.Ack(&m, Answer{Others: others})
		}
	}
	if !take() {
		t.Error("a key that nobody has heard of is not urgent")
	}
	land(9) // of 100, 90 are left for three nodes
	for i := range 29 {
		if take() {
			t.Fatalf("urgent after %d of 30", i+1)
		}
	}
	if !take() {
		t.Error("not urgent where three nodes like this one may have given out all")
	}
	land(9)
	if tab.Urgent() {
		t.Error("still urgent when it is sent")
	}
}

func TestTakingAllocatesNothing(t *testing.T) {
	for name, tab := range map[string]*Table{"local": New(10), "synced": shared(New(10)), "overflow": New(0)} {
		raw, key := []byte("k"), keys.KeyOf([]byte("k"))
		hold, _ := tab.Take(askAt("k", at, 4, 4))
		if n := testing.AllocsPerRun(100, func() {
			a := Ask{Key: key, Raw: raw, Now: at, Limit: 4, Alone: 4}
			slot, _ := tab.Take(&a)
			slot.Free()
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		hold.Free()
	}
}

// While Redis does not answer, requests take slots from this node. What it has granted in the
// meantime goes back as far as there is no room for it any more.
func TestWhatIsGrantedTooLateGoesBack(t *testing.T) {
	for _, test := range []struct{ taken, others, want int64 }{{0, 0, 2}, {1, 0, 1}, {2, 0, 0}, {1, 1, 0}} {
		tab := shared(New(10))
		ask := askAt("k", at, 2, 2)
		first, m, _, _ := tab.Join(ask)
		tab.Ack(&m, Answer{})
		if first.State.Allowed {
			t.Fatal("a slot that was not granted was given out")
		}
		// Two requests share a call, as one is on its way.
		_, m, _, _ = tab.Join(ask)
		waiting := []*Waiter{}
		for range 2 {
			w, _, _, _ := tab.Join(ask)
			waiting = append(waiting, w)
		}
		next, more := tab.Ack(&m, Answer{})
		if !more || next.Wanted != 2 {
			t.Fatalf("the next call asks for %d, want 2", next.Wanted)
		}
		for range test.taken {
			if _, s := tab.Take(ask); !s.Allowed {
				t.Fatal("a slot that is free was not given out")
			}
		}
		tab.Ack(&next, Answer{Others: test.others, Granted: 2 - test.others})
		granted := int64(0)
		for _, w := range waiting {
			if <-w.Done; w.State.Allowed {
				granted++
			}
		}
		if in := tab.InUse(); granted != test.want || in != test.taken+granted {
			t.Errorf("%+v: %d of them got a slot, %d are in use, want %d and %d", test, granted, in, test.want, test.taken+test.want)
		}
		if back := tab.Urgent(); back != (granted < 2-test.others) {
			t.Errorf("%+v: Redis is told at once: %t", test, back)
		}
	}
}

// strict makes a table one of which Redis decides, and returns what wakes its sync.
func strict(tab *Table) (*Table, cycle.Waker) {
	tab = shared(tab)
	c := *tab.config.Load()
	c.Strict, c.Waker = true, cycle.NewWaker()
	tab.Configure(c, 10)
	return tab, c.Waker
}

// woken reports whether a sync was asked for.
func woken(w cycle.Waker) bool {
	select {
	case <-w:
		return true
	default:
		return false
	}
}

// A request whose client goes away as it is granted gives its slot back, and the sync is woken to
// tell Redis, as by any slot that becomes free in strict.
func TestWhoLeavesAsHeIsGrantedWakesTheSync(t *testing.T) {
	tab, waker := strict(New(10))
	ask := askAt("k", at, 2, 2)
	w, m, _, _ := tab.Join(ask)
	tab.Ack(&m, Answer{Granted: 1})
	if <-w.Done; !w.State.Allowed {
		t.Fatal("the slot was not granted")
	}
	for _, m := range tab.Drain(at, false, 10, nil) {
		tab.Ack(&m, Answer{})
	}
	woken(waker)
	if tab.Leave(w, ask); !woken(waker) {
		t.Error("the sync was not woken")
	}
	if n := tab.InUse(); n != 0 {
		t.Errorf("%d slots are in use, want none", n)
	}
}

// What becomes free while a message of its key is on its way is told once that is answered: the
// sync is woken, as no other slot would wake it then.
func TestWhatIsFreeDuringACallWakesTheSync(t *testing.T) {
	tab, waker := strict(New(10))
	ask := askAt("k", at, 2, 2)
	w, m, _, _ := tab.Join(ask)
	tab.Ack(&m, Answer{Granted: 1})
	_, m, _, _ = tab.Join(ask)
	woken(waker)
	w.Slot.Free()
	if tab.Ack(&m, Answer{Granted: 1}); !tab.Urgent() || !woken(waker) {
		t.Error("the sync was not woken")
	}
}

// Nothing is asked for clients that have gone while a call was on its way.
func TestNothingIsAskedForWhoHasGone(t *testing.T) {
	tab := shared(New(10))
	ask := askAt("k", at, 10, 10)
	_, m, _, _ := tab.Join(ask)
	var waiting []*Waiter
	for range 5 {
		w, _, _, _ := tab.Join(ask)
		waiting = append(waiting, w)
	}
	for _, w := range waiting[:4] {
		tab.Leave(w, ask)
	}
	m, more := tab.Ack(&m, Answer{Granted: 1})
	if !more || m.Wanted != 1 {
		t.Fatalf("the next call asks for %d, want 1", m.Wanted)
	}
	w, _, _, _ := tab.Join(ask)
	tab.Leave(w, ask)
	if m, more = tab.Ack(&m, Answer{Granted: 1}); more {
		t.Errorf("one more call asks for %d, and nobody waits", m.Wanted)
	}
	if n := tab.InUse(); n != 2 {
		t.Errorf("%d slots are in use, want 2", n)
	}
}

// A message that a reload has made pointless still belongs to its key, which is no other one's
// then.
func TestAMessageKeepsItsKeyOverAReload(t *testing.T) {
	tab := shared(New(10))
	ask := askAt("k", at, 5, 5)
	slot, _ := tab.Take(ask)
	m := tab.Drain(at, true, 10, nil)[0] // and no answer comes
	tab.Configure(Config{Nodes: func() int64 { return 1 }}, 10)
	slot.Free()
	later := at + 2*int64(Lease)
	tab.Sweep(later)
	tab.Take(askAt("k", later, 5, 5))
	tab.Fail(&m, errors.New("late"))
	tab.Sweep(later + 2*int64(Lease))
	if _, s := tab.Take(askAt("k", later, 5, 5)); s.Own != 2 || tab.InUse() != 2 {
		t.Errorf("the key has %d slots, and %d are in use, want 2", s.Own, tab.InUse())
	}
}
