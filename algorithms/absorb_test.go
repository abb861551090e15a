package algorithms

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheOrderOfReportsMakesNoDifference(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		stir(t, s, w)
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
		if isUnsettled(s) {
			return // of such a key all epochs are reported in one call
		}
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
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		stir(t, s, w)
		s.advance(w.now)
		s.merge(w.now, Report{Epoch: s.ledger().Epoch, Remote: 0}, Report{Epoch: s.ledger().Epoch - 1})
		s.take(w.step(t), 2, 0)
		now := w.step(t)
		s.advance(now)
		e := s.ledger().Epoch
		if isUnsettled(s) { // it takes its first report for all there is, up to the brim
			s.merge(now, Report{Epoch: e})
		}
		if isUnsettled(s) {
			return // it waits until others have told again
		}
		once := s.clone()
		sums := rapid.SliceOfN(rapid.Int64Range(0, 20), 1, 5).Draw(t, "sums")
		for _, sum := range sums {
			s.merge(now, Report{Epoch: e, Remote: sum})
		}
		once.merge(now, Report{Epoch: e, Remote: sums[len(sums)-1]})
		alike(t, s, once, *w)
	})
}

// isUnsettled reports whether a bucket takes its next report for all that others have spent.
func isUnsettled(s subject) bool {
	k, ok := s.(keyed[BucketState])
	return ok && (k.s.merged == nil || k.s.isStale(k.limit))
}

func TestAnUnsettledKeyTakesItsReportsInAnyOrder(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		stir(t, s, w)
		s.advance(w.now)
		s.ledger().Synced = false
		reports := drawReports(t, s, w.now)
		turned := s.clone()
		s.merge(w.now, reports...)
		slices.Reverse(reports)
		turned.merge(w.now, reports...)
		got := s.ledger().Synced
		// A bucket to which nothing is reported, though it knew of others, waits until they have
		// sent again.
		unsure := s.ledger().IsEmpty() && slices.Contains([]string{"token_bucket", "gcra", "leaky_bucket"}, k.name)
		if want := len(reports) > 0; got != want && !(want && unsure) {
			t.Fatalf("settled %v after %d reports", got, len(reports))
		}
		alike(t, turned, s, *w)
	})
}

func TestWindowsAbsorbInAnyOrderAcrossInstants(t *testing.T) {
	for _, k := range windowKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := k.draw(t)
				w := newWalk(t, s)
				stir(t, s, w)
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
	for _, k := range kinds {
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
		e := start / s.span()
		s.merge(start, Report{Epoch: e})
		mine, theirs := rapid.Int64Range(0, 6).Draw(t, "mine"), rapid.Int64Range(0, 20).Draw(t, "theirs")
		s.take(start, mine, 0)
		s.merge(start, Report{Epoch: e, Remote: theirs})
		d := s.take(start, 0, 0)
		if want := max(0, 10-mine-theirs); d.Remaining != want {
			t.Fatalf("%d own and %d remote of 10: %d left, want %d", mine, theirs, d.Remaining, want)
		}
		if over := mine + theirs - 10; over > 0 && s.level(start) != 0 && s.level(start) != float64(mine+theirs) {
			t.Fatalf("level %v, want the debt, %d", s.level(start), mine+theirs)
		}
	})
}

func TestABucketSpreadsWhatOthersSpent(t *testing.T) {
	const second = int64(time.Second)
	start := epoch - epoch%(100*second)
	e := start / (100 * second)
	tests := []struct {
		name         string
		mine, theirs int64 // Both in the 10s between two syncs: mine at the end of it.
		base, want   float64
	}{
		// 10 drain in the interval.
		{"nothing anywhere", 0, 0, 0, 0},
		{"all of theirs drained meanwhile", 0, 8, 0, 0},
		{"theirs drained, my own burst stands", 6, 8, 0, 6},
		{"more than drains", 0, 14, 0, 4},
		{"more than drains, on my own burst", 6, 14, 0, 10},
		{"no idle time to drain theirs in", 0, 3, 15, 8},
		{"some idle time", 0, 8, 5, 3},
		{"debt", 0, 200, 0, 190},
	}
	for _, k := range bucketKinds {
		for _, test := range tests {
			s := k.make(100, 100*time.Second, 0)
			s.take(start, int64(test.base), 0)
			s.merge(start, Report{Epoch: e})
			now := start + 10*second
			s.take(now, test.mine, 0)
			s.merge(now, Report{Epoch: e, Remote: test.theirs})
			if got := s.level(now); got != test.want {
				t.Errorf("%s: %s: level %v, want %v", k.name, test.name, got, test.want)
			}
		}
	}
}

