package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const million = 1_000_000

// counting counts what is asked of a machine.
type counting struct {
	algorithms.Machine[algorithms.WindowState]
	calls *int
}

func (c counting) Advance(s *algorithms.WindowState, l algorithms.Limit, now int64) {
	*c.calls++
	c.Machine.Advance(s, l, now)
}

func (c counting) Ledger(s *algorithms.WindowState) *algorithms.Ledger {
	*c.calls++
	return c.Machine.Ledger(s)
}

func (c counting) Merge(s *algorithms.WindowState, l algorithms.Limit, now int64, reports []algorithms.Report) {
	*c.calls++
	c.Machine.Merge(s, l, now, reports)
}

// holding is a table with a key for each number below keys, of which the store has nothing.
func holding(keys int, alg algorithms.Params) *windows {
	t := newTable(2*million, alg)
	for i := range keys {
		take(t, alg, i, t0)
	}
	return t
}

// A sync looks at the keys that are dirty since the last one, and not at those that are held.
func TestASyncCostsWhatIsDirty(t *testing.T) {
	const dirty = 1000
	calls := 0
	alg := sliding(1000, time.Hour)
	work := func(held int) (asked, messages int) {
		tab := holding(held, alg)
		tab.machine = counting{window, &calls}
		// Not by Configure: a table that begins to be synced sends all it holds.
		tab.config.Store((&SyncConfig{Params: alg, Interval: time.Second}).Compile())
		for i := range dirty {
			take(tab, alg, i*(held/dirty), t0)
		}
		calls = 0
		tab.MakeOutgoing()
		for {
			updates := tab.TakeUpdates(t0, 1, 500, false, nil)
			if len(updates) == 0 {
				return calls, messages
			}
			messages += len(updates)
			tab.Merge(t0, t0, updates, alone(updates, nil))
		}
	}
	few, fewMessages := work(dirty)
	many, manyMessages := work(million)
	if few == 0 || fewMessages < dirty {
		t.Fatalf("%d keys: %d calls, %d messages", dirty, few, fewMessages)
	}
	if many != few || manyMessages != fewMessages {
		t.Errorf("%d dirty of %d held: %d calls, %d messages; of %d held: %d and %d: want the same", dirty, million, many, manyMessages, dirty, few, fewMessages)
	}
}

// A decision among a million keys takes as many steps as among a thousand: what a search looks at
// depends on how full the index is, and not on how many keys there are. Time is no measure of it: a
// busy machine's memory can be sixty times as slow as its caches.
func TestADecisionTakesAsManyStepsAmongAMillionKeys(t *testing.T) {
	calls := 0
	alg := sliding(1000, time.Hour)
	var steps []int
	for _, keys := range []int{1000, 220_000, million} { // 220,000 fill an index to the brim
		tab := holding(keys, alg)
		tab.machine = counting{window, &calls}
		tab.config.Store((&SyncConfig{Params: alg, Interval: time.Second}).Compile())
		calls = 0
		for i := range 1000 {
			take(tab, alg, i, t0)
		}
		steps = append(steps, calls)
		if longest, mean := probes(tab); mean > 8 {
			t.Errorf("a search among %d keys looks at %.1f words on average (at most %d), want 8 at most", keys, mean, longest)
		}
	}
	if steps[0] == 0 || steps[0] != steps[1] || steps[0] != steps[2] {
		t.Errorf("1000 decisions among 1000, 220000 and a million keys ask the algorithm %v times, want the same", steps)
	}
}

// BenchmarkWait is how long a request waits for a decision among a million keys, beside work in the
// background on the same table, and beside the same work on another table, which takes as much of
// the machine and none of the locks: what the first has beyond the second is what requests are held
// up.
func BenchmarkWait(b *testing.B) {
	alg := sliding(1000, time.Hour)
	background := SyncConfig{Params: alg, Interval: time.Second}
	asked, other := holding(million, alg), holding(million, alg)
	for _, tab := range []*windows{asked, other} {
		tab.Configure(background, 2*million)
		for range 3 {
			syncAll(tab)
		}
	}
	for _, beside := range []struct {
		name string
		work func(*windows)
	}{
		{"sweep", func(tab *windows) { tab.Sweep(t0) }},
		{"totals", func(tab *windows) { tab.Totals(t0) }},
		{"sync", syncAll},
		{"resend", func(tab *windows) { tab.Resend(); syncAll(tab) }},
		{"reload", func(tab *windows) { // from a configuration without a sync
			off := background
			off.Interval = 0
			tab.Configure(off, 2*million)
			tab.Configure(background, 2*million)
		}},
		{"save", func(tab *windows) { tab.Save(t0) }},
	} {
		b.Run(beside.name+"/of=another", func(b *testing.B) { waits(b, asked, func() { beside.work(other) }) })
		b.Run(beside.name+"/of=it", func(b *testing.B) { waits(b, asked, func() { beside.work(asked) }) })
	}
}

