package table

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

var forgivenKey = []byte("alice")

// A forgiver is a node whose requests reserve, and some of which are under way.
type forgiver[S any] struct {
	talker[S]
	open []Reserved
}

// Law: once a key is forgiven and all nodes have synced, what counts is what was taken since and is
// not refunded, on each node and in the store, whatever was under way, lost or late. No total falls
// below zero.
func TestAfterAForgivingOnlyWhatIsTakenSinceCounts(t *testing.T) {
	for _, p := range []algorithms.Params{
		{Kind: algorithms.FixedWindow}, {Kind: algorithms.FixedWindow, Calendar: &algorithms.Calendar{Window: algorithms.Year, Zone: time.UTC, From: 1}}, {Kind: algorithms.SlidingWindow}, {Kind: algorithms.SlidingWindow, SubWindows: 5},
		{Kind: algorithms.SlidingLog}, {Kind: algorithms.TokenBucket}, {Kind: algorithms.GCRA, Burst: 1 << 20},
	} {
		p.Limit, p.Window, p.Reserves = 1<<20, 1000*time.Hour, true
		if p.Calendar != nil {
			p.Window = p.Calendar.Window
		}
		run := algorithms.ByState(p.Kind, forgiveLaw[algorithms.WindowState], forgiveLaw[algorithms.BucketState], forgiveLaw[algorithms.LogState])
		for seed := range uint64(60) {
			t.Run(fmt.Sprint(p.Kind, p.SubWindows, p.Calendar != nil, " ", seed), func(t *testing.T) { run(t, p, seed) })
		}
	}
}

func forgiveLaw[S any](t *testing.T, p algorithms.Params, seed uint64) {
	random, s, now := rand.New(rand.NewPCG(seed, 5)), newStore(), int64(t0)
	l, key := p.Compile(), keys.KeyOf(forgivenKey)
	var nodes []*forgiver[S]
	for i := range 3 {
		n := &forgiver[S]{talker: talker[S]{Table: NewOf(p.Kind, algorithms.MachineBy[S](p.Kind, p.Calendar), 1000), name: fmt.Sprint(i)}}
		n.Configure(SyncConfig{Params: p, Interval: time.Second, Early: seed%2 == 0}, 1000)
		n.SetMissedTwice(^uint64(0))
		nodes = append(nodes, n)
	}
	var late []func()
	exchange := func(n *forgiver[S], faults bool) {
		n.MakeOutgoing()
		updates := n.takeOut(now, false)
		switch fault := random.IntN(6); {
		case !faults || fault > 2:
			n.mergeOne(now, updates, n.deliver(s, now, updates))
		case fault == 0: // the reply is lost
			n.deliver(s, now, updates)
			n.Unanswered(updates)
		case fault == 1: // the message
			n.Unanswered(updates)
		default: // it comes late, or twice
			n.Unanswered(updates)
			late = append(late, func() { n.deliver(s, now, updates) })
		}
	}
	take := func(n *forgiver[S], many int) {
		for range many {
			if d := n.Take(l, key, forgivenKey, now, 1, reserving); d.Allowed {
				n.open = append(n.open, n.ReservationOf(l, key, d))
			}
		}
	}
	settle := func(n *forgiver[S]) (kept int64) {
		if len(n.open) == 0 {
			return 0
		}
		r := n.open[0]
		n.open = n.open[1:]
		kept = int64(random.IntN(2))
		n.Settle(key, r, now, kept)
		return kept
	}
	for range 60 {
		n := nodes[random.IntN(3)]
		now += int64(time.Millisecond)
		switch random.IntN(8) {
		case 0, 1, 2:
			take(n, 1+random.IntN(9))
		case 3, 4:
			settle(n)
		case 5:
			n.ForgiveKey(key, now, now)
		default:
			exchange(n, true)
		}
		if len(late) > 0 && random.IntN(3) == 0 {
			late[0]()
			late = late[1:]
		}
		for _, n := range nodes {
			if sum := n.Totals(now); sum.Own < 0 || sum.Remote < 0 {
				t.Fatalf("node %s has %+v", n.name, sum)
			}
		}
	}
	first := nodes[0]
	take(first, 1)
	first.ForgiveKey(key, now+1, now)
	quiet := func() {
		for range 6 {
			for _, n := range nodes {
				now += int64(time.Millisecond)
				n.Take(l, key, forgivenKey, now, 0, 0)
				n.confirmKey(key)
				exchange(n, false)
			}
		}
	}
	quiet()
	for _, deliver := range late {
		deliver()
	}
	now += int64(time.Millisecond)
	want := int64(0)
	for i, n := range nodes { // the first ones are of before
		before := len(n.open)
		take(n, 3*(i+1))
		for range before {
			settle(n)
		}
		for range i + 1 {
			want += settle(n)
		}
		want += int64(len(n.open))
	}
	quiet()
	for _, n := range nodes {
		if left := n.Take(l, key, forgivenKey, now, 0, 0).Remaining; l.Size-left < want || l.Size-left > want+1 {
			t.Errorf("node %s counts %d in the end, want %d", n.name, l.Size-left, want)
		}
	}
}

