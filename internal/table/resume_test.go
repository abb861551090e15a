package table

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A life is a limit whose process ends and is followed by another one, and beside it the same limit
// in a process that goes on.
type life[S any] struct {
	*rapid.T
	alg    algorithms.Params
	window int64
	now    int64
	ended  *Table[S] // the one that goes on, which is asked everything that the next one is
	next   *Table[S]
	// fullest is how long the fullest key would have taken to drain when the first one ended.
	fullest time.Duration
}

func begin[S any](t *rapid.T, alg algorithms.Params) *life[S] {
	l := &life[S]{T: t, alg: alg, window: int64(alg.Window), ended: of[S](alg, 10)}
	l.now = t0 + rapid.Int64Range(0, l.window).Draw(t, "start")
	l.configure(l.ended)
	return l
}

func (l *life[S]) configure(t *Table[S]) { t.Configure(SyncConfig{Params: l.alg}, 10) }

// step lets time pass: none, little, parts of a window, up to its boundary, some windows.
func (l *life[S]) step() {
	switch rapid.IntRange(0, 9).Draw(l.T, "step") {
	case 0, 1, 2:
	case 3:
		l.now += rapid.Int64Range(1, 3).Draw(l.T, "ns")
	case 4, 5:
		l.now += rapid.Int64Range(0, l.window/8).Draw(l.T, "part")
	case 6, 7:
		l.now += rapid.Int64Range(0, l.window).Draw(l.T, "most")
	case 8:
		l.now += l.window - l.now%l.window - rapid.Int64Range(0, 1).Draw(l.T, "boundary")
	case 9:
		l.now += rapid.Int64Range(0, 3*l.window).Draw(l.T, "pause")
	}
}

// history is requests of some keys, some of them refunded or charged for being denied.
func (l *life[S]) history() {
	for range rapid.IntRange(1, 25).Draw(l.T, "events") {
		l.step()
		key, n := raw(rapid.IntRange(0, 2).Draw(l.T, "key")), rapid.Int64Range(0, 4).Draw(l.T, "n")
		switch taken := l.ended.Take(l.alg.Compile(), keys.KeyOf(key), key, l.now, n, allWaits); rapid.IntRange(0, 6).Draw(l.T, "event") {
		case 0:
			if taken.Allowed {
				l.ended.Refund(l.alg.Compile(), keys.KeyOf(key), taken, n)
			}
		case 1:
			if !taken.Allowed {
				l.ended.Penalize(l.alg.Compile(), keys.KeyOf(key), taken, n)
			}
		}
	}
}

// end saves. The process that goes on looks at the clock at that moment as well.
func (l *life[S]) end() SavedCounts {
	for i := range 3 {
		l.ended.Take(l.alg.Compile(), keys.KeyOf(raw(i)), raw(i), l.now, 0, allWaits)
	}
	return l.ended.Save(l.now)
}

// restart saves and takes up again, under another limit, in a process that nobody may have come to
// before the next. All keys come back.
func (l *life[S]) restart(alg algorithms.Params) {
	saved := l.end()
	l.alg = alg
	l.configure(l.ended)
	for i := range 3 {
		l.fullest = max(l.fullest, l.ended.Take(l.alg.Compile(), keys.KeyOf(raw(i)), raw(i), l.now, 0, allWaits).Reset)
	}
	for range rapid.IntRange(1, 2).Draw(l.T, "restarts") {
		l.step()
		l.next = of[S](l.alg, 10)
		l.configure(l.next)
		l.next.Resume(l.alg, l.now, saved)
		saved = l.next.Save(l.now)
	}
}

// setBack sets the clock back by more than requests can be late before the next process begins. Who
// had spent something has not less to wait for then than in a process that goes on, and nobody
// waits for a time that may never come: in windows, that is two of them.
func (l *life[S]) setBack() {
	saved := l.end()
	l.now -= l.window/8 + 1 + rapid.Int64Range(0, 3*l.window).Draw(l.T, "by")
	if span := int64(l.alg.Epoch()); span-l.now%span <= span/8 {
		l.now -= span/8 + 1 // at a boundary, all that comes would be taken for late
	}
	l.next = of[S](l.alg, 10)
	l.configure(l.next)
	l.next.Resume(l.alg, l.now, saved)
	for i := range 3 {
		a, b := l.ended.Take(l.alg.Compile(), keys.KeyOf(raw(i)), raw(i), l.now, 0, allWaits).Decision, l.next.Take(l.alg.Compile(), keys.KeyOf(raw(i)), raw(i), l.now, 0, allWaits).Decision
		if most := max(a.Reset+a.Reset>>50+2, time.Duration(2*l.window)); b.Remaining > a.Remaining || b.Reset > most {
			l.Fatalf("key %d at %d: after a restart with the clock set back\n%+v, without a restart\n%+v", i, l.now, b, a)
		}
	}
}

