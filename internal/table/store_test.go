package table

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const t0 = int64(1_700_000_000_000_000_000) // the start of a minute, more or less

var hour = fixed(10, time.Hour)

type windows = Table[algorithms.WindowState]

func newTable(maxKeys int, alg algorithms.Params) *windows {
	t := New[algorithms.WindowState](algorithms.SlidingWindow, maxKeys)
	t.Configure(SyncConfig{Params: alg}, maxKeys)
	return t
}

func raw(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

func take(t *windows, alg algorithms.Params, i int, now int64) Taken {
	b := raw(i)
	return t.Take(alg.Compile(), keys.KeyOf(b), b, now, 1, allWaits)
}

func TestMaxKeysIsHardAndNoBypass(t *testing.T) {
	const maxKeys = 1000
	tab := newTable(maxKeys, hour)
	for i := range maxKeys {
		for range hour.Limit {
			take(tab, hour, i, t0)
		}
	}
	for i := maxKeys; i < 10*maxKeys; i++ { // an attacker rotates keys
		take(tab, hour, i, t0)
	}
	if got := tab.Keys(); got > maxKeys {
		t.Errorf("Keys() = %d, want at most %d", got, maxKeys)
	}
	for i := range maxKeys {
		if take(tab, hour, i, t0).Allowed {
			t.Fatalf("key %d had spent its limit and is admitted after the flood: it was evicted", i)
		}
	}
	admitted, newcomer := 0, unshared(tab, 1_000_000)
	for range 3 * hour.Limit {
		d := take(tab, hour, newcomer, t0)
		if !d.Overflow {
			t.Fatal("a newcomer has a counter of its own in a full table")
		}
		if d.Allowed {
			admitted++
		}
	}
	if admitted != int(hour.Limit) {
		t.Errorf("a key beyond the bound: %d admitted, want %d", admitted, hour.Limit)
	}
	newcomer = unshared(tab, 2_000_000)
	d := take(tab, hour, newcomer, t0)
	tab.Refund(hour.Compile(), keys.KeyOf(raw(newcomer)), d, 1)
	for i := range hour.Limit {
		if !take(tab, hour, newcomer, t0).Allowed {
			t.Errorf("beyond the bound, after refunding one: request %d denied", i+1)
		}
	}
}

// unshared is the first key from one on whose shared counter nobody has.
func unshared(tab *windows, from int) int {
	for i := from; ; i++ {
		key := overflowOf(keys.KeyOf(raw(i)))
		if _, s := tab.overflowTable().stripe(key).find(key); s == nil {
			return i
		}
	}
}

func TestAFullTableTakesTheRoomOfIdleKeys(t *testing.T) {
	const maxKeys = 4000
	tab := newTable(maxKeys, hour)
	for i := range maxKeys {
		take(tab, hour, i, t0)
	}
	later := t0 + int64(3*time.Hour)
	var own int
	for i := range maxKeys / 2 {
		if !take(tab, hour, 10_000+i, later).Overflow {
			own++
		}
	}
	if own < maxKeys/2*9/10 {
		t.Errorf("%d newcomers after all keys went idle: %d got a counter of their own, want nearly all", maxKeys/2, own)
	}
	if got := tab.Keys(); got > maxKeys {
		t.Errorf("Keys() = %d, want at most %d", got, maxKeys)
	}
}

func TestSweepDropsIdleKeysAndGivesMemoryBack(t *testing.T) {
	tab := newTable(1_000_000, hour)
	for i := range 100_000 {
		take(tab, hour, i, t0)
	}
	take(tab, hour, 7, t0+int64(2*time.Hour))
	tab.Sweep(t0 + int64(2*time.Hour))
	if got := tab.Keys(); got != 1 {
		t.Errorf("Keys() after the sweep = %d, want 1", got)
	}
	var slots int
	for s := range tab.stripes {
		slots += len(tab.stripes[s].chunks) * chunkSize
	}
	if slots > stripeCount*2*chunkSize {
		t.Errorf("%d slots are left after the sweep", slots)
	}
	for range hour.Limit - 1 {
		if !take(tab, hour, 7, t0+int64(2*time.Hour)).Allowed {
			t.Fatal("the live key lost its count: denied early")
		}
	}
	if take(tab, hour, 7, t0+int64(2*time.Hour)).Allowed {
		t.Error("the live key lost its count: admitted beyond the limit")
	}
}

func TestSweepBesideRequests(t *testing.T) {
	alg := fixed(1, time.Second)
	tab := newTable(5000, alg)
	var now atomic.Int64
	now.Store(t0)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				now.Add(int64(time.Second))
				tab.Sweep(now.Load())
				tab.Totals(now.Load())
			}
		}
	})
	var users sync.WaitGroup
	for g := range 4 {
		users.Go(func() {
			for i := range 20_000 {
				take(tab, alg, g*1000+i%3000, now.Load())
			}
		})
	}
	users.Wait()
	close(done)
	wg.Wait()
	tab.Sweep(now.Load() + int64(time.Hour))
	if got := tab.Keys(); got != 0 {
		t.Errorf("Keys() after everything is idle = %d, want 0", got)
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	tab := newTable(100, sliding(1<<40, time.Minute))
	b := raw(1)
	take(tab, sliding(1, time.Minute), 1, t0)
	limit := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		limit++ // some admit, some deny
		tab.Take(sliding(limit, time.Minute).Compile(), keys.KeyOf(b), b, t0, 1, allWaits)
	}); n != 0 {
		t.Errorf("Take allocates %v times, want 0", n)
	}
}