// confirmKey makes a key dirty, as a request that asks does.
func (n *forgiver[S]) confirmKey(key keys.Key) {
	st, i, ok := n.lock(key)
	defer st.mu.Unlock()
	if ok {
		st.markDirty(i, n.withSyncState(st, i))
	}
}

// A right login of a key that has spent nothing is no news, once the store has said so.
func TestNothingSpentIsNotForgiven(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 5, Window: time.Hour, Reserves: true}
	n, s, l, key, now := newNode("a", p), newStore(), p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
	n.Configure(SyncConfig{Params: p, Interval: time.Second}, 1000)
	login := func(heard bool) (stamp int64) {
		now += int64(time.Millisecond)
		d := n.Take(l, key, forgivenKey, now, 1, reserving)
		r, since := n.ReservationOf(l, key, d), now
		now += int64(time.Millisecond)
		if heard {
			n.sync(s, now)
		}
		n.Settle(key, r, now, 0)
		n.ForgiveKey(key, since, now)
		st, i, _ := n.lock(key)
		defer st.mu.Unlock()
		return n.resetOf(st, st.slot(i).id, now).Stamp
	}
	if stamp := login(true); stamp != 0 {
		t.Errorf("a key of which nothing is spent is under the stamp %d", stamp)
	}
	if stamp := login(false); stamp == 0 {
		t.Error("a key of which others may have spent something is not forgiven")
	}
	alone := New[algorithms.WindowState](p.Kind, 10)
	alone.Configure(SyncConfig{Params: p}, 10)
	alone.Take(l, key, forgivenKey, now, 0, 0)
	if alone.ForgiveKey(key, now, now); len(alone.stripe(key).forgiven) != 0 {
		t.Error("a table that is not synced forgives nothing")
	}
}

// What was granted for a message of before a forgiving counts no more, and is refunded to nobody.
func TestAGrantOfBeforeAForgiving(t *testing.T) {
	for _, p := range []algorithms.Params{{Kind: algorithms.SlidingWindow}, {Kind: algorithms.FixedWindow}} {
		p.Limit, p.Window, p.Reserves = 100, 1000*time.Hour, true
		tab, l, key, now := New[algorithms.WindowState](p.Kind, 10), p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
		tab.Configure(SyncConfig{Params: p, Interval: time.Second, StoreDecides: true}, 10)
		ask := func(seq int64) *Update {
			m, busy, ok := tab.GrantUpdate(l, key, forgivenKey, now, seq)
			if busy || !ok {
				t.Fatal("the key can't ask")
			}
			return &m
		}
		grant := func(m *Update, total int64) Taken {
			now += int64(time.Millisecond)
			reply := cell.Reply{Previous: m.State, Sum: cell.Sum{Stamp: m.State.Stamp, Epoch: m.State.Epoch, Totals: []int64{total}}}
			reply.Previous.Seq--
			took, _ := tab.GrantAnswered(now, now, m, &reply, []GrantRequest{{Limit: l, N: 1, Want: reserving, Admitted: true}}, nil)
			return took[0]
		}
		first := grant(ask(1), 1)
		tab.ReservationOf(l, key, first)
		m := ask(2)
		now += int64(time.Millisecond)
		tab.ForgiveKey(key, now, now)
		before := tab.ReservationOf(l, key, grant(m, 2))
		var since []Reserved
		for i := range 3 {
			since = append(since, tab.ReservationOf(l, key, grant(ask(int64(i)+3), int64(i)+1)))
		}
		tab.Settle(key, before, now, 0)
		if own := tab.Totals(now).Own; own != 3 {
			t.Errorf("%s: %d are counted, want the 3 since it was forgiven", p.Kind, own)
		}
		for _, r := range since {
			tab.Settle(key, r, now, 0)
		}
		if own := tab.Totals(now).Own; own != 0 {
			t.Errorf("%s: %d are counted, want none", p.Kind, own)
		}
	}
}

// A call that ends unanswered when a reload has ended the sync leaves its key free to be asked for
// by a later one.
func TestAGrantThatEndsAfterTheSync(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 100, Window: 1000 * time.Hour}
	tab, l, key, now := New[algorithms.WindowState](p.Kind, 10), p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
	synced := SyncConfig{Params: p, Interval: time.Second, StoreDecides: true}
	tab.Configure(synced, 10)
	m, _, _ := tab.GrantUpdate(l, key, forgivenKey, now, 1)
	tab.Configure(SyncConfig{Params: p}, 10)
	tab.GrantUnanswered(&m)
	tab.Configure(synced, 10)
	if _, busy, ok := tab.GrantUpdate(l, key, forgivenKey, now, 2); busy || !ok {
		t.Errorf("the key is busy %t, there %t", busy, ok)
	}
}

