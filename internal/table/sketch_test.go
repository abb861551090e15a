package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const sketchStart = 1_700_000_000_000_000_000

// limitOf is n in a minute.
func limitOf(n int64) algorithms.Limit {
	return algorithms.Params{Kind: algorithms.FixedWindow, Limit: n, Window: time.Minute}.Compile()
}

func TestSketchWindowsRoll(t *testing.T) {
	s := newSketch(minSketchWidth, 10, time.Minute)
	limit := limitOf(10)
	key := keys.Key{A: 1, B: 2}
	admitted := func(now int64) (n int) {
		for {
			if d, _ := s.Take(limit, key, now, 1, 0); !d.Allowed {
				return n
			}
			n++
		}
	}
	start := sketchStart - sketchStart%int64(time.Minute)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{
		{0, 10}, {time.Minute, 0}, {90 * time.Second, 5}, {2 * time.Minute, 5}, {5 * time.Minute, 10},
		{5*time.Minute - time.Microsecond, 0}, // a request that read its clock before another did
		{65536*time.Minute + 9*time.Minute, 10},
	} {
		if got := admitted(start + int64(step.after)); got != step.want {
			t.Errorf("after %v: %d admitted, want %d", step.after, got, step.want)
		}
	}
}

// Keys that share a cell fill it, and what is then refunded never frees one of them.
func TestFullCellsGiveNothingBack(t *testing.T) {
	s := newSketch(1, 14, time.Minute) // all keys share six cells of each row
	limit := limitOf(14)
	victim := keys.Key{A: 1, B: 2}
	admitted := func() bool {
		d, _ := s.Take(limit, victim, sketchStart, 1, 0)
		return d.Allowed
	}
	for admitted() {
	}
	for range 100 {
		s.add(victim, sketchStart/int64(time.Minute), 1)
	}
	for range 50 {
		s.Give(s.number, victim, sketchStart, 1)
	}
	if admitted() {
		t.Error("a key that has spent its limit is admitted after others refunded in its cells")
	}
}

// A sketch that was given back counts nothing any more, and none takes its place: the next one
// begins empty.
func TestASketchThatWasGivenBack(t *testing.T) {
	s, limit, key := newSketch(minSketchWidth, 10, time.Minute), limitOf(10), keys.Key{A: 1, B: 2}
	for range 10 {
		s.Take(limit, key, sketchStart, 1, 0)
	}
	later := int64(sketchStart + 5*time.Minute)
	if !s.Expire(later, true) {
		t.Fatal("an old sketch is not given back")
	}
	if d, ok := s.Take(limit, key, later, 1, 0); ok {
		t.Errorf("Take() = %+v", d)
	}
	if s.Charge(limit, key, later, 1, false) || s.Spent(key, later) != 0 || s.Suits(limit) || s.Expire(later, true) {
		t.Errorf("it counts %d, suits: %t", s.Spent(key, later), s.Suits(limit))
	}
	if at, ok := s.Last(); ok {
		t.Errorf("its newest epoch began at %d", at)
	}
	next := s.Next(minSketchWidth, sketchStart, limit) // a request that read its clock early
	if got := next.Spent(key, sketchStart); got != 0 || next.Used() {
		t.Errorf("the next one counts %d, used: %t, want none", got, next.Used())
	}
	next.Give(s.Number(), key, sketchStart, 1) // what was taken in one that is gone
	if d, ok := next.Take(limit, key, sketchStart, 1, 0); !ok || d.Remaining != 9 {
		t.Errorf("Take() of the next one = %+v, %t, want 9 to remain", d, ok)
	}
}

// What is refunded to an epoch that has ended in its cells since stays spent.
func TestUnitsOfAnEpochThatHasEndedStaySpent(t *testing.T) {
	s, limit, key := newSketch(minSketchWidth, 10, time.Minute), limitOf(10), keys.Key{A: 1, B: 2}
	start := int64(sketchStart - sketchStart%int64(time.Minute))
	s.Take(limit, key, start, 6, 0)
	s.Take(limit, key, start+int64(time.Minute), 1, 0)
	s.Give(s.Number(), key, start, 6)
	for row := range s.words {
		// as where the epoch ends in between
		s.change(s.cell(row, key), start/int64(time.Minute), -6)
	}
	if got := s.Spent(key, start+int64(time.Minute)); got != 7 {
		t.Errorf("%d count, want 7", got)
	}
}

// A bucket that holds less than drains in its window is counted in the time in which it drains, and
// what a limit admits in the window of another one is rounded up.
func TestSketchWindowOfABucket(t *testing.T) {
	bucket := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 7, Window: time.Minute, Burst: 2}.Compile()
	s := (*sketch)(nil).Next(minSketchWidth, sketchStart, bucket)
	if want := 2 * time.Minute / 7; s.window != want {
		t.Errorf("the sketch of 7 a minute, 2 at once, counts in %v, want %v", s.window, want)
	}
	for l, want := range map[algorithms.Limit]int64{bucket: 2, limitOf(7): 2, limitOf(8): 3, limitOf(0): 0} {
		if got := s.Limit(l); got != want {
			t.Errorf("%+v admits %d in %v, want %d", l, got, s.window, want)
		}
	}
}
