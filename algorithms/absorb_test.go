package algorithms

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheOrderOfReportsMakesNoDifference(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		s.advance(w.now)
		s.merge(w.now, Report{Epoch: s.ledger().Epoch, Remote: 3}, Report{Epoch: s.ledger().Epoch - 1, Remote: 4})
		s.take(w.step(t), 2, 0)
		now := w.step(t)
		reports := drawReports(t, s, now)
		whole, parts, turned := s.clone(), s.clone(), s.clone()
		whole.merge(now, reports...)
		slices.Reverse(reports)
		turned.merge(now, reports...)
		alike(t, turned, whole, *w)
		s.advance(now)
		for i := range reports {
			reports[i].Level, reports[i].LevelAt = 0, 0 // comes with all epochs in one call
		}
		whole, turned = s.clone(), s.clone()
		whole.merge(now, reports...)
		for _, r := range reports {
			parts.merge(now, r)
		}
		slices.Reverse(reports)
		for _, r := range reports {
			turned.merge(now, r)
		}
		if whole.level(now) != parts.level(now) || whole.level(now) != turned.level(now) {
			t.Fatalf("level after one call %v, after several %v, in turned order %v", whole.level(now), parts.level(now), turned.level(now))
		}
		alike(t, parts, whole.clone(), *w)
		alike(t, turned, whole, *w)
	})
}

func TestReportsThatComeOneAfterTheOtherHaveTheEffectOfTheLast(t *testing.T) {
	eachOf(t, ledgerKinds, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		s.advance(w.now)
		s.merge(w.now, Report{Epoch: s.ledger().Epoch, Remote: 0}, Report{Epoch: s.ledger().Epoch - 1})
		s.take(w.step(t), 2, 0)
		now := w.step(t)
		s.advance(now)
		e := s.ledger().Epoch
		once := s.clone()
		sums := rapid.SliceOfN(rapid.Int64Range(0, 20), 1, 5).Draw(t, "sums")
		for _, sum := range sums {
			s.merge(now, Report{Epoch: e, Remote: sum})
		}
		once.merge(now, Report{Epoch: e, Remote: sums[len(sums)-1]})
		alike(t, s, once, *w)
	})
}

func TestAnUnsettledKeyTakesItsReportsInAnyOrder(t *testing.T) {
	eachOf(t, ledgerKinds, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		s.advance(w.now)
		s.ledger().Synced = false
		reports := drawReports(t, s, w.now)
		turned := s.clone()
		s.merge(w.now, reports...)
		slices.Reverse(reports)
		turned.merge(w.now, reports...)
		got := s.ledger().Synced
		if want := len(reports) > 0; got != want {
			t.Fatalf("settled %v after %d reports", got, len(reports))
		}
		alike(t, turned, s, *w)
	})
}

func TestWindowsAbsorbInAnyOrderAcrossInstants(t *testing.T) {
	for _, k := range windowKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s, w := k.stirred(t)
				first := w.now
				later := first + rapid.Int64Range(0, s.span()-1-first%s.span()).Draw(t, "later")
				s.advance(first)
				e := s.ledger().Epoch
				reports := []Report{{Epoch: e, Remote: 5}, {Epoch: e - 1, Remote: 7}}
				turned := s.clone()
				s.merge(first, reports[0])
				s.merge(later, reports[1])
				turned.merge(first, reports[1])
				turned.merge(later, reports[0])
				w.now = later
				alike(t, turned, s, *w)
			})
		})
	}
}

func TestReportsOfOtherEpochsAreIgnored(t *testing.T) {
	for _, k := range ledgerKinds {
		s := k.make(10, time.Minute, 0)
		want := s.clone().take(epoch, 4, 0)
		s.advance(epoch)
		e := s.ledger().Epoch
		s.merge(epoch, Report{Epoch: e + 1, Remote: 9}, Report{Epoch: e - 40, Remote: 9}, Report{Epoch: math.MinInt64, Remote: 9, Level: 5, LevelAt: epoch})
		if got := s.take(epoch, 4, 0); got != want || s.ledger().Synced {
			t.Errorf("%s: got %+v, settled %v; want %+v, not settled", k.name, got, s.ledger().Synced, want)
		}
	}
}

