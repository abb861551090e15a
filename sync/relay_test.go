package ratesync

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Whatever happens to readings, messages, relays and stores, and however clocks are set: once all
// is well again, the store of each region has what the nodes of all regions have admitted, to the
// request. The tables, the loops and the scripts are the real ones.
//
// bubble: what it makes of parameters runs in one.
func TestRegionsConverge(t *testing.T) {
	t.Parallel()
	doubled := false
	for name, run := range map[string]func(*testing.T, uint64){
		"fixed_window": regionsOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 0, nil),
		"token_bucket": regionsOf[algorithms.BucketState](algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Burst: 1 << 30, Window: 1000 * time.Hour}, 0, &doubled),
		"reserved":     regionsOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour, Reserves: true}, 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			all, twice := 0, 0
			for seed := range redistest.Seeds(1, 50) {
				doubled = false
				inBubble(t, seed, func(t *testing.T) { run(t, seed) })
				if all++; doubled {
					twice++
				}
			}
			if 5*twice > all { // one in nine does, and no two runs draw the same
				t.Errorf("in %d of %d schedules a bucket counts twice what was on its way", twice, all)
			}
		})
	}
}

// Six regions converge as two and three do: each tells five others.
func TestSixRegionsConverge(t *testing.T) {
	t.Parallel()
	if redistest.Raced {
		t.Skip("the goroutines are those of TestRegionsConverge")
	}
	for seed := range redistest.Seeds(1, 25) {
		synctest.Test(t, func(t *testing.T) {
			regionsOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 6, nil)(t, seed)
		})
	}
}

// Where a server lets no script read keys that it was not given, a relay asks for what it has found
// by name, and sweeps out names of what is gone.
func TestRegionsWhoseServersWantAllKeysNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T) {
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		time.Sleep(12 * time.Hour)
		for _, r := range w.regions {
			r.store.OnlyKeys = true
			w.join(r)
			w.join(r)
		}
		for i := range 3 * batchSize { // more than a call asks for
			w.takeOf(w.regions[i%2].nodes[i%2], fmt.Append(nil, i/2), 1)
		}
		w.settle()
		w.compare()
		here := w.regions[0]
		told, gone := here.nodes[0].rep.keys.Told(0), here.nodes[0].rep.keys.head+"gone"
		here.store.Do("ZADD", told, "1", gone)
		time.Sleep(2 * sweepInterval)
		if score := here.store.Do("ZSCORE", told, gone); score != nil {
			t.Errorf("%s is still told, under %v", gone, score)
		}
		w.close()
	})
}

// A world is some regions, and what happens to them.
type world[S any] struct {
	t        *testing.T
	random   *rand.Rand
	alg      algorithms.Params
	regions  []*testRegion[S]
	names    []string
	own      map[string]int64 // what was admitted in all, by the key's ID
	twins    bool             // all nodes are the relay at once
	after    time.Duration    // between two nodes that join
	apart    bool             // each node has a network of its own
	divides  bool             // each side takes its part
	waits    bool             // nothing is synced early
	room     int              // how many keys a node holds, 0 for 1000
	rate     time.Duration    // of nodes, 0 for a second
	restored bool             // a store has gone back to an older copy
	doubled  *bool            // that a bucket counts more than 2 units twice; nil where none may
	log      *zap.Logger      // nil for none
	skewed   bool             // clocks of a region's nodes are a minute apart, the first is behind
}

// testRegion is a store with its nodes, and a way to the store of each other region.
type testRegion[S any] struct {
	name  string
	store *luaStore
	net   *network
	nodes []*member[S]
	links map[string]*network
	saved map[string]any
}

// regionsOf is a random life of so many regions, 0 for two or three.
//
// bubble: its tests run what it returns in one.
func regionsOf[S any](alg algorithms.Params, regions int, doubled *bool) func(*testing.T, uint64) {
	return func(t *testing.T, seed uint64) {
		w := newWorld[S](t, seed, alg, cmp.Or(regions, 2+int(seed%2)))
		w.twins, w.doubled = seed%2 == 1, doubled
		// Midday, so that no clock comes near the end of the day's epoch.
		time.Sleep(12 * time.Hour)
		for _, r := range w.regions {
			w.join(r)
			w.join(r)
			w.join(r) // the last takes no requests, so that it can end
		}
		for range 80 + w.random.IntN(100) {
			w.step()
		}
		w.settle()
		w.compare()
		w.close()
	}
}

