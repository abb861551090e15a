package algorithms

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A subject is one key under one limit, so that one test holds for all kinds. It has the roles
// of a machine, its limit, and copies.
type subject interface {
	decider
	replica
	limited
	copier
}

// decider is what a request needs.
type decider interface {
	take(now, n, unseen int64) Decision
	waits(now, n, unseen int64, want Want) Waits
	// undrained is how much must be unseen at now so that so much of it is held against a request.
	undrained(now, unseen int64) int64
	penalize(now, n int64)
	charge(now, n int64)
	refund(taken, n int64)
}

// replica is what syncs and sweeps need.
type replica interface {
	ledger() *Ledger
	advance(now int64)
	merge(now int64, reports ...Report)
	// others has the store say at now that all others have spent n.
	others(now, n int64)
	shift(now int64, by time.Duration)
	level(now int64) float64
	idle(now int64) bool
}

// limited is the limit, and what follows from it.
type limited interface {
	rule() (limit int64, window time.Duration)
	span() int64
	history() int
	// with shares the state under another limit.
	with(limit int64) subject
}

// copier makes subjects of the same limit: clone with a deep copy of the state, fresh with a zero
// state.
type copier interface {
	clone() subject
	fresh() subject
	state() any
}

// allWaits are those that there are where nothing was denied, and those where something was.
const allWaits = WantNext | WantReset

type keyed[S any] struct {
	Params
	machine Machine[S]
	limit   Limit
	s       *S
	// of is the same kind with another limit.
	of func(limit int64) Params
}

// keyOf is a key never seen under a limit.
func keyOf[S any](p Params) keyed[S] {
	return keyed[S]{p, MachineBy[S](p.Kind, p.Calendar), p.Compile(), new(S), func(limit int64) Params {
		p.Limit = limit
		return p
	}}
}

func (k keyed[S]) take(now, n, unseen int64) Decision {
	r, want := k.machine.Take(k.s, k.limit, now, n, unseen), allWaits
	if !r.Allowed {
		want |= WantRetry
	}
	return Decision{r, k.waits(now, n, unseen, want)}
}

func (k keyed[S]) waits(now, n, unseen int64, want Want) Waits {
	return k.machine.Waits(k.s, k.limit, now, n, unseen, want)
}

func (k keyed[S]) undrained(now, unseen int64) int64 {
	if s, ok := k.clone().state().(*BucketState); ok && s.shared != nil {
		s.advance(k.limit, now)
		unseen += s.shared.idle.whole
	}
	return unseen
}

func (k keyed[S]) others(now, n int64) {
	k.advance(now)
	l := k.ledger()
	b, ok := k.machine.(Bucketed[S])
	if !ok {
		k.merge(now, Report{Epoch: l.Epoch, Remote: n})
		return
	}
	update := b.Update(k.s, k.limit, now, time.Second)
	level := BucketLevel{Whole: update.Whole + n - l.Cur.Remote, Rest: update.Rest, At: now, Rate: update.Rate}
	b.MergeReply(k.s, k.limit, now, BucketReply{BucketLevel: level, Total: l.Cur.Own, Others: n})
}

func (k keyed[S]) penalize(now, n int64)             { k.machine.Penalize(k.s, k.limit, now, n) }
func (k keyed[S]) charge(now, n int64)               { k.machine.Charge(k.s, k.limit, now, n) }
func (k keyed[S]) refund(taken, n int64)             { k.machine.Refund(k.s, k.limit, taken, n) }
func (k keyed[S]) merge(now int64, r ...Report)      { k.machine.Merge(k.s, k.limit, now, r) }
func (k keyed[S]) idle(now int64) bool               { return k.machine.Idle(k.s, k.limit, now) }
func (k keyed[S]) shift(now int64, by time.Duration) { k.machine.Shift(k.s, k.limit, now, by) }
func (k keyed[S]) ledger() *Ledger                   { return k.machine.Ledger(k.s) }
func (k keyed[S]) advance(now int64)                 { k.machine.Advance(k.s, k.limit, now) }
func (k keyed[S]) span() int64 {
	if k.Kind.Traits().Draining {
		return k.limit.Window // it has no epochs
	}
	return int64(k.Epoch())
}
func (k keyed[S]) history() int { return k.limit.History }
func (k keyed[S]) level(now int64) float64 {
	level, _ := k.machine.Level(k.s, k.limit, now)
	return level
}
func (k keyed[S]) rule() (int64, time.Duration) { return k.Limit, k.Window }
func (k keyed[S]) fresh() subject               { k.s = new(S); return k }
func (k keyed[S]) state() any                   { return k.s }

