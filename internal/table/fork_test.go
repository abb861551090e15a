package table

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// The law of a fork: what it decides of a key is what the table decides next, and the table is the
// same before and after. It is asked after requests, syncs, steps of the clock and a restart, for
// keys with a slot and without one, in tables that are full and in others.
func TestAForkDecidesWhatTheTableDecidesNext(t *testing.T) {
	t.Run("windows", func(t *testing.T) {
		forks[algorithms.WindowState](t, algorithms.FixedWindow, algorithms.SlidingWindow)
	})
	t.Run("sub_windows", func(t *testing.T) {
		forks[algorithms.BucketState](t, algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket)
	})
	t.Run("logs", func(t *testing.T) { forks[algorithms.LogState](t, algorithms.SlidingLog) })
}

func forks[S any](t *testing.T, kinds ...algorithms.Kind) {
	denied, admitted, overflowed := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		p := algorithms.Params{
			Kind: rapid.SampledFrom(kinds).Draw(rt, "kind"), Limit: rapid.Int64Range(0, 9).Draw(rt, "limit"), Window: time.Minute,
		}
		switch p.Kind {
		case algorithms.SlidingWindow:
			p.SubWindows = rapid.IntRange(1, 5).Draw(rt, "sub_windows")
		case algorithms.TokenBucket, algorithms.GCRA:
			p.Burst = rapid.Int64Range(1, 9).Draw(rt, "burst")
		case algorithms.LeakyBucket:
			p.Queue = rapid.Int64Range(0, 9).Draw(rt, "queue")
		}
		rate := rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(rt, "rate")
		b := SyncConfig{Params: p, Interval: rate, Early: true, Waker: cycle.NewWaker()}
		m := &forked[S]{Table: of[S](p, 1), limit: p.Compile(), now: t0}
		maxKeys := rapid.IntRange(1, 4).Draw(rt, "max_keys")
		m.Configure(b, maxKeys)
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			m.step(rt, rate > 0)
			name := rapid.StringMatching("[a-f]").Draw(rt, "key")
			raw, n := []byte(name), rapid.Int64Range(0, 2).Draw(rt, "n")
			key := keys.KeyOf(raw)
			before := m.image(key)
			fork := m.Fork(m.limit, key, keys.IDOf(raw), m.now)
			would := fork.Take(m.limit, key, raw, m.now, n, allWaits)
			if after := m.image(key); !reflect.DeepEqual(before, after) {
				rt.Fatalf("%s: the table was\n%+v and is\n%+v", name, before, after)
			}
			m.sameByID(rt, raw, n, would)
			is := m.Take(m.limit, key, raw, m.now, n, allWaits)
			would.reservation, would.reservedEpoch, is.reservation, is.reservedEpoch = 0, 0, 0, 0
			if would != is {
				rt.Fatalf("%s: the fork says\n%+v, the table decides\n%+v", name, would, is)
			}
			if n > 0 && !is.Allowed && rapid.Bool().Draw(rt, "penalized") {
				fork.Penalize(m.limit, key, would, n)
				m.Penalize(m.limit, key, is, n)
				would, is := fork.Take(m.limit, key, raw, m.now, 0, allWaits), m.Take(m.limit, key, raw, m.now, 0, allWaits)
				if would.Decision != is.Decision {
					rt.Fatalf("%s: after a penalty the fork says\n%+v, the table\n%+v", name, would, is)
				}
			}
			switch {
			case is.Overflow:
				overflowed++
			case is.Allowed:
				admitted++
			default:
				denied++
			}
		}
	})
	if denied == 0 || admitted == 0 || overflowed == 0 {
		t.Errorf("%d denied, %d admitted, %d beyond max_keys: not all was compared", denied, admitted, overflowed)
	}
}

type forked[S any] struct {
	*Table[S]
	limit algorithms.Limit
	now   int64
	seq   int64
}

// step lets time pass, and something happen that is no request.
func (m *forked[S]) step(rt *rapid.T, synced bool) {
	m.now += int64(rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, 20 * time.Second, 2 * time.Minute}).Draw(rt, "pause"))
	switch what := rapid.IntRange(0, 5).Draw(rt, "what"); {
	case what == 0:
		m.Sweep(m.now)
	case what == 1 && synced:
		m.sync(rt)
	case what == 2 && synced:
		m.SetClock(m.now, time.Duration(rapid.Int64Range(-1e11, 1e11).Draw(rt, "ahead")), 0)
	case what == 3:
		counts := SavedCounts{}
		for _, name := range []string{"a", "f"} {
			l := algorithms.Report{Epoch: m.epochOf(), Remote: rapid.Int64Range(0, 5).Draw(rt, "saved")}
			counts[keys.IDOf([]byte(name))] = []algorithms.Report{l}
		}
		m.Resume(m.config.Load().Params, m.now, counts)
	}
}

func (m *forked[S]) epochOf() int64 {
	return m.in(m.now) / int64(m.config.Load().Params.Epoch())
}