func newWorld[S any](t *testing.T, seed uint64, alg algorithms.Params, regions int) *world[S] {
	w := &world[S]{t: t, random: rand.New(rand.NewPCG(seed, 11)), alg: alg, own: make(map[string]int64), names: []string{"a", "b", "c", "d"}}
	w.addRegions(seed, regions, func(int, int) time.Duration { return time.Duration(20+w.random.IntN(100)) * time.Millisecond })
	return w
}

// addRegions makes regions that are some way from each other.
func (w *world[S]) addRegions(seed uint64, regions int, way func(from, to int) time.Duration) {
	for i := range regions {
		r := &testRegion[S]{name: fmt.Sprint("r", i), store: newLuaStore(w.t), net: &network{random: rand.New(rand.NewPCG(seed, uint64(20+i)))}, links: make(map[string]*network)}
		w.regions = append(w.regions, r)
	}
	for i, r := range w.regions {
		for j, other := range w.regions {
			if i != j {
				r.links[other.name] = &network{random: rand.New(rand.NewPCG(seed, uint64(100+10*i+j))), way: way(i, j)}
			}
		}
	}
}

// join adds a node to a region.
func (w *world[S]) join(r *testRegion[S]) *member[S] {
	net := r.net
	if w.apart {
		net = &network{random: rand.New(rand.NewPCG(uint64(len(r.nodes)), 3))}
	}
	m := &member[S]{alg: w.alg, rate: cmp.Or(w.rate, time.Second), wire: &wire{net: net, store: r.store}, table: tableOf[S](w.alg, cmp.Or(w.room, 1000))}
	m.source = NewTableSyncer(m.table, SpecOf("z", w.alg))
	m.rep = NewReplicator(m.wire, "test", time.Second, skewed(w.skew(len(r.nodes))), cmp.Or(w.log, zap.NewNop()).Named(r.name))
	others := make(map[string]redis.UniversalClient)
	for _, other := range w.regions {
		if other != r {
			others[other.name] = &wire{net: r.links[other.name], store: other.store}
		}
	}
	m.rep.Relay(Regions{Here: r.name, Others: others, Interval: 100 * time.Millisecond, Divides: w.divides})
	if w.twins {
		m.rep.relay.node = "twin" // each takes the lease for its own
	}
	m.source.SetLeastTold(1)
	m.table.Configure(table.SyncConfig{
		Params: w.alg, Interval: m.rate, Early: !w.waits, Regions: len(w.regions), Waker: m.source.Waker,
		After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}, cmp.Or(w.room, 1000))
	m.rep.Attach(m.source, m.rate)
	r.nodes = append(r.nodes, m)
	return m
}

// end ends a node of a region, at once or in order.
func (r *testRegion[S]) end(i int, kill bool) {
	r.nodes[i].end(kill)
	r.nodes = slices.Delete(r.nodes, i, i+1)
}

// relay is which of the nodes is the relay.
func (r *testRegion[S]) relay() int {
	return slices.IndexFunc(r.nodes, func(m *member[S]) bool { return m.rep.RegionsStatus().Relay })
}

func (w *world[S]) region() *testRegion[S] { return w.regions[w.random.IntN(len(w.regions))] }

func (w *world[S]) take(r *testRegion[S], n int) {
	raw := []byte(w.names[w.random.IntN(len(w.names))])
	w.takeOf(r.nodes[w.random.IntN(2)], raw, n)
}

func (w *world[S]) takeOf(m *member[S], raw []byte, n int) { w.takeBy(m, w.alg, raw, n) }

// takeBy takes n by other limits than the world's, and reports whether they allow it.
func (w *world[S]) takeBy(m *member[S], alg algorithms.Params, raw []byte, n int) bool {
	d := m.table.Take(alg.Compile(), keys.KeyOf(raw), raw, wallClock(), int64(n), 0)
	if d.Allowed {
		id := keys.IDOf(raw)
		w.own[string(id[:])] += int64(n)
	}
	return d.Allowed
}

// skew is how far the clock of a region's i-th node is ahead.
func (w *world[S]) skew(i int) time.Duration {
	if !w.skewed {
		return 0
	}
	return time.Duration(i-1) * time.Minute
}