func (k keyed[S]) clone() subject {
	c := k.machine.Clone(k.s)
	k.s = &c
	return k
}

func (k keyed[S]) with(limit int64) subject {
	k.Params = k.of(limit)
	k.limit = k.Params.Compile()
	return k
}

// A kind makes subjects.
type kind struct {
	Kind
	name string
}

func kindOf(k Kind) kind { return kind{k, k.String()} }

var (
	fixedWindow   = kindOf(FixedWindow)
	slidingWindow = kindOf(SlidingWindow)
	slidingLog    = kindOf(SlidingLog)
	tokenBucket   = kindOf(TokenBucket)
	gcra          = kindOf(GCRA)
	leakyBucket   = kindOf(LeakyBucket)
	byCalendar    = kind{FixedWindow, "calendar"}

	windowKinds = []kind{fixedWindow, slidingWindow}
	ledgerKinds = append(slices.Clone(windowKinds), slidingLog)
	bucketKinds = []kind{tokenBucket, gcra, leakyBucket}
	lengthKinds = slices.Concat(ledgerKinds, bucketKinds)
	kinds       = append(slices.Clone(lengthKinds), byCalendar)
)

// make makes a subject. extra is the buckets of a sliding window, the burst of a bucket, and one
// more than the queue of a leaky bucket.
func (k kind) make(limit int64, window time.Duration, extra int64) subject {
	of := func(limit int64) Params {
		p := Params{Kind: k.Kind, Limit: limit, Window: window}
		switch {
		case k == byCalendar:
			p.Window = []time.Duration{Day, Week, Month, Year}[(int(window/time.Millisecond)+len(window.String()))%4]
			p.Calendar = stJohns[p.Window]
		case k == slidingWindow:
			p.SubWindows = int(min(extra, 40))
		case k == leakyBucket && extra > 0:
			p.Queue = extra - 1
		case k == leakyBucket:
			p.Queue = limit - 1
		default:
			p.Burst = extra
		}
		return p
	}
	switch {
	case k.Traits().Windowed:
		return subjectOf[WindowState](of, limit)
	case k.Kind == SlidingLog:
		return subjectOf[LogState](of, limit)
	}
	return subjectOf[BucketState](of, limit)
}

func subjectOf[S any](of func(limit int64) Params, limit int64) subject {
	k := keyOf[S](of(limit))
	k.of = of
	return k
}

// stJohns are calendars of a zone whose clocks have been set back over midnight.
var stJohns = func() map[time.Duration]*Calendar {
	zone, err := time.LoadLocation("America/St_Johns")
	if err != nil {
		panic(err)
	}
	all := map[time.Duration]*Calendar{}
	for _, window := range []time.Duration{Day, Week, Month, Year} {
		all[window] = &Calendar{Window: window, Zone: zone, From: 31, Last: new(atomic.Pointer[Span])}
	}
	return all
}()

// lengthAt is the length of the window at an instant, where that is not by a calendar the window.
func lengthAt(s subject, now int64, window time.Duration) time.Duration {
	if k, ok := s.(keyed[WindowState]); ok && k.Calendar != nil {
		span := k.Calendar.At(now)
		return time.Duration(span.End - span.Begin)
	}
	return window
}

// size is how much a key never seen may spend at once.
func size(s subject) int64 { return s.fresh().take(epoch, 0, 0).Remaining }

