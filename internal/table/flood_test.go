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

// A flood is a table with its known clients, and an attacker who comes with nine new keys for each
// of them.
type flood struct {
	maxKeys int
	alg     algorithms.Params
	table   *Table[algorithms.WindowState]
	now     int64
	next    uint64 // the number of the next new key
}

// flooded is what a flood ends in.
type flooded struct {
	full, after int64 // bytes: with all slots and the sketch taken, and after the attack
	bound       int64 // bytes: what the documents say of so many keys and their sketch
	kept        bool  // all known clients have what they had left, no more and no less
	attackers   float64
	first       float64 // of the newcomers' first requests, how many were denied
	ten         float64 // of their first ten, or as many as their limit allows
}

const bytesPerKey = 190 // docs/internals/costs.md

// newFlood makes a table with a sketch of so many words in a row: what a table of more keys has, as
// a small one has a wider sketch.
func newFlood(maxKeys int, limit, words int64) *flood {
	f := &flood{maxKeys: maxKeys, alg: sliding(limit, time.Minute)}
	f.table = New[algorithms.WindowState](algorithms.SlidingWindow, maxKeys)
	f.table.overflow.Store(newSketch(words, limit, time.Minute))
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

// run floods for a number of windows. In each, every attacker's key asks for n requests and is
// never used again.
func (f *flood) run(windows int, n int64) (result flooded) {
	empty := heapInUse() - f.table.OverflowBytes()
	spent := min(3, (f.alg.Limit+1)/2)
	f.newcomers(f.maxKeys, spent)
	f.newcomers(1, 1) // the one too many
	result.full = heapInUse() - empty
	result.bound = int64(f.maxKeys)*bytesPerKey + f.table.OverflowBytes()
	due := min(n, f.alg.Limit)
	for w := range windows {
		if w > 0 {
			f.now += int64(time.Minute)
			for id := range f.maxKeys {
				f.take(uint64(id), spent)
			}
		}
		result.attackers += f.newcomers(9*f.maxKeys, n) * float64(n) / float64(due) / float64(windows)
	}
	result.after = heapInUse() - empty
	const newcomers = 2000
	result.first = 1 - f.newcomers(newcomers, 1)
	result.ten = 1 - f.newcomers(newcomers, min(10, f.alg.Limit))
	if windows == 1 {
		result.kept = true
		for id := 0; id < f.maxKeys; id += 41 {
			result.kept = result.kept && f.take(uint64(id), f.alg.Limit) == f.alg.Limit-spent
		}
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

// An attacker who comes with a new key for each request, ten times as many as the table has room
// for, neither frees himself or anybody else, nor fills the memory, nor locks newcomers out.
func TestRotatedKeys(t *testing.T) {
	for _, limit := range []int64{1, 2, 10, 300} {
		f := newFlood(8_000, limit, 8*8_000).run(1, 1)
		if !f.kept {
			t.Errorf("limit %d: known clients don't have what they had before the flood", limit)
		}
		if f.after > f.full*11/10 {
			t.Errorf("limit %d: %d bytes when the table was full, %d after the flood, want at most a tenth more", limit, f.full, f.after)
		}
		if f.full > f.bound*11/10 {
			t.Errorf("limit %d: %d bytes, want at most a tenth more than the %d that the documents say", limit, f.full, f.bound)
		}
		if f.attackers > 1 || f.first > .01 {
			t.Errorf("limit %d: %.4f of the attackers' requests admitted, %.4f of newcomers' first requests denied, want at most 1 and 0.01", limit, f.attackers, f.first)
		}
	}
}

// Attackers who spend all of each key's limit get what is theirs and no more.
func TestSpentKeys(t *testing.T) {
	for _, limit := range []int64{1, 4} {
		f := newFlood(8_000, limit, 8*8_000).run(1, limit+1)
		if !f.kept {
			t.Errorf("limit %d: known clients don't have what they had before the flood", limit)
		}
		if f.attackers > 1.1 || f.attackers < .9 {
			t.Errorf("limit %d: attackers got %.4f of their limits, want 0.9 to 1.1", limit, f.attackers)
		}
		if f.first > .01 {
			t.Errorf("limit %d: %.4f of newcomers' first requests denied, want at most 0.01", limit, f.first)
		}
	}
}

// A limit that is raised beyond what the sketch can count has a wider one, beside the one in which
// keys have counted until then; one that is lowered keeps it.
func TestSketchGrowsWithTheLimit(t *testing.T) {
	f := newFlood(1, 10, 8)
	f.take(0, 1)
	if got := f.take(1, 100); got != 10 {
		t.Errorf("beyond the bound: %d admitted of a limit of 10", got)
	}
	for _, step := range []struct{ limit, want int64 }{
		{14, 4}, {15, 1}, {254, 239}, {255, 1}, {4094, 3839}, {4095, 1}, {10000, 5905}, {9000, 0}, {10001, 1},
	} {
		f.alg.Limit = step.limit
		if got := f.take(1, 20000); got != step.want {
			t.Errorf("beyond the bound, limit now %d: %d admitted, want %d", step.limit, got, step.want)
		}
	}
}

// TestFloodFigures prints a table of docs/internals/floods.md. Its first rows are a million keys at
// an eighth of the size: with as many words of the sketch for each key they are the same, but for
// chance.
func TestFloodFigures(t *testing.T) {
	if !redistest.UpdateGoldens {
		t.Skip("for figures: UPDATE_GOLDENS=1 go test ./internal/table -run TestFloodFigures -v -timeout 20m")
	}
	fmt.Println("| max_keys | limit | requests of each attacker's key | windows | bytes, full table | after the flood | attackers got of what is theirs | newcomers denied, 1 request | ten, or the limit |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	const eighth, words = 1_000_000 / 8, maxSketchWidth / 8
	for _, c := range []struct {
		maxKeys         int
		limit, n, words int64
		windows         int
	}{
		{eighth, 1, 1, words, 1}, {eighth, 2, 1, words, 1}, {eighth, 10, 1, words, 1}, {eighth, 100, 1, words, 1}, {eighth, 1000, 1, words, 1}, {eighth, 10, 1, words, 3},
		{eighth, 10, 11, words, 1}, {eighth, 10, 11, words, 3}, {20_000, 100, 101, minSketchWidth, 1}, {5_000, 1000, 1001, minSketchWidth, 1}, {1_000, 10_000, 10_001, minSketchWidth, 1},
		{1_000_000, 10, 1, maxSketchWidth, 1},
	} {
		f := newFlood(c.maxKeys, c.limit, c.words).run(c.windows, c.n)
		if c.windows == 1 && !f.kept {
			t.Error("known clients don't have what they had before the flood")
		}
		fmt.Printf("| %d | %d | %d | %d | %.1f MB | %.1f MB | %.2f %% | %.2f %% | %.2f %% |\n", c.maxKeys, c.limit, c.n, c.windows,
			float64(f.full)/1e6, float64(f.after)/1e6, 100*f.attackers, 100*f.first, 100*f.ten)
	}
}