// future asks both processes the same until they have said something else. differ says whether they
// have: of the first answers that are not equal.
func (l *life[S]) future(differ func(ended, next algorithms.Decision) bool) {
	for range rapid.IntRange(1, 15).Draw(l.T, "future") {
		key, n := raw(rapid.IntRange(0, 2).Draw(l.T, "key")), rapid.Int64Range(0, 4).Draw(l.T, "n")
		a, b := l.ended.Take(l.alg.Compile(), keys.KeyOf(key), key, l.now, n, allWaits).Decision, l.next.Take(l.alg.Compile(), keys.KeyOf(key), key, l.now, n, allWaits).Decision
		if differ(a, b) {
			l.Fatalf("%d units at %d: after a restart\n%+v, without one\n%+v", n, l.now, b, a)
		}
		if a.Allowed != b.Allowed {
			return
		}
		l.step()
	}
}

func drawLimit(t *rapid.T) int64 { return rapid.Int64Range(1, 12).Draw(t, "limit") }

func drawWindow(t *rapid.T) time.Duration {
	return rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Second, time.Second + 7, time.Minute, 97 * time.Hour, 720 * time.Hour}).Draw(t, "window")
}

// Windows decide after a restart as if there had been none, under the same limit or another one.
func TestWindowsSurviveARestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window, buckets := drawWindow(t), rapid.SampledFrom([]int{0, 1, 2, 7, 31}).Draw(t, "sub_windows")
		with := func(limit int64) algorithms.Params {
			if buckets == 0 {
				return fixed(limit, window)
			}
			return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: window, SubWindows: buckets}
		}
		l := begin[algorithms.WindowState](t, with(drawLimit(t)))
		l.history()
		if rapid.IntRange(0, 4).Draw(t, "set back") == 0 {
			l.setBack()
			return
		}
		l.restart(with(drawLimit(t)))
		l.future(func(ended, next algorithms.Decision) bool { return ended != next })
	})
}

// SubWindows do so as well, except the last bit of the level, which is saved in 53 of them and
// rounded up: none admits earlier.
func TestBucketsSurviveARestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window, kind := drawWindow(t), rapid.IntRange(0, 2).Draw(t, "kind")
		with := func(limit int64) algorithms.Params {
			size := rapid.SampledFrom([]int64{0, 1, 2, 3, 10, 31, 1000}).Draw(t, "size")
			return []algorithms.Params{
				{Kind: algorithms.TokenBucket, Limit: limit, Window: window, Burst: size},
				{Kind: algorithms.GCRA, Limit: limit, Window: window, Burst: size},
				{Kind: algorithms.LeakyBucket, Limit: limit, Window: window, Queue: size},
			}[kind]
		}
		l := begin[algorithms.BucketState](t, with(drawLimit(t)))
		l.history()
		if rapid.IntRange(0, 4).Draw(t, "set back") == 0 {
			l.setBack()
			return
		}
		l.restart(with(drawLimit(t)))
		l.future(func(ended, next algorithms.Decision) bool {
			// The last bit is that of what was saved, whatever is left of it.
			most := 2 + max(l.fullest, next.Reset)>>50
			if ended.Allowed && !next.Allowed {
				return next.Retry > most
			}
			later := func(ended, next time.Duration) bool { return next < ended || next > ended+most }
			return ended.Allowed != next.Allowed || next.Remaining > ended.Remaining || next.Remaining < ended.Remaining-1 ||
				later(ended.Retry, next.Retry) || later(ended.Reset, next.Reset) || later(ended.Delay, next.Delay)
		})
	})
}