// outcomes are what BenchmarkTake asks for: at a limit of 1 every key has spent it before.
var outcomes = []struct {
	name  string
	limit int64
	want  algorithms.Want
}{
	{"admitted/waits=none", 1 << 40, 0},
	{"admitted/waits=next", 1 << 40, algorithms.WantNext},
	{"denied/waits=none", 1, 0}, // a denial has Retry in any case
	{"denied/waits=next", 1, algorithms.WantNext},
}

// BenchmarkTake is one decision, with the hash of its key before it.
func BenchmarkTake(b *testing.B) {
	for _, keys := range []int{1, 100_000, 1_000_000} {
		for _, o := range outcomes {
			b.Run(fmt.Sprintf("keys=%d/%s", keys, o.name), func(b *testing.B) {
				benchmarkTake(b, keys, o.want, sliding(o.limit, time.Minute).Compile(), 0)
			})
		}
	}
}

// BenchmarkTakeLimitByRequest is one decision under a limit that is another one with each request,
// beside one under a limit that is always the same.
func BenchmarkTakeLimitByRequest(b *testing.B) {
	l := sliding(1<<40, time.Minute).Compile()
	b.Run("fixed", func(b *testing.B) { benchmarkTake(b, 1, 0, l, 0) })
	b.Run("another", func(b *testing.B) { benchmarkTake(b, 1, 0, l, 0xff) })
}

// benchmarkTake takes from so many keys, each of which has spent 1, in random order. differ masks
// by how much one request's limit is above another's.
func benchmarkTake(b *testing.B, keyCount int, want algorithms.Want, l algorithms.Limit, differ uint64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tab := newTable(2_000_000, sliding(1, time.Minute))
	for i := range keyCount {
		take(tab, sliding(1, time.Minute), i, t0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	var seed atomic.Uint64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		x := seed.Add(0x9e3779b97f4a7c15) | 1
		buf := make([]byte, 8)
		a, taken := Ask{Raw: buf, Now: t0, N: 1, Want: want}, Taken{}
		for pb.Next() {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			key, _ := bits.Mul64(x, uint64(keyCount))
			binary.BigEndian.PutUint64(buf, key)
			a.Limit, a.Key = l, keys.KeyOf(buf)
			a.Limit.Size += int64(x & differ)
			tab.Decide(&a, &taken)
		}
	})
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(keyCount), "B/key")
}

