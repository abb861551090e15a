package ratesync

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// withSlotNodes runs a test with nodes that sync each second.
func withSlotNodes(t *testing.T, nodes int, decides bool, f func(t *testing.T, st *luaStore, nodes []*slotNode)) {
	synctest.Test(t, func(t *testing.T) {
		st := newLuaStore(t)
		var all []*slotNode
		for i := range uint64(nodes) {
			all = append(all, slotNodeOf(st, i, time.Second, decides))
		}
		time.Sleep(3 * time.Second) // they know of each other
		f(t, st, all)
		for _, n := range all {
			n.end(false)
		}
	})
}

// The places of a node that is killed are free after 11 seconds and one sync, and not before what
// it has said has expired.
func TestPlacesOfAKilledNode(t *testing.T) {
	withSlotNodes(t, 2, false, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		a, b := nodes[0], nodes[1]
		for range slotLimit {
			a.take("k")
		}
		time.Sleep(2 * time.Second)
		b.take("k")
		b.free("k")
		time.Sleep(2 * time.Second)
		if b.take("k").Allowed {
			t.Error("admitted while the other node has all")
		}
		a.wire.cut()
		killed := time.Now()
		for !b.take("k").Allowed {
			if time.Sleep(100 * time.Millisecond); time.Since(killed) > time.Minute {
				t.Fatal("never free")
			}
		}
		if took := time.Since(killed); took > 12*time.Second || took < 6*time.Second {
			t.Errorf("free after %s, want 7 s to 11 s and a sync", took)
		} else {
			t.Logf("free after %s", took)
		}
	})
}

// A node that ends in order frees its places with that, and waits for nothing else.
func TestPlacesOfANodeThatEnds(t *testing.T) {
	withSlotNodes(t, 2, true, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		a, b := nodes[0], nodes[1]
		for range slotLimit {
			slot, s, err := a.sync.Take(t.Context(), a.src, askOf("k"))
			if a.keep("k", slot, s); err != nil || !s.Allowed {
				t.Fatalf("%+v, %v", s, err)
			}
		}
		if _, s, err := b.sync.Take(t.Context(), b.src, askOf("k")); err != nil || s.Allowed {
			t.Fatalf("one too many: %+v, %v", s, err)
		}
		for range slotLimit {
			a.free("k")
		}
		began := time.Now()
		a.src.Detach()
		if took := time.Since(began); took >= flushTime {
			t.Errorf("a node that has told all takes %s to end", took)
		}
		slot, s, err := b.sync.Take(t.Context(), b.src, askOf("k"))
		if err != nil || !s.Allowed {
			t.Errorf("after the other node has ended: %+v, %v", s, err)
		}
		slot.Free()
	})
}

// A node that is cut off for a lease makes room on the others. Nobody is cut off when it is back,
// and nobody is admitted before there is room.
func TestANodeThatIsCutOff(t *testing.T) {
	withSlotNodes(t, 2, false, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		a, b := nodes[0], nodes[1]
		for range slotLimit {
			a.take("k")
		}
		time.Sleep(3 * time.Second)
		a.wire.net.become(&a.wire.net.lost, 1)
		time.Sleep(13 * time.Second)
		for range slotLimit {
			if !b.take("k").Allowed {
				t.Error("a node that was cut off for a lease has kept its places")
			}
		}
		a.wire.net.heal()
		time.Sleep(5 * time.Second)
		if a.has("k") != slotLimit || b.has("k") != slotLimit {
			t.Errorf("%d and %d run, want all", a.has("k"), b.has("k"))
		}
		for range slotLimit {
			b.free("k")
			if time.Sleep(2 * time.Second); b.take("k").Allowed {
				t.Error("admitted while the other node has all")
			}
		}
		a.free("k")
		time.Sleep(2 * time.Second)
		b.take("k")
		time.Sleep(2 * time.Second)
		b.take("k")
		time.Sleep(2 * time.Second)
		b.take("k")
		if b.has("k") != 1 {
			t.Errorf("%d run there, want the one that there is room for", b.has("k"))
		}
	})
}