// step is one thing that happens, and some time.
//
// bubble: of the test.
func (w *world[S]) step() {
	r := w.region()
	switch n := w.random.IntN(100); {
	case n < 55:
		w.take(r, 1+w.random.IntN(5))
	case n < 65:
		r.links[w.other(r)].worsen()
	case n < 72:
		link := r.links[w.other(r)]
		link.become(&link.lost, 1)
	case n < 80:
		for _, link := range r.links {
			link.heal()
		}
	case n < 84:
		r.store.forget(0, true)
		w.breakLinks(r)
	case n < 86:
		r.saved = r.store.Values()
	case n < 88 && r.saved != nil:
		r.store.restore(r.saved)
		w.restored = true
		w.breakLinks(r)
	case n < 92:
		r.store.step(time.Duration(w.random.Int64N(int64(20*time.Second))) - 10*time.Second)
	case n < 96: // the node that takes no requests ends, dead or in order
		r.end(2, w.random.IntN(2) == 0)
		w.join(r)
	default:
		m := r.nodes[w.random.IntN(2)]
		m.table.Sweep(wallClock())
	}
	time.Sleep(time.Duration(w.random.Int64N(int64(3 * time.Second))))
}

func (w *world[S]) other(r *testRegion[S]) string {
	for {
		if other := w.region(); other != r {
			return other.name
		}
	}
}

// breakLinks notes that connections to a store were closed, as after a failover.
func (w *world[S]) breakLinks(to *testRegion[S]) {
	for _, r := range w.regions {
		for _, m := range r.nodes {
			if link, ok := m.rep.relay.Others[to.name]; ok {
				link.(*wire).broken.Add(1)
			}
		}
	}
}

// settle has all be well for as long as it takes after the loss of a store.
func (w *world[S]) settle() {
	for _, r := range w.regions {
		r.net.heal()
	}
	w.healLinks()
	time.Sleep(8*time.Second + table.ResentReserved + 2*time.Second + 20*time.Second)
}

func (w *world[S]) healLinks() {
	for _, r := range w.regions {
		for _, link := range r.links {
			link.heal()
		}
	}
}

// compare holds each store to what was admitted everywhere.
func (w *world[S]) compare() {
	for _, r := range w.regions {
		sums := make(map[string]int64)
		for _, key := range r.store.counting() {
			id, n := idAndSum(key, r.store.Hash(key)["sum"])
			if id == "" {
				w.t.Fatalf("%q is not taken apart", key)
			}
			sums[id] += n
		}
		w.compareWith(r, sums)
	}
}

// idAndSum are the id in the name of a hash or cell, and what the sum there is of all epochs.
func idAndSum(key, sum string) (id string, n int64) {
	if c, ok := parseCellKey(key); ok {
		if parts := strings.Fields(sum); c.spec.isBucket() && len(parts) > 5 {
			n = first(parts[4])
			return base64.RawURLEncoding.EncodeToString(c.id[:]), n + min(1, first(parts[5]))
		}
		for _, total := range totalsIn(c.spec, "sum", sum) {
			n += total
		}
		return base64.RawURLEncoding.EncodeToString(c.id[:]), n
	}
	return "", 0
}

// compareLevels holds the levels of a store's buckets to what was admitted everywhere. Once a store
// has lost something, it has the highest that a node knows: what was on its way then may count
// twice, which few schedules show, and in one that went back to an older copy what other regions
// had told it since.
func (w *world[S]) compareLevels(r *testRegion[S], levels map[string]int64) {
	lost, most := false, int64(1)
	for _, x := range w.regions {
		lost = lost || x.store.forgotten.Load() > 0
	}
	if w.restored {
		most = int64(len(w.regions))
	}
	for id, want := range w.own {
		got := levels[base64.RawURLEncoding.EncodeToString([]byte(id))]
		if w.doubled != nil && lost && got > most*want+2 && got <= 2*want+2 {
			*w.doubled = true
			continue
		}
		if got > most*want+2 || !lost && got < want-1 || want > 3 && got == 0 {
			w.t.Errorf("region %s has %d of %x, want %d, lost %t", r.name, got, id, want, lost)
		}
	}
}

