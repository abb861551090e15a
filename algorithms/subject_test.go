package algorithms

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A subject is an algorithm together with one state, so that one test can be told of all of them.
type subject interface {
	take(now, n, hidden int64) Decision
	charge(now, n int64)
	giveBack(taken, n int64)
	absorb(now int64, reports ...Report)
	idle(now int64) bool
	shift(now int64, by time.Duration)
	ledger() *Ledger
	roll(now int64)
	span() int64
	live() int
	level(now int64) float64
	rule() (int64, time.Duration)

	// clone is the same algorithm with a deep copy of the state, fresh with a zero state.
	clone() subject
	fresh() subject
	// with shares the state under another limit, brief by parameters that are Brief.
	with(limit int64) subject
	brief() subject
	state() any
}

type pair[S any] struct {
	alg  Algorithm[S]
	s    *S
	copy func(*S) *S
	// make is the same kind with another limit.
	make func(limit int64, brief bool) Algorithm[S]
}

func (p pair[S]) take(now, n, hidden int64) Decision { return p.alg.Take(p.s, now, n, hidden) }
func (p pair[S]) charge(now, n int64)                { p.alg.Charge(p.s, now, n) }
func (p pair[S]) giveBack(taken, n int64)            { p.alg.Return(p.s, taken, n) }
func (p pair[S]) absorb(now int64, r ...Report)      { p.alg.Absorb(p.s, now, r) }
func (p pair[S]) idle(now int64) bool                { return p.alg.Idle(p.s, now) }
func (p pair[S]) shift(now int64, by time.Duration)  { p.alg.Shift(p.s, now, by) }
func (p pair[S]) ledger() *Ledger                    { return p.alg.Ledger(p.s) }
func (p pair[S]) roll(now int64)                     { p.alg.Roll(p.s, now) }
func (p pair[S]) span() int64                        { return int64(p.alg.Span(p.s)) }
func (p pair[S]) live() int                          { return p.alg.Live() }
func (p pair[S]) level(now int64) float64            { return p.alg.Level(p.s, now) }
func (p pair[S]) rule() (int64, time.Duration)       { return p.alg.Rule() }
func (p pair[S]) clone() subject                     { p.s = p.copy(p.s); return p }
func (p pair[S]) fresh() subject                     { p.s = new(S); return p }
func (p pair[S]) with(limit int64) subject           { p.alg = p.make(limit, false); return p }
func (p pair[S]) state() any                         { return p.s }

func (p pair[S]) brief() subject {
	limit, _ := p.alg.Rule()
	p.alg = p.make(limit, true)
	return p
}

// A kind makes subjects. extra is the buckets of a sliding window, the burst of a bucket, and one more than the queue of a leaky bucket.
type kind struct {
	name string
	make func(limit int64, window time.Duration, extra int64) subject
}

// kinds are all there are.
var kinds = []kind{
	{"fixed_window", func(limit int64, window time.Duration, _ int64) subject {
		return pairOf(copyWindow, limit, func(limit int64, brief bool) Algorithm[WindowState] { return FixedWindow{limit, window, brief} })
	}},
	{"sliding_window", func(limit int64, window time.Duration, extra int64) subject {
		return pairOf(copyWindow, limit, func(limit int64, brief bool) Algorithm[WindowState] {
			return SlidingWindow{limit, window, int(min(extra, 40)), brief}
		})
	}},
	{"sliding_log", func(limit int64, window time.Duration, _ int64) subject {
		return pairOf(copyLog, limit, func(limit int64, brief bool) Algorithm[LogState] { return SlidingLog{limit, window, brief} })
	}},
	{"token_bucket", func(limit int64, window time.Duration, extra int64) subject {
		return pairOf(copyBucket, limit, func(limit int64, brief bool) Algorithm[BucketState] {
			return TokenBucket{limit, window, extra, brief}
		})
	}},
	{"gcra", func(limit int64, window time.Duration, extra int64) subject {
		return pairOf(copyBucket, limit, func(limit int64, brief bool) Algorithm[BucketState] { return GCRA{limit, window, extra, brief} })
	}},
	{"leaky_bucket", func(limit int64, window time.Duration, extra int64) subject {
		return pairOf(copyBucket, limit, func(limit int64, brief bool) Algorithm[BucketState] {
			queue := extra - 1
			if extra <= 0 {
				queue = limit - 1
			}
			return LeakyBucket{limit, window, queue, brief}
		})
	}},
}

func pairOf[S any](copy func(*S) *S, limit int64, make func(limit int64, brief bool) Algorithm[S]) subject {
	return pair[S]{make(limit, false), new(S), copy, make}
}

func copyLedger(l Ledger) Ledger {
	if l.older != nil {
		c := older{packed: slices.Clone(l.older.packed)}
		if l.older.wide != nil {
			wide := slices.Clone(*l.older.wide)
			c.wide = &wide
		}
		l.older = &c
	}
	return l
}