// How far nodes go beyond the limit: a burst on a cold key takes it on each of them until the first
// round trip is over. From then on nobody is admitted before there is room.
func TestHowFarBeyondTheLimit(t *testing.T) {
	withSlotNodes(t, 3, false, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		sum := func() (n int) {
			for _, one := range nodes {
				n += one.has("k")
			}
			return n
		}
		for range 2 * slotLimit {
			for _, n := range nodes {
				n.take("k")
			}
		}
		if sum() != 3*slotLimit {
			t.Errorf("%d in the first round trip, want the limit on each of three nodes", sum())
		}
		for sum() > slotLimit {
			time.Sleep(2 * time.Second)
			for _, n := range nodes {
				if n.free("k"); n.take("k").Allowed && sum() > slotLimit {
					t.Errorf("admitted after the round trip, so that %d run", sum())
				}
			}
		}
		for _, n := range nodes {
			for n.has("k") > 0 {
				n.free("k")
			}
		}
		time.Sleep(2 * time.Second)
		most, over := 0, 0
		for i := range 3000 {
			if nodes[i%3].take("k").Allowed && sum() > slotLimit {
				over++
			}
			most = max(most, sum())
			time.Sleep(7 * time.Millisecond)
			if i%2 == 0 {
				nodes[(i/2)%3].free("k")
			}
		}
		if t.Logf("%d at once at most, %d of 3000 admitted beyond the limit", most, over); most > 2*slotLimit {
			t.Errorf("%d at once", most)
		}
	})
}

// What a dead node has said ends also where Redis' clock steps back.
func TestADeadNodeAndAStepBack(t *testing.T) {
	withSlotNodes(t, 2, false, func(t *testing.T, st *luaStore, nodes []*slotNode) {
		a, b := nodes[0], nodes[1]
		for range 2 {
			a.take("k")
			b.take("k")
		}
		time.Sleep(3 * time.Second)
		a.wire.cut()
		st.step(-time.Hour)
		time.Sleep(gauge.Lease + 2*gauge.Refresh)
		if all := st.gauges(slotHash("k")); len(all) != 1 || all[b.src.Node()] != 2 {
			t.Errorf("Redis has %v, want only the 2 of the node that lives", all)
		}
	})
}

// A slot that is given back just when a request of the same node finds that there is none goes to
// one request only, here or on another node.
func TestASlotThatIsFreeWhileARequestAsks(t *testing.T) {
	withSlotNodes(t, 2, true, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		ask := func(n *slotNode) {
			slot, s, err := n.sync.Take(t.Context(), n.src, askOf("k"))
			if n.keep("k", slot, s); err != nil {
				t.Error(err)
			}
		}
		a, b := nodes[0], nodes[1]
		for range 100 {
			for range slotLimit {
				ask(a)
			}
			if a.has("k") != slotLimit {
				t.Errorf("a node has %d of %d that are free", a.has("k"), slotLimit)
				return
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { ask(a) })
				wg.Go(func() { a.free("k") })
				wg.Go(func() {
					time.Sleep(50 * time.Millisecond)
					ask(b)
				})
			}
			wg.Wait()
			if n := a.has("k") + b.has("k"); n > slotLimit {
				t.Errorf("%d run at once, %d and %d, want at most %d", n, a.has("k"), b.has("k"), slotLimit)
				return
			}
			for range slotLimit {
				a.free("k")
				b.free("k")
			}
			time.Sleep(time.Second)
		}
	})
}

// Explain asks about places as a request does: while the shard of a key is lost, nobody, though the
// server may answer what is only asked, as one without memory does.
func TestALookAtPlacesOfALostShard(t *testing.T) {
	withSlotNodes(t, 1, true, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		n := nodes[0]
		for _, lost := range []bool{false, true} {
			if lost {
				n.src.current.Load().missed.Store(math.MaxUint64)
			}
			slot, _, why := n.sync.Take(t.Context(), n.src, askOf("k"))
			slot.Free()
			if _, err := n.sync.Look(n.src, keys.IDOf([]byte("k")), false); (err != nil) != lost || (why != nil) != lost {
				t.Errorf("lost %t: a look %v, a request %v", lost, err, why)
			}
		}
	})
}

// An early sync says nothing of shards that it has sent nothing to: those that a request has found
// to fail stay missed until the next cycle.
func TestAnEarlySyncClosesNoCircuit(t *testing.T) {
	withSlotNodes(t, 1, true, func(t *testing.T, _ *luaStore, nodes []*slotNode) {
		a := nodes[0].src.current.Load()
		for early, want := range map[bool]uint64{true: 1 << 7, false: 0} {
			a.missed.Store(1 << 7)
			if missed, err := nodes[0].src.sync(t.Context(), a, early); err != nil || missed != want {
				t.Errorf("early %t: %b is missed, %v, want %b", early, missed, err, want)
			}
		}
	})
}