func (w *world[S]) compareWith(r *testRegion[S], sums map[string]int64) {
	if w.alg.Kind.Traits().Draining {
		w.compareLevels(r, sums)
		return
	}
	want := make(map[string]int64)
	for id, n := range w.own {
		want[base64.RawURLEncoding.EncodeToString([]byte(id))] = n
	}
	if !maps.Equal(sums, want) {
		w.t.Errorf("region %s has %v, want %v", r.name, sums, want)
		for _, x := range w.regions {
			for key, hash := range x.store.Hashes() {
				if _, ok := hash["sum"]; ok {
					w.t.Logf("%s %s %v", x.name, key, hash)
				}
			}
			w.t.Logf("%s relay %v told %v", x.name, x.store.Hash("test:3:{0}:relay"), x.store.Do("ZRANGEBYSCORE", "test:3:{0}:told", "-inf", "+inf"))
		}
	}
}

func (w *world[S]) close() {
	for _, r := range w.regions {
		for _, m := range r.nodes {
			m.end(false)
		}
	}
	time.Sleep(time.Minute) // what is late
}

// What another region's Redis had confirmed and has lost is told again, though nothing was counted
// since. The relay may have slept over it.
func TestOtherRegionForgets(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		w.take(here, 7)
		time.Sleep(5 * time.Minute)
		there.store.forget(0, true)
		time.Sleep(10 * time.Second)
		w.compare()
	})
}

// What a Redis had of another region and has lost is read again, though the calls that were under
// way had asked for what comes after it.
func TestARedisForgetsWhatWasRead(t *testing.T) {
	for phase := range redistest.Times(20, 20) {
		inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
			for range 5 {
				w.take(here, 7)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Duration(phase) * 23 * time.Millisecond)
			w.take(here, 1)
			there.store.forget(0, true)
			time.Sleep(20 * time.Second)
			w.compare()
		})
	}
}

// After a loss of its own Redis a region tells the others of nothing that is less than they have:
// its total there never falls, though one of its nodes can't send what it holds for a while, and
// whenever the relay reads in between.
func TestNoTotalFallsAfterALoss(t *testing.T) {
	t.Parallel()
	t.Run("together", func(t *testing.T) { noTotalFalls(t, 0, 100*time.Millisecond) })
	// Then another node may ask for the lease before the relay knows.
	t.Run("one by one", func(t *testing.T) { noTotalFalls(t, 40*time.Millisecond, 17*time.Millisecond) })
}

// noTotalFalls has nodes join one so long after the other, and tries instants of the loss that are
// a step apart.
func noTotalFalls(t *testing.T, apart, step time.Duration) {
	for offset := range redistest.Times(10, 10) {
		inWorld(t, true, apart, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
			w.names = w.names[:1]
			for range 10 {
				w.take(here, 7)
				time.Sleep(2 * time.Second)
			}
			if got := told(here, there); got != 70 {
				t.Fatalf("the other region has %d of 70", got)
			}
			time.Sleep(time.Duration(offset) * step)
			// The node that does not reach its Redis is none that could be the relay.
			away := here.nodes[1].wire.net
			away.become(&away.lost, 1)
			here.store.forget(0, true)
			w.takeOf(here.nodes[2], []byte(w.names[0]), 1) // the key is new to it, and so urgent
			highest := int64(70)
			for i := range 600 {
				if time.Sleep(100 * time.Millisecond); i == 100 {
					away.heal()
				}
				n := told(here, there)
				if n < highest {
					t.Errorf("the total has fallen from %d to %d", highest, n)
					break
				}
				highest = n
			}
			w.compare()
		})
	}
}

// A node that becomes the relay when its Redis has gone back to an older copy has seen no number of
// before. The other region has: its answer shows the loss, and its total never falls.
func TestANewRelayWithAnOlderCopy(t *testing.T) {
	t.Run("links are well", func(t *testing.T) { newRelay(t, 0) })
	t.Run("a link is cut at first", func(t *testing.T) { newRelay(t, 7*time.Second) })
}