// Each stripe begins on a cache line of its own, with what a decision reads of it.
func TestWhatARequestReadsLiesTogether(t *testing.T) {
	const line = 64
	var tab windows
	var st stripe[algorithms.WindowState]
	for _, part := range []struct {
		name               string
		begins, ends, next uintptr
	}{
		{"the table's fields", unsafe.Offsetof(tab.machine), unsafe.Offsetof(tab.maxKeys) + 8, unsafe.Offsetof(tab.stripes)},
		{"a stripe's fields", unsafe.Offsetof(st.mu), unsafe.Offsetof(st.chunks) + unsafe.Sizeof(st.chunks), unsafe.Sizeof(st)},
	} {
		if part.begins != 0 || part.ends > line || part.next%line != 0 {
			t.Errorf("%s take bytes %d to %d, and the next ones begin at %d: want one line of %d, and whole lines", part.name, part.begins, part.ends, part.next, line)
		}
	}
}

// Keys that agree in half of their 128 bits have counts of their own, also where they stand in one
// slot of the index.
func TestKeysThatNearlyMeetAreApart(t *testing.T) {
	tab := newTable(100, hour)
	first := keys.KeyOf([]byte("first"))
	for i := range 8 {
		other := first
		other.B += uint64(i)
		if i >= 4 {
			other.A += uint64(i) << 40 // the low half, by which the index looks, is the same
			other.B = first.B
		}
		for n := range hour.Limit + 1 {
			if got := tab.Take(hour.Compile(), other, raw(i), t0, 1, allWaits).Allowed; got != (n < hour.Limit) {
				t.Errorf("key %d, request %d: admitted %t", i, n+1, got)
			}
		}
	}
}

// A client that goes away has waited for as long as it has by its own clock, whatever steps the
// table's clock took meanwhile.
func TestAClientLeavesAQueueOverAStep(t *testing.T) {
	queue := algorithms.Params{Kind: algorithms.LeakyBucket, Limit: 10, Window: time.Second, Queue: 3}
	key := raw(1)
	for _, test := range []struct {
		name   string
		step   time.Duration
		waited time.Duration // of the 300ms until its turn
		freed  bool
	}{
		{"no step", 0, 200 * time.Millisecond, true},
		{"a step ahead", time.Hour, 200 * time.Millisecond, true},
		{"a step back", -time.Hour, 200 * time.Millisecond, true},
		{"its turn has come", -time.Hour, 300 * time.Millisecond, false},
	} {
		l := queue.Compile()
		tab := of[algorithms.BucketState](queue, 10)
		tab.Configure(SyncConfig{Params: queue, Interval: time.Second}, 10)
		var last Taken
		for range 4 {
			last = tab.Take(l, keys.KeyOf(key), key, t0, 1, 0)
		}
		now := t0 + int64(test.waited)
		if test.step != 0 {
			tab.setOffset(now, test.step, true)
		}
		before := tab.Take(l, keys.KeyOf(key), key, now, 0, 0).Remaining
		tab.Leave(l, keys.KeyOf(key), last, now, 1)
		if got := tab.Take(l, keys.KeyOf(key), key, now, 0, 0).Remaining - before; (got == 1) != test.freed {
			t.Errorf("%s: the last of four leaves after %v: %d slots freed, want freed %v", test.name, test.waited, got, test.freed)
		}
	}
	tab := newTable(10, hour) // a kind without a queue has none to leave
	tab.Leave(hour.Compile(), keys.KeyOf(key), take(tab, hour, 1, t0), t0, 1)
	if got := take(tab, hour, 1, t0).Remaining; got != hour.Limit-2 {
		t.Errorf("a fixed window after Leave: %d left, want %d", got, hour.Limit-2)
	}
}