func copyWindow(s *WindowState) *WindowState { return &WindowState{copyLedger(s.ledger)} }

func copyBucket(s *BucketState) *BucketState {
	c := s.copied(new(absorbed))
	return &c
}

func copyLog(s *LogState) *LogState {
	c := *s
	if c.units = maps.Clone(s.units); s.hits != nil {
		c.hits = append(make([]int64, 0, cap(s.hits)), s.hits...) // a log that has no more room is moved, one that has is not
	}
	if s.elsewhere != nil {
		e := *s.elsewhere
		c.elsewhere = &e
	}
	return &c
}

// size is how much a key never seen may spend at once.
func size(s subject) int64 { return s.fresh().take(epoch, 0, 0).Remaining }

// epoch is an instant to start from.
const epoch = int64(1_700_000_000_123_456_789)

// each runs a property for every algorithm.
func each(t *testing.T, property func(t *rapid.T, k kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { property(t, k) })
		})
	}
}

var windows = []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, time.Second + 7, time.Minute, 97 * time.Hour, 30 * 24 * time.Hour}

// draw makes a subject of a kind with small parameters.
func (k kind) draw(t *rapid.T) subject {
	limit := rapid.Int64Range(1, 12).Draw(t, "limit")
	window := rapid.SampledFrom(windows).Draw(t, "window")
	extra := rapid.SampledFrom([]int64{0, 1, 2, 3, 10, 31}).Draw(t, "extra")
	return k.make(limit, window, extra)
}

// A walk is an instant that moves on at random, by steps that matter: none, tiny, parts of a window, edges, whole windows.
type walk struct {
	now    int64
	window int64
}

func newWalk(t *rapid.T, s subject) *walk {
	_, window := s.rule()
	return &walk{epoch + rapid.Int64Range(0, int64(window)).Draw(t, "start"), int64(window)}
}

func (w *walk) step(t *rapid.T) int64 {
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
	case 2:
		w.now += rapid.Int64Range(1, 3).Draw(t, "ns")
	case 3, 4, 5:
		w.now += rapid.Int64Range(0, w.window/8).Draw(t, "part")
	case 6, 7:
		w.now += rapid.Int64Range(0, w.window).Draw(t, "most")
	case 8:
		w.now += w.window - w.now%w.window - rapid.Int64Range(0, 1).Draw(t, "edge")
	case 9:
		w.now += rapid.Int64Range(0, 4*w.window).Draw(t, "pause")
	}
	return w.now
}

// stir lets a subject live through something of everything, and leaves it with any state that it can come to.
func stir(t *rapid.T, s subject, w *walk) {
	for range rapid.IntRange(0, 25).Draw(t, "events") {
		now := w.step(t)
		n := rapid.Int64Range(0, 5).Draw(t, "n")
		switch rapid.IntRange(0, 9).Draw(t, "event") {
		default:
			s.take(now, n, 0)
		case 6:
			if s.take(now, n, 0).Allowed {
				s.giveBack(now, n)
			}
		case 7:
			s.charge(now, n)
		case 8:
			s.roll(now)
			s.absorb(now, drawReports(t, s, now)...)
		case 9:
			s.roll(now)
			l := s.ledger()
			l.Settle(l.Epoch, l.Cur.Acked, l.Cur.Own, l.Cur.Own+l.Cur.Elsewhere, false, false)
		}
	}
}

// drawReports makes up what the store says of the current epoch and the one before. Totals of others can fall.
func drawReports(t *rapid.T, s subject, now int64) []Report {
	l := s.ledger()
	var reports []Report
	for _, e := range []int64{l.Epoch, l.Epoch - 1} {
		if rapid.Bool().Draw(t, "reported") {
			continue
		}
		r := Report{Epoch: e, Elsewhere: rapid.Int64Range(0, 15).Draw(t, "elsewhere")}
		if rapid.Bool().Draw(t, "levelled") {
			r.Level = rapid.Float64Range(0, 15).Draw(t, "level")
			r.LevelAt = now - rapid.Int64Range(0, s.span()).Draw(t, "level age")
		}
		reports = append(reports, r)
	}
	return reports
}

// alike fails unless two subjects decide the same over one random future.
func alike(t *rapid.T, a, b subject, w walk) {
	t.Helper()
	for i := range rapid.IntRange(1, 12).Draw(t, "future") {
		n, hidden := rapid.Int64Range(0, 4).Draw(t, "n"), rapid.Int64Range(0, 3).Draw(t, "hidden")
		da, db := a.take(w.now, n, hidden), b.take(w.now, n, hidden)
		if da != db {
			t.Fatalf("take %d of the future, %d units at %d:\n got %+v\nwant %+v", i, n, w.now, da, db)
		}
		w.step(t)
	}
}