// sync has the store tell of other nodes.
func (m *forked[S]) sync(rt *rapid.T) {
	m.MakeOutgoing()
	m.seq++
	updates, server := m.TakeUpdates(m.now, m.seq, 100, false, nil), m.in(m.now)
	m.Merge(m.now, server, updates, beside(m.config.Load(), server, updates, rapid.Int64Range(0, 4).Draw(rt, "others")))
}

// image is all of a table that a look at a key could change.
func (m *forked[S]) image(key keys.Key) []any {
	st := m.stripe(key)
	all := []any{m.Keys(), m.Overflowed(), m.Offset(), m.overflow.Load(), m.urgent.Load(), st.size, st.hand, len(st.dirty), len(st.urgent), m.saved.Left()}
	if shared := m.overflow.Load(); shared != nil {
		all = append(all, shared.Keys())
		st := shared.stripe(overflowOf(key))
		if i, s := st.find(overflowOf(key)); s != nil {
			all = append(all, shared.machine.Clone(&st.slot(i).state))
		}
	}
	if i, s := st.find(key); s != nil {
		e := st.at(i)
		all = append(all, m.machine.Clone(&e.state))
		if e.syncState != nil {
			all = append(all, *e.syncState)
		}
	}
	return all
}

// sameByID checks that a key with a slot is found by its ID, or one that was saved on this node,
// and decided the same.
func (m *forked[S]) sameByID(rt *rapid.T, raw []byte, n int64, want Taken) {
	id := keys.IDOf(raw)
	key, ok := m.Find(m.limit, id, m.now)
	_, s := m.stripe(keys.KeyOf(raw)).find(keys.KeyOf(raw))
	if saved := m.saved.Left()[id] != nil; (s != nil || saved) != ok {
		rt.Fatalf("%s: by its ID it is found %t", raw, ok)
	}
	if !ok || s == nil && (m.overflow.Load() != nil || m.Keys() >= int(m.maxKeys.Load())) {
		return // shared counters know no IDs
	}
	got := m.Fork(m.limit, key, id, m.now).Take(m.limit, key, nil, m.now, n, allWaits)
	if got.reservation, got.reservedEpoch = want.reservation, want.reservedEpoch; got != want {
		rt.Fatalf("%s: by its ID\n%+v, by its key\n%+v", raw, got, want)
	}
}

// What waits in a charge is part of what a fork decides by.
func TestAForkHasItsOwnHits(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingLog, Limit: 5, Window: time.Minute}
	table, raw := of[algorithms.LogState](p, 10), []byte("a")
	table.Configure(SyncConfig{Params: p}, 10)
	for i := range 3 {
		table.Take(p.Compile(), keys.KeyOf(raw), raw, t0+int64(i), 1, 0)
	}
	fork := table.Fork(p.Compile(), keys.KeyOf(raw), keys.IDOf(raw), t0+5)
	for range 2 {
		fork.Take(p.Compile(), keys.KeyOf(raw), raw, t0+5, 1, 0)
	}
	if left := table.Take(p.Compile(), keys.KeyOf(raw), raw, t0+5, 0, 0).Remaining; left != 2 {
		t.Error(fmt.Sprint("the table has ", left, " left, want 2"))
	}
}

// A fork knows what is reserved of a bucket, and how fast that drains.
func TestAForkKnowsWhatIsReservedOfABucket(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.GCRA, Limit: 3, Burst: 1, Window: time.Minute}
	table, limit, raw := of[algorithms.BucketState](p, 10), p.Compile(), []byte("a")
	table.Configure(SyncConfig{Params: p}, 10)
	key, id := keys.KeyOf(raw), keys.IDOf(raw)
	if !table.Take(limit, key, raw, t0, 1, reserving|InParts).Allowed {
		t.Fatal("the first request is denied")
	}
	fork := table.Fork(limit, key, id, t0)
	if fork.Take(limit, key, raw, t0, 1, reserving|InParts).Allowed {
		t.Fatal("the fork admits the second request")
	}
	if !table.AdmitsReleased(limit, key, t0, 1) || !fork.AdmitsReleased(limit, key, t0, 1) {
		t.Error("the second request is not admitted once the first is refunded")
	}
}

// What a fork reserves of a bucket is not taken for what was reserved before.
func TestAForkSettlesItsOwn(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 3, Burst: 3, Window: time.Minute}
	table, limit, raw := of[algorithms.BucketState](p, 10), p.Compile(), []byte("a")
	table.Configure(SyncConfig{Params: p}, 10)
	key, id := keys.KeyOf(raw), keys.IDOf(raw)
	before := table.Take(limit, key, raw, t0, 1, reserving|InParts)
	fork := table.Fork(limit, key, id, t0)
	own := fork.Take(limit, key, raw, t0, 1, reserving|InParts)
	fork.Settle(key, fork.ReservationOf(limit, key, own), t0, RolledBack)
	if !before.Allowed || !own.Allowed || own.reservation == before.reservation {
		t.Error("the fork has settled what was reserved before it")
	}
}
