package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What is said to others is what counts here, by the sixteenth of each instant, also where the
// first sync comes late; and it counts for others as long as it does here, and at most a sixteenth
// longer.
func TestALogSaysItsHitsBySixteenths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := slidingLog.draw(t)
		w := newWalk(t, s)
		part, spent := s.span(), map[int64]int64{}
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			now, n := w.step(t), rapid.Int64Range(0, 5).Draw(t, "n")
			if !s.take(now, n, 0).Allowed {
				continue
			}
			if spent[now/part] += n; rapid.IntRange(0, 3).Draw(t, "refund") == 0 {
				s.refund(now, n)
				spent[now/part] -= n
			}
			if rapid.IntRange(0, 5).Draw(t, "sync") != 0 {
				continue
			}
			s.advance(now)
			other := s.fresh()
			limit, window := s.rule()
			for age := range int64(s.history() + 1) {
				e := now/part - age
				c, _ := s.ledger().At(e)
				none := e*part > now-int64(window) // has left
				if want := spent[e]; none && c.Own != want {
					t.Fatalf("%d in the sixteenth of age %d, want %d", c.Own, age, want)
				}
				other.merge(now, Report{Epoch: e, Remote: c.Own})
			}
			mine, theirs := s.clone().take(now, limit+1, 0), other.take(now, limit+1, 0)
			if theirs.Remaining > mine.Remaining {
				t.Fatalf("%d of %d are left for others, and %d here", theirs.Remaining, limit, mine.Remaining)
			}
			if late := theirs.Reset - mine.Reset; mine.Reset > 0 && (late < 0 || int64(late) > 17*part-int64(window)) {
				t.Fatalf("nothing counts for others after %v, and after %v here", theirs.Reset, mine.Reset)
			}
		}
	})
}

// What a store has granted counts by sixteenths, and so does all that this node has decided, until
// nothing of this node counts.
func TestWhatAStoreGrantsALogCountsBySixteenths(t *testing.T) {
	log := keyOf[LogState](Params{Kind: SlidingLog, Limit: 10, Window: 16 * time.Second})
	at := func(sec float64) int64 { return int64(sec * float64(time.Second)) }
	log.take(at(100.2), 3, 0)
	log.machine.Advance(log.s, log.limit, at(101.5))
	log.machine.Adopt(log.s, log.limit, 101, 4)
	log.take(at(102.5), 1, 0)
	if d := log.take(at(102.5), 0, 0); d.Next != 14500*time.Millisecond || d.Reset != 16500*time.Millisecond {
		t.Errorf("8 are spent, less after %v and nothing after %v, want 14.5s and 16.5s", d.Next, d.Reset)
	}
	for _, test := range []struct {
		at   float64
		left int64
	}{{102.5, 2}, {116.9, 2}, {117, 5}, {117.9, 5}, {118, 9}, {118.9, 9}, {119, 10}} {
		if got := log.take(at(test.at), 0, 0).Remaining; got != test.left {
			t.Errorf("at %v: %d left, want %d", test.at, got, test.left)
		}
	}
	log.take(at(120.75), 1, 0)
	if got := log.take(at(136.75), 0, 0).Remaining; got != 10 {
		t.Errorf("a window after a request that no store has granted: %d left, want 10", got)
	}
}

func TestALogGivesBackOnlyWhatIsInTheWindow(t *testing.T) {
	log := keyOf[LogState](Params{Kind: SlidingLog, Limit: 2, Window: time.Minute})
	at := func(sec int64) int64 { return sec * int64(time.Second) }
	log.take(at(0), 1, 0)
	log.take(at(70), 1, 0)
	log.refund(at(0), 1) // later than a window after it was taken
	if d := log.take(at(70), 0, 0); d.Remaining != 1 {
		t.Errorf("what was taken 70 s ago is refunded: %+v, want one remaining, as the request of now still counts", d)
	}
}

// After a step of the clock by no whole sixteenths, what is said of a log is in the sixteenths in
// which its instants are then.
func TestALogSaysItsHitsWhereAStepHasMovedThem(t *testing.T) {
	log := keyOf[LogState](Params{Kind: SlidingLog, Limit: 10, Window: 16 * time.Second})
	at := func(sec float64) int64 { return int64(sec * float64(time.Second)) }
	log.take(at(100.25), 3, 0)
	log.take(at(100.75), 4, 0)
	log.advance(at(101))
	log.shift(at(102.5), 1500*time.Millisecond)
	for epoch, want := range map[int64]int64{100: 0, 101: 3, 102: 4} {
		if c, _ := log.ledger().At(epoch); c.Own != want {
			t.Errorf("%d are said of the sixteenth %d, want %d", c.Own, epoch, want)
		}
	}
}

// Requests that read their clocks before others did are logged late, and are refunded in any order:
// what counts is what was taken and not refunded.
func TestALogGivesBackAllThatLateRequestsTook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 1 << 20
		log := keyOf[LogState](Params{Kind: SlidingLog, Limit: limit, Window: time.Hour})
		type request struct{ taken, n int64 }
		var open []request
		base, now, spent := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano(), int64(0), int64(0)
		for range rapid.IntRange(2, 40).Draw(t, "events") {
			if len(open) > 0 && rapid.Bool().Draw(t, "refund") {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				n := rapid.Int64Range(0, open[i].n).Draw(t, "refunded")
				log.refund(base+open[i].taken, n)
				spent -= n
				open = append(open[:i], open[i+1:]...)
			} else {
				now += rapid.Int64Range(0, 10).Draw(t, "ms") * int64(time.Millisecond)
				late := rapid.Int64Range(0, 20).Draw(t, "late") * int64(time.Millisecond)
				r := request{now - late, rapid.Int64Range(1, 9).Draw(t, "n")}
				log.take(base+r.taken, r.n, 0)
				open, spent = append(open, r), spent+r.n
			}
			if left := log.clone().take(base+now, 0, 0).Remaining; left != limit-spent {
				t.Fatalf("%d count, want the %d that were taken and not refunded", limit-left, spent)
			}
		}
	})
}
