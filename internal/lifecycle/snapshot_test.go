package lifecycle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// snapshotOf is a small snapshot: two limits, one of them with a window and a bucket.
func snapshotOf(at int64) Snapshot {
	return Snapshot{At: at, Limits: map[string]table.SavedCounts{
		`"caddy" "login" s-1m`: {
			keys.IDOf([]byte("a")): {{Epoch: 29920827, Remote: 5, Own: 3}, {Epoch: 29920826, Remote: 1, Own: 1}},
			keys.IDOf([]byte("b")): {{Epoch: 29920827, Remote: maxCount, Level: 2.5, LevelAt: at, Rate: 60}},
		},
		`"caddy" "empty" f-24h`: {},
	}, Resets: map[string]reset.Set{`"caddy" "empty" f-24h`: {
		All: reset.Reset{Stamp: 5, At: 5000, Until: 9000}, Keys: map[[16]byte]reset.Reset{{1}: {Stamp: 7, At: 7000, Until: 8000}},
	}}}
}

func TestSnapshotComesBackAsItWas(t *testing.T) {
	want := snapshotOf(12345)
	got, err := decodeSnapshot(want.encode())
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("decode = %v, %v, want %v", got, err, want)
	}
}

// Whatever happens to a file, it is known, and what is ours is distinguished from what is somebody
// else's.
func TestSnapshotThatIsNotWhole(t *testing.T) {
	whole := snapshotOf(12345).encode()
	for n := range len(whole) {
		if _, err := decodeSnapshot(whole[:n]); !errors.Is(err, errDamaged) {
			t.Fatalf("cut off after %d of %d bytes: %v, want %v", n, len(whole), err, errDamaged)
		}
		bad := slices.Clone(whole)
		bad[n] ^= 0x10
		if _, err := decodeSnapshot(bad); err == nil {
			t.Fatalf("byte %d of %d is another: no error", n, len(whole))
		}
	}
	for text, want := range map[string]error{
		"example.com {\n}\n": ErrForeign, "\x00": ErrForeign, "tide": errDamaged, "tide counters 3\nwhatever": errVersion, "tide counters 4\n": errDamaged,
	} {
		if _, err := decodeSnapshot([]byte(text)); !errors.Is(err, want) {
			t.Errorf("decode(%q) = %v, want %v", text, err, want)
		}
	}
}

// FuzzSnapshot: whatever a file holds, reading it ends, in little memory; what can be read says
// what was written, and counters that take it up still are some.
func FuzzSnapshot(f *testing.F) {
	whole := snapshotOf(replyTime).encode()
	f.Add(whole[len(firstLine):len(whole)-4], true)
	f.Add(whole, false)
	f.Add([]byte("example.com {\n}\n"), false)
	f.Add([]byte("\x02\x01a\xff\xff\xff\xff\x0f"), true)
	f.Fuzz(func(t *testing.T, b []byte, framed bool) {
		if framed {
			b = slices.Concat([]byte(firstLine), b)
			b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		}
		s, err := decodeSnapshot(b)
		if err != nil {
			return
		}
		if again, err := decodeSnapshot(s.encode()); err != nil || fmt.Sprint(again) != fmt.Sprint(s) {
			t.Fatalf("%v became %v, %v", s, again, err)
		}
		for _, keys := range s.Limits {
			resumeInAll(t, keys)
		}
	})
}