// syncAll syncs what is dirty with a store that has all of it already.
func syncAll(tab *windows) {
	tab.MakeOutgoing()
	var updates []Update
	var heard []cell.Reply
	for n := 1; n > 0; n = len(updates) {
		updates = tab.TakeUpdates(t0, 1, 500, false, updates[:0])
		heard = alone(updates, heard[:0])
		tab.Merge(t0, t0, updates, heard)
	}
}

// alone is what a store answers that has nothing of others.
func alone(updates []Update, heard []cell.Reply) []cell.Reply {
	for i := range updates {
		state := &updates[i].State
		heard = append(heard, cell.Reply{Sum: cell.Sum{Epoch: state.Epoch, Totals: state.Totals}})
		heard[i].Previous.Epoch, heard[i].Previous.Totals = state.Epoch, state.Totals
	}
	return heard
}

// waits measures decisions of a table beside work that goes on all the time.
//
// no clock: a benchmark measures, and expects nothing.
func waits(b *testing.B, tab *windows, work func()) {
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			work()
		}
	}()
	random := rand.New(rand.NewPCG(1, 2))
	waits := make([]time.Duration, 0, b.N)
	for b.Loop() {
		begun := time.Now()
		take(tab, sliding(1000, time.Hour), random.IntN(million), t0)
		waits = append(waits, time.Since(begun))
	}
	stop.Store(true)
	<-done
	slices.Sort(waits)
	for _, part := range []struct {
		name string
		of   float64
	}{{"p99", .99}, {"p99.9", .999}, {"p99.99", .9999}, {"max", 1}} {
		wait := waits[int(part.of*float64(len(waits)-1))]
		b.ReportMetric(float64(wait.Nanoseconds())/1e3, part.name+"-us")
	}
}

// BenchmarkLoad is one load that waits for the one before it, from as much memory as 2,000 and
// 100,000 keys take: no decision among so many can be faster.
func BenchmarkLoad(b *testing.B) {
	for _, keys := range []int{2000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			lines := make([][8]uint64, keys*128/64)
			for i := range lines {
				lines[i][0] = uint64(i)
			}
			x, last := uint64(88172645463325252), uint64(0)
			for b.Loop() {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				last = lines[(x+last)%uint64(len(lines))][0]
			}
		})
	}
}

// BenchmarkOneLock is what all threads at one key cost at least: one count that all of them change,
// under a mutex, with the hash of a key before it as in a decision, and with no lock at all.
func BenchmarkOneLock(b *testing.B) {
	key := raw(1)
	var shared struct {
		_     [64]byte
		mu    sync.Mutex
		count int
		_     [64]byte
		added atomic.Int64
		_     [64]byte
	}
	locked := func() {
		shared.mu.Lock()
		shared.count++
		shared.mu.Unlock()
	}
	for _, bench := range []struct {
		name string
		once func() uint64
	}{
		{"mutex", func() uint64 { locked(); return 0 }},
		{"hash and mutex", func() uint64 { k := keys.KeyOf(key); locked(); return k.A }},
		{"hash and atomic", func() uint64 { k := keys.KeyOf(key); shared.added.Add(1); return k.A }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var sum atomic.Uint64 // so that the hash is not left out
			b.RunParallel(func(pb *testing.PB) {
				mine := uint64(0)
				for pb.Next() {
					mine += bench.once()
				}
				sum.Add(mine)
			})
		})
	}
}

// probes is how many words of the index a search for a key looks at.
func probes(t *windows) (longest int, mean float64) {
	sum, n := 0, 0
	for s := range t.stripes {
		st := &t.stripes[s]
		for i := range st.size {
			key := st.slot(i).key
			if key == (keys.Key{}) {
				continue
			}
			at := tagOf(key)
			for found := ^uint32(0); found != i; {
				found, at, _ = st.index.Seek(tagOf(key), at)
			}
			d := int(at - tagOf(key))
			longest, sum, n = max(longest, d), sum+d, n+1
		}
	}
	return longest, float64(sum) / float64(n)
}