// newRelay has another node become the relay, in a store that has gone back, with a link that is
// cut for so long.
func newRelay(t *testing.T, cut time.Duration) {
	inCalmWorld(t, true, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		i := here.relay()
		relay, next, away := here.nodes[i], here.nodes[(i+1)%3], here.nodes[(i+2)%3]
		count := func() {
			for range 5 {
				w.takeOf(next, []byte("a"), 2)
				w.takeOf(away, []byte("a"), 5)
				time.Sleep(2 * time.Second)
			}
		}
		count()
		older := here.store.Values()
		count()
		if got := told(here, there); got != 70 {
			t.Fatalf("the other region has %d of 70", got)
		}
		relay.end(true)
		here.nodes = []*member[algorithms.WindowState]{next, away}
		net := away.wire.net
		net.become(&net.lost, 1)
		link := here.links[there.name]
		if cut > 0 {
			link.become(&link.lost, 1)
			time.AfterFunc(cut, link.heal)
		}
		here.store.restore(older)
		for i := range 150 {
			if time.Sleep(100 * time.Millisecond); told(here, there) < 70 {
				t.Errorf("after %d tenths of a second the total has fallen to %d", i+1, told(here, there))
				break
			}
		}
		if !next.rep.RegionsStatus().Relay {
			t.Error("the next node is not the relay")
		}
		net.heal()
		time.Sleep(table.ResentReserved + 30*time.Second)
		w.compare()
	})
}

// Two regions that begin a bucket before they have heard of each other both have all of it. When a
// Redis forgets, and its nodes say again what they have spent one after the other, the other region
// counts nothing twice.
func TestABucketThatTwoRegionsBegin(t *testing.T) {
	for i := range redistest.Times(3, 3) {
		for _, apart := range []time.Duration{0, 20 * time.Second} {
			synctest.Test(t, func(t *testing.T) { twoBegin(t, apart, time.Duration(i)*3*time.Second) })
		}
	}
}

// twoBegin has one region begin so long after the other, and a Redis forget so long after the rest.
//
// bubble: its test runs it in one.
func twoBegin(t *testing.T, apart, offset time.Duration) {
	w := newWorld[algorithms.BucketState](t, 1, algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Burst: 1 << 30, Window: 1000 * time.Hour}, 2)
	w.rate, w.after = 10*time.Second, 3*time.Second
	w.begin()
	here, there := w.regions[0], w.regions[1]
	hold := func(r *testRegion[algorithms.BucketState], what string, want int64) {
		for _, key := range r.store.counting() {
			if _, n := idAndSum(key, r.store.Hash(key)["sum"]); n != want {
				t.Errorf("%s: %s has %d, want %d: %v", what, r.name, n, want, r.store.Hash(key))
			}
		}
	}
	take := func(m *member[algorithms.BucketState], n int) {
		for _, name := range w.names {
			w.takeOf(m, []byte(name), n)
		}
	}
	take(here.nodes[0], 30)
	time.Sleep(apart)
	take(there.nodes[0], 20)
	time.Sleep(15 * time.Second)
	for _, r := range w.regions {
		hold(r, "both have begun", 50)
	}
	take(here.nodes[1], 7)
	time.Sleep(15 * time.Second)
	for _, r := range w.regions {
		hold(r, "another node", 57)
	}
	time.Sleep(offset)
	here.store.forget(0, true)
	for i := 0; i < 300 && !t.Failed(); i++ {
		time.Sleep(100 * time.Millisecond)
		hold(there, "after a loss", 57)
	}
	hold(here, "after a loss", 57)
	take(here.nodes[1], 1)
	time.Sleep(15 * time.Second)
	for _, r := range w.regions {
		hold(r, "in the end", 58)
	}
	w.close()
}

// A Redis goes back to a copy of a bucket from before a node spent its first there, as a replica
// that lags. Its nodes say all again, so the other region never has less of it, also not when the
// doubt has ended. The region itself may: see docs/regions.md.
func TestABucketAfterAnOlderCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld[algorithms.BucketState](t, 1, algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Burst: 1 << 30, Window: 1000 * time.Hour}, 2)
		w.names = w.names[:1]
		w.begin()
		here, there := w.regions[0], w.regions[1]
		take := func(m *member[algorithms.BucketState], n int) { w.takeOf(m, []byte(w.names[0]), n) }
		take(here.nodes[0], 1)
		take(there.nodes[0], 1)
		time.Sleep(10 * time.Second)
		older := here.store.Values()
		take(here.nodes[1], 20)
		take(here.nodes[0], 25)
		time.Sleep(10 * time.Second)
		take(there.nodes[0], 45)
		time.Sleep(10 * time.Second)
		if got := told(here, there); got != 46 {
			t.Fatalf("the other region has %d of 46", got)
		}
		here.store.restore(older)
		time.Sleep(table.ResentReserved + 30*time.Second)
		if got := told(here, there); got != 46 {
			t.Errorf("after an older copy the other region has %d of 46", got)
		}
		for _, key := range there.store.counting() {
			if _, n := idAndSum(key, there.store.Hash(key)["sum"]); n < 92 {
				t.Errorf("%s has %d, want 92: %v", there.name, n, there.store.Hash(key))
			}
		}
		w.close()
	})
}

