package table

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A flood is a table with its known clients, and an attacker who comes with new keys.
type flood struct {
	maxKeys int
	alg     algorithms.Params
	table   *Table[algorithms.WindowState]
	now     int64
	next    uint64 // the number of the next new key
}

// flooded is what a flood ends in.
type flooded struct {
	full, after int64   // bytes: with all slots taken, and after the attack
	kept        bool    // all known clients have what they had left, no more and no less
	attackers   int64   // of their requests, how many were admitted
	first       float64 // of the newcomers' first requests, the part that was denied
}

// newFlood makes a table of so many keys.
func newFlood(maxKeys int, limit int64) *flood {
	f := &flood{maxKeys: maxKeys, alg: sliding(limit, time.Minute)}
	f.table = newTable(maxKeys, f.alg)
	f.now = t0 - t0%int64(time.Minute) + 1
	return f
}

// take asks for n requests of a key, and returns how many were admitted.
func (f *flood) take(id uint64, n int64) (admitted int64) {
	var raw [8]byte
	binary.LittleEndian.PutUint64(raw[:], id)
	key := keys.KeyOf(raw[:])
	for range n {
		if f.table.Take(f.alg.Compile(), key, raw[:], f.now, 1, allWaits).Allowed {
			admitted++
		}
	}
	return admitted
}

// newcomers come with a new key each and ask for n requests. It returns which part of their
// requests is admitted.
func (f *flood) newcomers(count int, n int64) float64 {
	admitted := int64(0)
	for range count {
		admitted += f.take(f.next, n)
		f.next++
	}
	return float64(admitted) / float64(int64(count)*n)
}

// run floods with so many keys in a window, each of which asks for n requests.
func (f *flood) run(others int, n int64) (result flooded) {
	empty := heapInUse()
	spent := min(3, (f.alg.Limit+1)/2)
	f.newcomers(f.maxKeys, spent)
	result.full = heapInUse() - empty
	result.attackers = int64(f.newcomers(others, n)*float64(int64(others)*n) + .5)
	result.after = heapInUse() - empty
	result.first = 1 - f.newcomers(2000, 1)
	result.kept = true
	for id := 0; id < f.maxKeys; id += 41 {
		result.kept = result.kept && f.take(uint64(id), f.alg.Limit) == f.alg.Limit-spent
	}
	return result
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// mostShared is what all shared counters take at most.
const mostShared = overflowCounters * bytesOfKey

// An attacker who comes with a new key for each request neither frees himself or anybody else, nor
// fills the memory. When he has gone, the memory is free again.
func TestRotatedKeys(t *testing.T) {
	for _, limit := range []int64{1, 10, 300} {
		f := newFlood(8_000, limit)
		got := f.run(100_000, 2)
		if !got.kept {
			t.Errorf("limit %d: known clients don't have what they had before the flood", limit)
		}
		if got.after > (got.full+mostShared)*11/10 || got.full > int64(f.maxKeys)*bytesOfKey*11/10 {
			t.Errorf("limit %d: %d bytes when the table was full, %d after the flood", limit, got.full, got.after)
		}
		if bytes := f.table.OverflowBytes(); bytes > mostShared {
			t.Errorf("limit %d: shared counters have %d bytes", limit, bytes)
		}
		if most := min(200_000, overflowCounters*limit); got.attackers > most || got.attackers < most/2 {
			t.Errorf("limit %d: %d of the attackers' requests admitted, want %d at most and half of that at least", limit, got.attackers, most)
		}
		f.now += 3 * int64(time.Minute)
		f.table.Sweep(f.now)
		if f.table.Overflowing() {
			t.Errorf("limit %d: counters are shared after the flood", limit)
		}
		runtime.KeepAlive(f)
	}
}

// A few keys beyond max_keys are told apart.
func TestFewNewcomersAreDenied(t *testing.T) {
	for _, limit := range []int64{2, 10, 100} {
		if got := newFlood(8_000, limit).run(5_000, 1); got.first > .02 {
			t.Errorf("limit %d: %.4f of newcomers denied, want at most 0.02", limit, got.first)
		}
	}
}

// TestFloodFigures prints a table of docs/internals/costs.md.
func TestFloodFigures(t *testing.T) {
	if !redistest.UpdateGoldens {
		t.Skip("for figures: UPDATE_GOLDENS=1 go test ./internal/table -run TestFloodFigures -v -timeout 20m")
	}
	fmt.Println("| other keys in a minute, once each | limit 1 | 10 | 100 | 1,000 |")
	fmt.Println("|---|---|---|---|---|")
	for _, others := range []int{1_000, 10_000, 65_536, 655_360, 6_553_600} {
		fmt.Printf("| %d |", others)
		for _, limit := range []int64{1, 10, 100, 1000} {
			got := newFlood(20_000, limit).run(others, 1)
			if !got.kept {
				t.Error("known clients don't have what they had before the flood")
			}
			fmt.Printf(" %.1f %% |", 100*got.first)
		}
		fmt.Println()
	}
	f := newFlood(1_000_000, 10)
	got := f.run(9_000_000, 1)
	fmt.Printf("a million keys: %.0f MB when the table was full, %.0f MB after the flood\n", float64(got.full)/1e6, float64(got.after)/1e6)
}
