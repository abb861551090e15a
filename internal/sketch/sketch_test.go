package sketch

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

const t0 = 1_700_000_000_000_000_000

// limitOf is n in a minute.
func limitOf(n int64) algorithms.Limit {
	return algorithms.Params{Kind: algorithms.FixedWindow, Limit: n, Window: time.Minute}.Compile()
}

func TestSketchWindowsRoll(t *testing.T) {
	s := New(MinWidth, 10, time.Minute)
	limit := limitOf(10)
	key := Key{1, 2}
	admitted := func(now int64) (n int) {
		for {
			if d, _ := s.Take(limit, key, now, 1, 0); !d.Allowed {
				return n
			}
			n++
		}
	}
	start := t0 - t0%int64(time.Minute)
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

// Keys that share a cell fill it, and what is then given back never frees one of them.
func TestFullCellsGiveNothingBack(t *testing.T) {
	s := New(1, 14, time.Minute) // all keys share six cells of each row
	limit := limitOf(14)
	victim := Key{1, 2}
	admitted := func() bool {
		d, _ := s.Take(limit, victim, t0, 1, 0)
		return d.Allowed
	}
	for admitted() {
	}
	for range 100 {
		s.add(victim, t0/int64(time.Minute), 1)
	}
	for range 50 {
		s.Give(s.number, victim, t0, 1)
	}
	if admitted() {
		t.Error("a key that has spent its limit is admitted after others gave back in its cells")
	}
}