// What the record says of a reset that a key is under already, or of an earlier one, forgives
// nothing more. A fork is under the same reset, and what is remembered of keys is bounded.
func TestTheRecordAfterAForgiving(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 5, Window: 1000 * time.Hour}
	n, l, key, now := newNode("a", p), p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
	id := keys.IDOf(forgivenKey)
	n.Take(l, key, forgivenKey, now, 5, 0)
	n.ForgiveKey(key, now, now)
	n.Take(l, key, forgivenKey, now+1, 2, 0)
	earlier := now/1000 - 10
	n.Reset(now+2, &reset.Set{All: reset.Reset{Stamp: earlier, At: earlier * 1000, Until: now + int64(time.Hour)}})
	if own := n.Totals(now + 2).Own; own != 2 {
		t.Errorf("an earlier reset of all leaves %d of the 2 requests since", own)
	}
	f := n.Fork(l, key, id, now+2)
	if got, want := f.Resets().Of(id), n.Resets().Of(id); got != want || want.Stamp != now/1000 {
		t.Errorf("a fork is under %+v, the key under %+v", got, want)
	}
	for i := range 5000 {
		raw := fmt.Append(nil, i)
		n.Take(l, keys.KeyOf(raw), raw, now, 1, 0)
		n.ForgiveKey(keys.KeyOf(raw), now, now)
	}
	remembered := func() (keys int) {
		for s := range n.stripes {
			keys += len(n.stripes[s].forgiven)
		}
		return keys
	}
	n.Sweep(now)
	if is, all := remembered(), n.Keys(); is == 0 || is > all || all > 1000 {
		t.Errorf("%d keys are remembered, of %d in the table", is, all)
	}
	n.Sweep(now + 3*int64(p.Window))
	if left := remembered(); left > 0 || n.Keys() > 0 {
		t.Errorf("%d keys are remembered, though nothing counts any more", left)
	}
}

// A stamp ends as long after the last answer as the window is, or with that of a calendar: the cell
// in the store stays a minute longer.
func TestAStampEndsWithTheWindow(t *testing.T) {
	for _, by := range []*algorithms.Calendar{nil, {Window: algorithms.Year, Zone: time.UTC, From: 1}} {
		p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 5, Window: 1000 * time.Hour, Calendar: by}
		if by != nil {
			p.Window = by.Window
		}
		n, s := &talker[algorithms.WindowState]{Table: NewOf(p.Kind, algorithms.MachineBy[algorithms.WindowState](p.Kind, by), 10), name: "a"}, newStore()
		n.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		l, key, now := p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
		n.Take(l, key, forgivenKey, now, 5, 0)
		n.ForgiveKey(key, now, now)
		now += int64(time.Hour)
		n.sync(s, now)
		want := now + int64(1000*time.Hour)
		if by != nil {
			want = by.At(now).End
		}
		if r := n.Resets().Of(keys.IDOf(forgivenKey)); r.Until != want {
			t.Errorf("by a calendar: %v: the stamp ends after %s, want after %s", by != nil, time.Duration(r.Until-now), time.Duration(want-now))
		}
	}
}

// A node that hears of a forgiving from before all that counts keeps what it has spent since.
func TestAForgivingOfLongAgo(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: 24 * time.Hour}
	s, l, key, now := newStore(), p.Compile(), keys.KeyOf(forgivenKey), int64(t0)
	var nodes []*talker[algorithms.BucketState]
	for _, name := range []string{"a", "b"} {
		n := &talker[algorithms.BucketState]{Table: New[algorithms.BucketState](p.Kind, 10), name: name}
		n.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		nodes = append(nodes, n)
	}
	nodes[0].Take(l, key, forgivenKey, now, 5, 0)
	nodes[0].ForgiveKey(key, now, now)
	nodes[0].sync(s, now)
	now += int64(48 * time.Hour)
	for _, n := range nodes {
		n.Sweep(now)
		n.Take(l, key, forgivenKey, now, 3, 0)
	}
	for range 3 {
		for _, n := range nodes {
			now += int64(time.Second)
			n.sync(s, now)
		}
	}
	for _, n := range nodes {
		if left := n.Take(l, key, forgivenKey, now, 0, 0).Remaining; left != 4 {
			t.Errorf("node %s has %d left of 10 after 6 requests", n.name, left)
		}
	}
}

// A key without a slot shares its counter with others, which one of them does not clear.
func TestAKeyWithoutASlotIsNotForgiven(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 5, Window: time.Hour}
	tab, l, now := New[algorithms.WindowState](p.Kind, 1), p.Compile(), int64(t0)
	tab.Configure(SyncConfig{Params: p}, 1)
	beyond := 0
	for i := range 200 {
		raw := fmt.Append(nil, i)
		key := keys.KeyOf(raw)
		tab.Take(l, key, raw, now, 3, 0)
		st, _, ok := tab.lock(key)
		st.mu.Unlock()
		if ok {
			continue
		}
		beyond++
		before := tab.Take(l, key, raw, now, 0, 0).Remaining
		tab.ForgiveKey(key, now, now)
		if after := tab.Take(l, key, raw, now, 0, 0).Remaining; after != before || before > 2 {
			t.Errorf("key %d has %d left, and %d after a right login", i, before, after)
		}
	}
	if beyond == 0 {
		t.Fatal("every key has a slot")
	}
}