// epoch is an instant to start from.
const epoch = int64(1_700_000_000_123_456_789)

// each runs a property for every algorithm.
func each(t *testing.T, property func(t *rapid.T, k kind)) {
	t.Helper()
	eachOf(t, kinds, property)
}

// eachOf runs a property for some of them.
func eachOf(t *testing.T, kinds []kind, property func(t *rapid.T, k kind)) {
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

// A walk is an instant that moves on at random, by steps that matter: none, tiny, parts of a
// window, boundaries, whole windows.
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
		w.now += w.window - w.now%w.window - rapid.Int64Range(0, 1).Draw(t, "boundary")
	case 9:
		w.now += rapid.Int64Range(0, 4*w.window).Draw(t, "pause")
	}
	return w.now
}

// stir lets a subject live through something of everything, and leaves it with any state that it
// can come to.
func stir(t *rapid.T, s subject, w *walk) {
	for range rapid.IntRange(0, 25).Draw(t, "events") {
		now := w.step(t)
		n := rapid.Int64Range(0, 5).Draw(t, "n")
		switch rapid.IntRange(0, 10).Draw(t, "event") {
		default:
			s.take(now, n, 0)
		case 6:
			if s.take(now, n, 0).Allowed {
				s.refund(now, n)
			}
		case 7:
			s.penalize(now, n)
		case 8:
			s.advance(now)
			if b, ok := s.(keyed[BucketState]); ok {
				hearSome(t, b, now)
				break
			}
			s.merge(now, drawReports(t, s, now)...)
		case 9:
			s.advance(now)
			if b, ok := s.(keyed[BucketState]); ok {
				b.machine.(Bucketed[BucketState]).Update(b.s, b.limit, now, time.Second)
				break
			}
			l := s.ledger()
			l.Ack(l.Epoch, l.Cur.Acked, l.Cur.Own, l.Cur.Own+l.Cur.Remote, false)
		case 10:
			s.charge(now, n)
		}
	}
}

// stirred draws a subject that has lived through something.
func (k kind) stirred(t *rapid.T) (subject, *walk) {
	s := k.draw(t)
	w := newWalk(t, s)
	stir(t, s, w)
	return s, w
}

// hearSome makes up what the store says of a bucket. It may have less of this node than was said,
// and may have been idle.
func hearSome(t *rapid.T, b keyed[BucketState], now int64) {
	h := BucketReply{Total: rapid.Int64Range(0, b.s.ledger.Cur.Own).Draw(t, "held"), Others: rapid.Int64Range(0, 15).Draw(t, "others")}
	h.Whole, h.Rate = rapid.Int64Range(-5, 20).Draw(t, "level"), b.limit.N
	h.Rest = rapid.Int64Range(0, int64(b.Window/time.Microsecond)-1).Draw(t, "rest")
	h.At = now - rapid.Int64Range(0, b.span()).Draw(t, "level age")
	b.machine.(Bucketed[BucketState]).MergeReply(b.s, b.limit, now, h)
}

// drawReports makes up what the store says of the current epoch and the one before. Totals of
// others can fall.
func drawReports(t *rapid.T, s subject, now int64) []Report {
	l := s.ledger()
	var reports []Report
	for _, e := range []int64{l.Epoch, l.Epoch - 1} {
		if rapid.Bool().Draw(t, "reported") {
			continue
		}
		r := Report{Epoch: e, Remote: rapid.Int64Range(0, 15).Draw(t, "remote")}
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
		n, unseen := rapid.Int64Range(0, 4).Draw(t, "n"), rapid.Int64Range(0, 3).Draw(t, "unseen")
		da := a.take(w.now, n, a.undrained(w.now, unseen))
		db := b.take(w.now, n, b.undrained(w.now, unseen))
		if da != db {
			t.Fatalf("take %d of the future, %d units at %d:\n got %+v\nwant %+v", i, n, w.now, da, db)
		}
		w.step(t)
	}
}