// What others have admitted in all may have drained long ago, where they could not report it: the
// fill says what is left.
func TestTheFillBoundsWhatOthersSpent(t *testing.T) {
	const second = int64(time.Second)
	start := epoch - epoch%(100*second)
	e := start / (100 * second)
	for _, k := range bucketKinds {
		for _, test := range []struct {
			name           string
			confirmed, own int64 // spent before, and since
			theirs         int64
			level, want    float64 // 10s later, when 10 have drained
		}{
			{"all of it stands", 50, 0, 30, 70, 70},
			{"some of it stands", 50, 0, 150, 70, 70},
			{"none of it stands", 50, 0, 150, 40, 40},
			{"the fill is of a higher limit's node, which drains faster", 50, 0, 30, 25, 40},
			{"the fill lags behind", 50, 0, 5, 90, 45},
			{"what is not confirmed comes on top", 50, 20, 150, 70, 90},
			{"all of it is not confirmed", 0, 20, 150, 30, 50},
		} {
			s := k.make(100, 100*time.Second, 200)
			s.take(start, test.confirmed, 0)
			s.ledger().Cur.Acked = test.confirmed
			s.merge(start, Report{Epoch: e})
			now := start + 10*second
			s.take(now, test.own, 0)
			forgot := s.clone()
			s.merge(now, Report{Epoch: e, Remote: test.theirs, Level: test.level, LevelAt: now})
			if got := s.level(now); got != test.want {
				t.Errorf("%s: %s: level %v, want %v", k.name, test.name, got, test.want)
			}
			before := s.level(now)
			s.merge(now, Report{Epoch: e, Remote: test.theirs + 2})
			if got := s.level(now); got < before || got > before+2 {
				t.Errorf("%s: %s: level %v after 2 more, want %v", k.name, test.name, got, before+2)
			}
			// A store that has forgotten knows less than what it reports by and by.
			forgot.ledger().ResetAcks()
			forgot.merge(now, Report{Epoch: e, Remote: test.theirs, Level: test.level, LevelAt: now})
			if got, least := forgot.level(now), max(0, float64(test.confirmed-10))+float64(test.own+test.theirs)-10; got < least {
				t.Errorf("%s: %s: level %v with a store that has forgotten, want %v at least", k.name, test.name, got, least)
			}
		}
	}
}

// A key that was not synced for so long that the ledger can't report all goes by the fill; one
// whose last sync is in an epoch that is still held takes what is new, however long ago that was.
func TestABucketGoesByItsDeltasAsLongAsItHoldsThem(t *testing.T) {
	const minute = int64(time.Minute)
	start := epoch - epoch%minute
	e := start / minute
	for _, test := range []struct {
		name    string
		limit   int64
		later   int64 // minutes
		settled bool
		want    float64 // of 50 spent at first by this node, 30 since by others, and a fill of 180
	}{
		{"the same epoch", 1, 0, false, 80},
		{"the next", 1, 1, false, 79},
		{"two epochs later", 1, 2, false, 180},
		{"two epochs later, of a long interval", 1, 2, true, 180},
		{"a bucket that drains within its epoch, of a long interval", 200, 2, true, 0},
		{"the same, after a pause", 200, 2, false, 180},
	} {
		for _, k := range bucketKinds {
			s := k.make(test.limit, time.Minute, 200)
			s.take(start, 50, 0)
			s.ledger().Cur.Acked = 50
			s.merge(start, Report{Epoch: e})
			now := start + test.later*minute
			s.advance(now)
			s.ledger().Synced = test.settled
			s.merge(now, Report{Epoch: max(e, e+test.later-1), Remote: 30, Level: 180, LevelAt: now})
			if got := s.level(now); got != test.want {
				t.Errorf("%s: %s: level %v, want %v", k.name, test.name, got, test.want)
			}
		}
	}
}