// A log is saved as how much was spent in each aligned window. What that was is taken for later
// than it was, so in no window is more admitted than the limit over any number of restarts; and two
// windows later all is forgotten.
func TestLogsSurviveARestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := drawLimit(t)
		alg := algorithms.Params{Kind: algorithms.SlidingLog, Limit: limit, Window: drawWindow(t)}
		l := begin[algorithms.LogState](t, alg)
		type spent struct{ at, n int64 }
		var all []spent
		key := raw(0)
		for range rapid.IntRange(1, 4).Draw(t, "lives") {
			for range rapid.IntRange(0, 12).Draw(t, "requests") {
				l.step()
				n := rapid.Int64Range(0, 4).Draw(t, "n")
				taken := l.ended.Take(alg.Compile(), keys.KeyOf(key), key, l.now, n, allWaits)
				if !taken.Allowed {
					continue
				}
				if rapid.IntRange(0, 4).Draw(t, "refunded") == 0 {
					l.ended.Refund(alg.Compile(), keys.KeyOf(key), taken, n)
					continue
				}
				all = append(all, spent{l.now, n})
				sum := int64(0)
				for _, s := range all {
					if l.now-s.at < l.window {
						sum += s.n
					}
				}
				if sum > limit {
					t.Fatalf("%d admitted in the window that ends at %d, limit %d: %v", sum, l.now, limit, all)
				}
			}
			saved := l.ended.Save(l.now)
			l.step()
			l.ended = New[algorithms.LogState](algorithms.SlidingLog, 10)
			l.configure(l.ended)
			l.ended.Resume(alg, l.now, saved)
		}
		l.now += 2 * l.window
		if d := l.ended.Take(alg.Compile(), keys.KeyOf(key), key, l.now, 0, allWaits).Decision; d.Remaining != limit {
			t.Fatalf("two windows after the last request: %+v", d)
		}
	})
}

// What was saved of keys that have not come back is seen and forgiven as if they had.
func TestWhatWasSavedIsSeenAndForgiven(t *testing.T) {
	for i := range algorithms.KindNames() {
		k := algorithms.Kind(i)
		algorithms.ByState(k, seenAndForgiven[algorithms.WindowState], seenAndForgiven[algorithms.BucketState], seenAndForgiven[algorithms.LogState])(t, k)
	}
}

func seenAndForgiven[S any](t *testing.T, k algorithms.Kind) {
	most := int64(0)
	rapid.Check(t, func(t *rapid.T) {
		l := begin[S](t, algorithms.Params{Kind: k, Limit: drawLimit(t), Queue: 9, Window: drawWindow(t)})
		l.history()
		l.restart(l.alg)
		come := of[S](l.alg, 10)
		l.configure(come)
		come.Resume(l.alg, l.now, l.next.Save(l.now))
		ask := func(table *Table[S]) (all []algorithms.Decision) {
			for i := range 3 {
				all = append(all, table.Take(l.alg.Compile(), keys.KeyOf(raw(i)), raw(i), l.now, 0, allWaits).Decision)
			}
			return all
		}
		ask(come)
		used := func(table *Table[S]) map[keys.ID]int64 {
			all := make(map[keys.ID]int64)
			table.EachSpend(l.now, func(s Spend) { all[s.ID] = s.Used })
			return all
		}
		if got, want := used(l.next), used(come); !maps.Equal(got, want) {
			t.Fatalf("%v: %v is seen before the keys come back, %v after that", k, got, want)
		}
		r := reset.Reset{Stamp: l.now / 1000, At: l.now, Until: l.now + int64(time.Hour)}
		set := &reset.Set{All: r}
		if rapid.Bool().Draw(t, "one key") {
			set = &reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf(raw(0)): r}}
		}
		got, want := l.next.Reset(l.now, set), come.Reset(l.now, set)
		if got != want {
			t.Fatalf("%v: %d requests are forgiven before the keys come back, %d after that", k, got, want)
		}
		if got, want := ask(l.next), ask(come); !slices.Equal(got, want) {
			t.Fatalf("%v: after the reset\n%+v, if keys had come back\n%+v", k, got, want)
		}
		most = max(most, got)
	})
	if most == 0 {
		t.Errorf("%v: nothing was ever forgiven", k)
	}
}
