package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An exactLog is every unit that a log was asked for, admitted or a penalty, with its instant.
type exactLog struct {
	window int64
	hits   []int64 // oldest first
}

// in is how many of the units are in the window that ends at now.
func (m *exactLog) in(now int64) (n int64) {
	for _, at := range m.hits {
		if now-at < m.window {
			n++
		}
	}
	return n
}

// penalize adds n units, of which as many as there are beyond the limit take the place of the
// oldest: a log stays at its length, however often a client is denied.
func (m *exactLog) penalize(now, n, limit int64) {
	n = min(n, limit)
	over := min(n, max(0, m.in(now)+n-limit))
	for i := 0; i < len(m.hits) && over > 0; {
		if now-m.hits[i] < m.window {
			over--
		}
		m.hits = append(m.hits[:i], m.hits[i+1:]...)
	}
	for range n {
		m.hits = append(m.hits, now)
	}
}

// Requests of one key under several limits, of which the denied ones count: a penalty under a low
// limit takes the place of as many units as it adds, and of no more. So what a higher limit has
// admitted is not forgotten before its time.
func TestPenaltiesUnderALowLimitForgetNoHits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := int64(rapid.SampledFrom(windows).Draw(t, "window"))
		limits := rapid.SliceOfN(rapid.Int64Range(1, 40), 2, 4).Draw(t, "limits")
		first := slidingLog.make(limits[0], time.Duration(window), 0)
		m, now := &exactLog{window: window}, epoch
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			now += rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(1, window/40), rapid.Int64Range(1, window)).Draw(t, "later")
			limit, n := rapid.SampledFrom(limits).Draw(t, "limit"), rapid.Int64Range(1, 5).Draw(t, "n")
			s := first.with(limit)
			used := m.in(now)
			d := s.take(now, n, 0)
			if want := used+n <= limit; d.Allowed != want {
				t.Fatalf("%d of %d are used: %d more are allowed: %v, want %v", used, limit, n, d.Allowed, want)
			}
			if d.Allowed {
				for range n {
					m.hits = append(m.hits, now)
				}
			} else {
				s.penalize(now, n)
				m.penalize(now, n, limit)
			}
			if own := s.(keyed[LogState]).s.own; own != m.in(now) || own < used {
				t.Fatalf("%d are in the log after %d of %d, want %d", own, n, limit, m.in(now))
			}
		}
	})
}