// A burst of this node alone must stand, however long the bucket was idle before.
func TestASyncWithoutNewsChangesNothing(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		stir(t, s, w)
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

func TestAnUnsettledBucketAdoptsTheLevelOfOthers(t *testing.T) {
	const second = int64(time.Second)
	start := epoch - epoch%(100*second)
	e := start / (100 * second)
	now := start + 10*second
	tests := []struct {
		name    string
		mine    int64
		reports []Report
		want    float64
	}{
		{"a level of now", 0, []Report{{Epoch: e, Remote: 500, Level: 40.5, LevelAt: now}}, 40.5},
		{"an older one has drained", 0, []Report{{Epoch: e, Remote: 500, Level: 40.5, LevelAt: start}}, 30.5},
		{"a drained one", 0, []Report{{Epoch: e, Remote: 500, Level: 5, LevelAt: start}}, 0},
		{"what I spent since comes on top", 3, []Report{{Epoch: e, Remote: 500, Level: 40, LevelAt: now}}, 43},
		{"the newer epoch decides where the older has drained", 3, []Report{{Epoch: e - 1, Remote: 500, Level: 5, LevelAt: start}, {Epoch: e, Remote: 40, Level: 40, LevelAt: now}}, 43},
		{"of two the higher decides", 3, []Report{{Epoch: e, Remote: 5, Level: 5, LevelAt: now}, {Epoch: e - 1, Remote: 500, Level: 90, LevelAt: start}}, 83},
		{"none known: as much as fits", 3, []Report{{Epoch: e, Remote: 500, Level: 0, LevelAt: 0}}, 100},
		{"none known: a lump", 3, []Report{{Epoch: e, Remote: 20, Level: 0, LevelAt: 0}, {Epoch: e - 1, Remote: 5, Level: 0, LevelAt: 0}}, 28},
		{"nonsense", 3, []Report{{Epoch: e, Remote: 20, Level: math.NaN(), LevelAt: now}}, 3},
	}
	for _, k := range bucketKinds {
		for _, test := range tests {
			s := k.make(100, 100*time.Second, 0)
			s.take(now, test.mine, 0)
			s.merge(now, test.reports...)
			if got := s.level(now); got != test.want {
				t.Errorf("%s: %s: level %v, want %v", k.name, test.name, got, test.want)
			}
			// From here on only what is new counts.
			s.merge(now, Report{Epoch: e, Remote: s.ledger().Cur.Remote + 2})
			if got := s.level(now); got != test.want+2 {
				t.Errorf("%s: %s: level %v after 2 more, want %v", k.name, test.name, got, test.want+2)
			}
		}
	}
}

// What was known at the last sync is in the level of the others too, and counts once.
func TestABucketThatComesBackKnowsItsOwnPast(t *testing.T) {
	const second = int64(time.Second)
	start := epoch - epoch%(100*second)
	e := start / (100 * second)
	for _, by := range []int64{0, 300 * second, -7 * second} {
		s := tokenBucket.make(100, 100*time.Second, 0)
		s.take(start, 50, 0)
		s.ledger().Cur.Acked = 50
		s.merge(start, Report{Epoch: e})
		s.ledger().Synced = false
		s.shift(start+by, time.Duration(by))
		now := start + by + 10*second
		s.take(now, 5, 0) // 40 of the past and 5 new.
		s.merge(now, Report{Epoch: s.ledger().Epoch, Remote: 30, Level: 60, LevelAt: start + by})
		if got := s.level(now); got != 55 {
			t.Errorf("shifted by %v: level %v, want 50 of all and 5 new", time.Duration(by), got)
		}
	}
}

// Ten nodes share a bucket of 10 that drains 100 a second and sync every second. Demand is .8
// of what drains, so next to nothing should be denied.
func TestSteadyDemandBelowTheRateIsAdmitted(t *testing.T) {
	const nodes, tick = 10, int64(time.Second)
	for _, k := range []kind{tokenBucket, gcra} {
		random := rand.New(rand.NewPCG(3, 4))
		fleet := make([]subject, nodes)
		for i := range fleet {
			fleet[i] = k.make(100, time.Second, 10)
		}
		asked, admitted := 0, 0
		now := epoch - epoch%tick
		for next := now + tick; asked < 8000; {
			now += int64(random.ExpFloat64() * 1e9 / 80)
			for ; now >= next; next += tick {
				syncFleet(fleet, next)
			}
			asked++
			if fleet[random.IntN(nodes)].take(now, 1, 0).Allowed {
				admitted++
			}
		}
		if got := float64(admitted) / float64(asked); got < .97 {
			t.Errorf("%s: admitted %.2f of .8 of the rate, want nearly all", k.name, got)
		}
	}
}

// syncFleet gives each of a fleet what all of them spent.
func syncFleet(fleet []subject, now int64) {
	e := now / fleet[0].span()
	for _, epoch := range []int64{e, e - 1} {
		var sum int64
		for _, s := range fleet {
			s.advance(now)
			c, _ := s.ledger().At(epoch)
			sum += c.Own
		}
		for _, s := range fleet {
			c, _ := s.ledger().At(epoch)
			s.merge(now, Report{Epoch: epoch, Remote: sum - c.Own})
		}
	}
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