// What a save says that nobody has saved, epochs and instants from both ends of time, twice the
// same, levels without an end, frees nobody.
func TestSnapshotThatMakesNoSense(t *testing.T) {
	const minute = int64(time.Minute)
	random := rand.New(rand.NewPCG(1, 2))
	one := func(of ...int64) int64 { return of[random.IntN(len(of))] }
	for range redistest.Times(300, 3000) {
		reports := make([]algorithms.Report, random.IntN(4))
		for i := range reports {
			r := &reports[i]
			r.Epoch = one(replyTime/minute, replyTime/(2*minute), 3*replyTime/minute, 0, math.MinInt64, math.MaxInt64) + one(-1, 0, 1)
			r.Remote = one(0, 1, 5, maxCount)
			r.Own = one(0, r.Remote/2, r.Remote)
			r.Level = []float64{0, 1e-300, 7.5, maxCount}[random.IntN(4)]
			r.Rate = one(0, 1, 60_000, math.MaxInt64)
			r.LevelAt = one(0, replyTime, replyTime-minute/3, replyTime+minute, math.MinInt64, math.MaxInt64)
		}
		keys := table.SavedCounts{keys.ID{}: reports}
		s, err := decodeSnapshot(Snapshot{At: replyTime, Limits: map[string]table.SavedCounts{"": keys}}.encode())
		if err != nil {
			t.Fatalf("decoding %v: %v", reports, err)
		}
		resumeInAll(t, s.Limits[""])
	}
}

// resumeInAll takes a save up with each algorithm.
//
// no clock: it is replyTime.
func resumeInAll(t *testing.T, keys table.SavedCounts) {
	t.Helper()
	resumeIn[algorithms.WindowState](t, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Minute}, keys)
	resumeIn[algorithms.WindowState](t, algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 10, Window: time.Minute, SubWindows: 3}, keys)
	resumeIn[algorithms.LogState](t, algorithms.Params{Kind: algorithms.SlidingLog, Limit: 10, Window: time.Minute}, keys)
	resumeIn[algorithms.BucketState](t, algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: time.Minute, Burst: 20}, keys)
	resumeIn[algorithms.BucketState](t, algorithms.Params{Kind: algorithms.GCRA, Limit: 10, Window: time.Minute, Burst: 5}, keys)
	resumeIn[algorithms.BucketState](t, algorithms.Params{Kind: algorithms.LeakyBucket, Limit: 10, Window: time.Minute, Queue: 20}, keys)
}

const replyTime = int64(1_795_249_670_000_000_000)

// resumeIn takes a save up under the ID of a key that comes, or that has come already, and asks
// until nothing is left. Whatever was saved, no more is admitted than of a key that was never seen.
func resumeIn[S any](t *testing.T, alg algorithms.Params, counts table.SavedCounts) {
	raw, l := []byte("k"), alg.Compile()
	take := func(tab *table.Table[S]) algorithms.Decision {
		return tab.Take(l, keys.KeyOf(raw), raw, replyTime, 1, algorithms.WantNext|algorithms.WantReset).Decision
	}
	most := tableOf[S](alg).Take(l, keys.KeyOf(raw), raw, replyTime, 0, 0).Remaining
	for _, reports := range counts {
		for before := range int64(3) {
			tab := tableOf[S](alg)
			for range before {
				take(tab)
			}
			tab.Resume(alg, replyTime, table.SavedCounts{keys.IDOf(raw): slices.Clone(reports)})
			for admitted := before; ; admitted++ {
				d := take(tab)
				if d.Remaining < 0 || d.Remaining > most-admitted || d.Retry < 0 || d.Next < 0 || d.Reset < 0 || d.Allowed == (d.Retry > 0) {
					t.Fatalf("after %d and %v, %d later: %+v", before, reports, admitted, d)
				}
				if !d.Allowed {
					break
				}
				if admitted == most {
					t.Fatalf("after %d and %v: more than %d are admitted", before, reports, most)
				}
			}
			if own := tab.Totals(replyTime).Own; own < 0 {
				t.Fatalf("after %d and %v: %d own", before, reports, own)
			}
			tab.Save(replyTime)
		}
	}
}

// tableOf is an empty table.
func tableOf[S any](alg algorithms.Params) *table.Table[S] {
	tab := table.New[S](alg.Kind, 10)
	tab.Configure(table.SyncConfig{Params: alg, Interval: time.Second}, 10)
	return tab
}
