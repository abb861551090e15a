package table

import (
	"crypto/sha256"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What an earlier process has saved is gone through in parts: a new key waits for one of them at
// most.
var minutes = algorithms.Epochs{Length: int64(time.Minute)}

func TestNoPartIsLarge(t *testing.T) {
	const keyCount = 200_000
	counts := make(SavedCounts, keyCount)
	for i := range keyCount {
		id := sha256.Sum256([]byte(strconv.Itoa(i)))
		counts[[16]byte(id[:16])] = []algorithms.Report{{Remote: 1}}
	}
	var s savedStore
	s.Replace(counts, minutes)
	most, all := 0, 0
	s.counts.Load().each(func(part SavedCounts) {
		most, all = max(most, len(part)), all+len(part)
	})
	if all != keyCount || most > 2*keyCount/savedPartCount {
		t.Errorf("%d keys in %d parts, the largest of %d: want all %d, and at most twice the mean", all, savedPartCount, most, keyCount)
	}
}

// What is taken out is gone, and what is over is dropped and not handed out any more.
func TestAStoreIsEmptied(t *testing.T) {
	const now = int64(1000 * time.Minute)
	l := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 5, Window: time.Minute}.Compile()
	first, second := [16]byte{1}, [16]byte{2}
	report := func(epoch int64) []algorithms.Report { return []algorithms.Report{{Epoch: epoch, Remote: 1}} }
	var s savedStore
	if !s.IsEmpty() || s.Take(first, l, now) != nil || s.Prune(l, now) != 0 || len(s.Left()) != 0 {
		t.Error("the zero Store is not empty")
	}
	s.Replace(SavedCounts{first: report(1000), second: report(997)}, minutes)
	if left := s.Prune(l, now); left != 1 || len(s.Left()) != 1 || s.IsEmpty() {
		t.Errorf("%d keys are left, want the one of now", left)
	}
	if s.Take(second, l, now) != nil {
		t.Error("what was over for long is handed out")
	}
	if got := s.Take(first, l, now); len(got) != 1 || got[0].Epoch != 1000 || s.Take(first, l, now) != nil {
		t.Errorf("Take = %v, want what was saved, and that once", got)
	}
	if s.Prune(l, now) != 0 || !s.IsEmpty() {
		t.Error("a Store of which all was taken out is not empty after Prune")
	}
}

// A level drains at the rate it was saved with, and not at that of the limit there is now.
func TestASavedLevelDrainsAtItsOwnRate(t *testing.T) {
	const at = int64(1000 * time.Hour)
	fast := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 << 20, Window: time.Minute}.Compile()
	id := [16]byte{1}
	for rate, want := range map[int64]int{1: 1, 0: 0, 1 << 20: 0} {
		var s savedStore
		s.Replace(SavedCounts{id: {{Epoch: at / int64(time.Minute), Level: 50, LevelAt: at, Rate: rate}}}, minutes)
		now := at + int64(30*time.Minute)
		if left := s.Prune(fast, now); left != want {
			t.Errorf("rate %d: %d keys left after 30m, want %d", rate, left, want)
		}
		if reports := s.Take(id, fast, now); len(reports) != want {
			t.Errorf("rate %d: reports %+v, want %d", rate, reports, want)
		}
	}
}

// What a node had admitted itself is its own again after a restart, so that it is sent. What the
// others had is not: they send it themselves.
func TestRestoredCountsAreTheNodesOwn(t *testing.T) {
	for _, k := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog} {
		algorithms.ByState(k, restoresOwn[algorithms.WindowState], nil, restoresOwn[algorithms.LogState])(t, k)
	}
}

func restoresOwn[S any](t *testing.T, k algorithms.Kind) {
	const now = int64(1000*time.Hour + time.Minute)
	m, l := algorithms.MachineOf[S](k), algorithms.Params{Kind: k, Limit: 9, Queue: 9, Window: time.Hour}.Compile()
	var before, after S
	m.Take(&before, l, now, 3, 0)
	m.Merge(&before, l, now, []algorithms.Report{{Epoch: m.Ledger(&before).Epoch, Remote: 2}})
	var few FewSaved
	counts := make(SavedCounts)
	few = FewSaved{ids: [][16]byte{{1}}, reports: appendReports(nil, m, l, &before, now)}
	few.ends = []int{len(few.reports)}
	few.Into(counts)
	if restoreSaved(m, l, &after, now, counts[[16]byte{1}]); m.Ledger(&after).Cur.Own != 3 || m.Ledger(&after).Cur.Remote != 2 {
		t.Errorf("%v: restored as %+v, want 3 of its own and 2 of others", k, m.Ledger(&after).Cur)
	}
}

// What was in a bucket is said as what is known of it: the store has it then, unless it has more.
func TestARestoredLevelIsSaid(t *testing.T) {
	for _, k := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		p := algorithms.Params{Kind: k, Limit: 9, Queue: 9, Window: time.Hour}
		before, s := of[algorithms.BucketState](p, 10), newStore()
		before.Configure(SyncConfig{Params: p}, 10)
		before.Take(p.Compile(), keys.KeyOf(raw(1)), raw(1), t0, 5, 0)
		saved := before.Save(t0)
		for _, name := range []string{"a", "b"} {
			n := &talker[algorithms.BucketState]{Table: of[algorithms.BucketState](p, 10), name: name}
			n.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
			n.Resume(p, t0, saved)
			n.Take(p.Compile(), keys.KeyOf(raw(1)), raw(1), t0, 1, 0)
			n.sync(s, t0)
		}
		if level := s.cells[keys.IDOf(raw(1))].sum(p.Window.Microseconds()); level.Whole != 7 || level.Rest > 1000 {
			t.Errorf("%v: %+v in the store, want the 5 that were saved and one of each node", k, level)
		}
	}
}