// Two relays at once lose nothing: what one of them says under a number that the other one is
// beyond is said again. These seeds have them.
//
// bubble: inBubble runs all of it in one.
func TestTwoRelaysAtOnce(t *testing.T) {
	if redistest.Raced {
		t.Skip("the goroutines are those of TestRegionsConverge")
	}
	run := regionsOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 0, nil)
	for _, seed := range []uint64{1503665561, 1503665583} {
		inBubble(t, seed, func(t *testing.T) { run(t, seed) })
	}
}

// What only a node had that has ended is lost with its Redis. The other regions are told the lower
// total when the doubt has ended, though nothing was counted since.
func TestWhatIsLostIsLostEverywhere(t *testing.T) {
	t.Run("one relay", func(t *testing.T) { whatIsLost(t, false) })
	// The one that has read the lower total ends before that is believed.
	t.Run("another relay", func(t *testing.T) { whatIsLost(t, true) })
}

// whatIsLost has another relay begin in the other region, or not.
func whatIsLost(t *testing.T, another bool) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		w.names = w.names[:1]
		w.takeOf(here.nodes[0], []byte(w.names[0]), 10)
		w.join(here)
		ends := here.nodes[len(here.nodes)-1]
		ends.table.Take(w.alg.Compile(), keys.KeyOf([]byte(w.names[0])), []byte(w.names[0]), wallClock(), 15, 0)
		time.Sleep(10 * time.Second)
		if got := told(here, there); got != 25 {
			t.Fatalf("the other region has %d of 25", got)
		}
		here.end(len(here.nodes)-1, true)
		here.store.forget(0, true)
		time.Sleep(15 * time.Second)
		if another {
			there.end(there.relay(), true)
		}
		time.Sleep(table.ResentReserved - 15*time.Second)
		if got := told(here, there); got != 25 {
			t.Errorf("while in doubt the other region has %d, want 25 yet", got)
		}
		time.Sleep(30 * time.Second)
		w.compare()
	})
}

// told is what a region has told another one of its one key.
func told[S any](here, there *testRegion[S]) (total int64) {
	for _, key := range there.store.counting() {
		field := there.store.Hash(key)["~"+here.name]
		if c, ok := parseCellKey(key); ok && c.spec.isBucket() {
			if parts := strings.Fields(field); len(parts) > 3 {
				total = first(parts[3])
			}
			continue
		}
		total = second(field)
	}
	return total
}

// A Redis that has forgotten its numbers, and whose clock was set back, gives lower ones than
// another region has seen. That is found out by the answer, and what was read is read again.
func TestNumbersAreBelowThoseThatWereSeen(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		w.names = w.names[:1]
		w.take(here, 3)
		time.Sleep(10 * time.Second)
		for _, key := range there.store.counting() {
			there.store.Do("HSET", key, "~"+here.name, fmt.Sprint(time.Now().Add(30*24*time.Hour).UnixMicro(), " 3 1"))
		}
		w.take(here, 4)
		time.Sleep(10 * time.Second)
		w.compare()
	})
}

// A region that both count in tells of a key once a pair: two regions don't answer each other for
// ever.
func TestRegionsDoNotEcho(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		w.names = w.names[:1]
		w.take(here, 3)
		w.take(there, 4)
		time.Sleep(10 * time.Second)
		w.compare()
		var rest [2]time.Duration
		for i, r := range w.regions {
			rest[i] = r.store.expiry(r.store.counting()[0])
		}
		if (rest[0]-rest[1]).Abs() > time.Minute || rest[0] < 24*time.Hour {
			t.Errorf("a hash lives for %v at home and in the other region", rest)
		}
		before := w.messages()
		time.Sleep(5 * time.Minute)
		if after := w.messages(); after != before {
			t.Errorf("%d messages in five minutes without a request", after-before)
		}
	})
}