func TestWhatOthersSpentIsSpent(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.make(10, time.Minute, 0)
		start := epoch - epoch%int64(time.Minute)
		s.others(start, 0)
		mine, theirs := rapid.Int64Range(0, 6).Draw(t, "mine"), rapid.Int64Range(0, 20).Draw(t, "theirs")
		s.take(start, mine, 0)
		s.others(start, theirs)
		d := s.take(start, 0, 0)
		if want := max(0, 10-mine-theirs); d.Remaining != want {
			t.Fatalf("%d own and %d remote of 10: %d left, want %d", mine, theirs, d.Remaining, want)
		}
		if over := mine + theirs - 10; over > 0 && s.level(start) != 0 && s.level(start) != float64(mine+theirs) {
			t.Fatalf("level %v, want the debt, %d", s.level(start), mine+theirs)
		}
	})
}

func TestASyncWithoutNewsChangesNothing(t *testing.T) {
	eachOf(t, ledgerKinds, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		s.advance(w.now)
		l := s.ledger()
		s.merge(w.now, Report{Epoch: l.Epoch, Remote: l.Cur.Remote}, Report{Epoch: l.Epoch - 1, Remote: l.Prev.Remote})
		for range 5 {
			s.take(w.step(t), rapid.Int64Range(0, 3).Draw(t, "n"), 0)
		}
		quiet := s.clone()
		l = s.ledger()
		s.merge(w.now, Report{Epoch: l.Epoch, Remote: l.Cur.Remote}, Report{Epoch: l.Epoch - 1, Remote: l.Prev.Remote})
		alike(t, s, quiet, *w)
	})
}

func TestALogKeepsWhatOthersSpentUntilItsSixteenthHasLeft(t *testing.T) {
	const window, sixteenth = int64(16 * time.Second), int64(time.Second)
	s := keyOf[LogState](Params{Kind: SlidingLog, Limit: 100, Window: time.Duration(window)})
	start := epoch - epoch%window
	s.merge(start+3*sixteenth+7, Report{Epoch: start/sixteenth + 3, Remote: 60})
	s.merge(start+9*sixteenth, Report{Epoch: start/sixteenth + 9, Remote: 1})
	leaves := start + 4*sixteenth + window
	if got := s.take(leaves-1, 0, 0).Remaining; got != 39 {
		t.Errorf("1ns before the sixteenth leaves: %d left, want 39", got)
	}
	if got := s.take(leaves, 0, 0).Remaining; got != 99 {
		t.Errorf("when the sixteenth leaves: %d left, want 99", got)
	}
}

// What others refund lowers the sixteenth in which they had spent it, and no other.
func TestALogTakesBackWhatOthersGiveBack(t *testing.T) {
	const window, sixteenth = int64(16 * time.Second), int64(time.Second)
	s := keyOf[LogState](Params{Kind: SlidingLog, Limit: 100, Window: time.Duration(window)})
	first := (epoch - epoch%window) / sixteenth
	s.merge(first*sixteenth, Report{Epoch: first, Remote: 2})
	s.merge((first+3)*sixteenth, Report{Epoch: first, Remote: 0}, Report{Epoch: first + 3, Remote: 40})
	for _, test := range []struct{ at, want int64 }{{3, 60}, {19, 60}, {20, 100}} {
		if got := s.take((first+test.at)*sixteenth, 0, 0).Remaining; got != test.want {
			t.Errorf("after %ds: %d left, want %d", test.at, got, test.want)
		}
	}
}

func TestANewcomerHoldsAllSlicesOfOthers(t *testing.T) {
	k := keyOf[WindowState](Params{Kind: SlidingWindow, Limit: 100, Window: time.Minute, SubWindows: 6})
	now := epoch
	k.advance(now)
	e := k.ledger().Epoch
	for age := range int64(7) {
		k.merge(now, Report{Epoch: e - age, Remote: 10})
	}
	if got := k.take(now, 0, 0).Remaining; got < 30 || got > 40 {
		t.Errorf("six sub-windows of 10 remote and one that fades: %d remain, want 30 to 40", got)
	}
}