// A key below its threshold costs no message between regions, and one that the other region has
// told of is told back, whatever its size.
func TestWhatIsBelowTheThresholdStaysAtHome(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, there *windowRegion) {
		w.names = w.names[:1]
		for _, r := range w.regions {
			for _, m := range r.nodes {
				m.source.SetLeastTold(10)
			}
		}
		before := w.messages()
		w.take(here, 9)
		time.Sleep(time.Minute)
		if n := w.messages() - before; n != 0 {
			t.Errorf("%d messages for 9 units, where 10 are told", n)
		}
		w.take(there, 10)
		time.Sleep(10 * time.Second)
		w.compare()
		for _, m := range there.nodes {
			m.source.SetLeastTold(100)
		}
		w.take(there, 2) // it is below a threshold, and the other region has the key
		time.Sleep(10 * time.Second)
		w.compare()
	})
}

// Readings are numbered so that the later has the higher number, though the clock is set back, and
// by another relay.
func TestClockOfARegionIsSetBack(t *testing.T) {
	inCalmWorld(t, false, func(t *testing.T, w *windowWorld, here, _ *windowRegion) {
		w.names = w.names[:1]
		w.take(here, 3)
		time.Sleep(10 * time.Second)
		here.store.step(-10 * time.Minute)
		w.take(here, 4)
		time.Sleep(20 * time.Second)
		w.compare()
		for _, m := range here.nodes[1:] { // the others end, and the first becomes the relay
			m.end(false)
		}
		here.nodes = here.nodes[:1]
		here.nodes = append(here.nodes, here.nodes[0]) // who takes the next requests
		w.take(here, 5)
		time.Sleep(20 * time.Second)
		w.compare()
		here.nodes = here.nodes[:1]
	})
}

type (
	windowWorld  = world[algorithms.WindowState]
	windowRegion = testRegion[algorithms.WindowState]
)

// inCalmWorld runs a test in a world of two regions of three nodes where nothing fails, beyond the
// doubt of a relay's first start.
func inCalmWorld(t *testing.T, apart bool, test func(t *testing.T, w *windowWorld, here, there *windowRegion)) {
	inWorld(t, apart, 0, test)
}

// inWorld is inCalmWorld, of which each node joins so long after the one before.
func inWorld(t *testing.T, apart bool, after time.Duration, test func(t *testing.T, w *windowWorld, here, there *windowRegion)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld[algorithms.WindowState](t, 1, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 24 * time.Hour}, 2)
		w.apart, w.after = apart, after
		w.begin()
		test(t, w, w.regions[0], w.regions[1])
		w.close()
	})
}

// begin has three nodes join each region, and waits until the doubt is over.
//
// bubble: of the test.
func (w *world[S]) begin() {
	time.Sleep(12 * time.Hour)
	for _, r := range w.regions {
		for range 3 {
			w.join(r)
			time.Sleep(w.after)
		}
	}
	time.Sleep(time.Minute)
}

// messages is how many have gone to other regions.
func (w *world[S]) messages() (n int64) {
	for _, r := range w.regions {
		for _, m := range r.nodes {
			for _, p := range m.rep.relay.regions {
				n += p.messages.Load()
			}
		}
	}
	return n
}

// Of another region that is a Cluster, cells that have less are read again by one call for each
// shard, once a heartbeat has shown no loss.
//
// no clock: only which of two instants is later matters.
func TestWhatHasFallenIsReadByShards(t *testing.T) {
	now := time.Now()
	for _, cluster := range []bool{false, true} {
		p := &otherRegion{keys: NewKeyspace("test").In(cluster), shortfalls: map[string]shortfall{}, heartbeats: now.Add(2 * heartbeatsWithin)}
		for i := range 200 {
			name := NewKeyspace("test").Cells(Spec{Zone: "z", Kind: 'f', Window: time.Minute, SubWindows: 1}).Of(keys.IDOf([]byte{byte(i)}))
			p.shortfalls[name] = shortfall{read: now.Add(-time.Second)}
		}
		p.shortfalls["test:3:{1}:z:f-1m:later"] = shortfall{read: now.Add(2 * heartbeatsWithin)}
		total := 0
		for _, group := range p.confirmedShortfalls() {
			total += len(group)
			for _, name := range group {
				tag, _, _ := strings.Cut(name, "}")
				if first, _, _ := strings.Cut(group[0], "}"); cluster && tag != first {
					t.Errorf("%s and %s are in one call", name, group[0])
				}
			}
		}
		if total != 200 {
			t.Errorf("%d cells are read again, want 200", total)
		}
	}
}
