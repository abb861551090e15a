package algorithms

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestForgettingAnIdleKeyIsInvisible(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		for range 6 {
			if s.idle(w.now) {
				break
			}
			w.step(t)
		}
		if !s.idle(w.now) {
			t.Skip("never idle")
		}
		rolled := s.clone()
		rolled.advance(w.now)
		l := rolled.ledger()
		for age := range int64(s.history()) + 1 {
			c, ok := l.At(l.Epoch - age)
			if used := c.Own != 0 || c.Acked != 0; ok && used && (!k.Traits().Draining || c.Own < c.Acked) {
				t.Fatalf("Idle with %+v in the live epoch %d before the current one", c, age)
			}
		}
		alike(t, s, s.fresh(), *w)
	})
}

func TestEveryKeyIsIdleInTheEnd(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		limit, window := s.rule()
		if k.Traits().Draining {
			s.ledger().LowerAcked(s.ledger().Epoch) // what was refunded is said
		}
		// All that stir can have spent: 25 events of at most 15 for each of two epochs.
		end := w.now + 3*s.span() + 2*int64(window) + 800*int64(window)/limit
		if !s.idle(end) {
			t.Fatalf("not idle after %v", time.Duration(end-w.now))
		}
	})
}

func TestAnEpochThatWasReportedKeepsAKeyAlive(t *testing.T) {
	for _, k := range ledgerKinds {
		s := k.make(10, time.Second, 0)
		now := epoch - epoch%s.span() + 5
		s.take(now, 3, 0)
		l := s.ledger()
		l.Ack(l.Epoch, 0, 3, 3, false)
		s.refund(now, 3)
		if s.idle(now) {
			t.Errorf("%s: idle although the store holds a total of this epoch that must be taken back", k.name)
		}
		if s.idle(now + int64(s.history())*s.span()) {
			t.Errorf("%s: idle in the last epoch in which the total counts", k.name)
		}
		if gone := now + int64(s.history()+1)*s.span(); !s.idle(gone) {
			t.Errorf("%s: not idle when no Decision can use the epoch", k.name)
		}
	}
}

// What the store has of a bucket too much is taken back before the bucket is forgotten. Else what
// has drained is all that counts: a bucket that comes back has another name.
func TestADrainedBucketKeepsItsTotal(t *testing.T) {
	for _, k := range bucketKinds {
		s := k.make(10, time.Second, 0)
		now := epoch
		s.take(now, 3, 0)
		s.others(now, 0)
		if s.idle(now+int64(299*time.Millisecond)) || !s.idle(now+int64(300*time.Millisecond)) {
			t.Errorf("%s: want a bucket that is idle when it has drained", k.name)
		}
		s.refund(now, 1)
		drained := now + int64(time.Second)
		if s.level(drained) != 0 || s.idle(drained) {
			t.Errorf("%s: level %v, idle %v; want an empty bucket that is not idle", k.name, s.level(drained), s.idle(drained))
		}
		if s.others(drained, 0); s.ledger().Cur != (EpochCount{Own: 2, Acked: 2}) || !s.idle(drained) {
			t.Errorf("%s: %+v, want one that is idle when the refund was said", k.name, s.ledger().Cur)
		}
	}
}

func TestRetryAfterFromBothSides(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now, n := w.step(t), rapid.Int64Range(0, 14).Draw(t, "n")
		if rapid.Bool().Draw(t, "late") {
			now -= rapid.Int64Range(0, 1000).Draw(t, "lateness")
		}
		d := s.clone().take(now, n, 0)
		_, window := s.rule()
		switch {
		case d.Allowed:
			if d.Retry != 0 {
				t.Fatalf("admitted with RetryAfter %v", d.Retry)
			}
		case n > size(s):
			if window = lengthAt(s, now, window); d.Retry != window {
				t.Fatalf("RetryAfter of what never fits: got %v, want the window, %v", d.Retry, window)
			}
		default:
			s.take(now, n, 0)
			if d := s.clone().take(now+int64(d.Retry)-1, n, 0); d.Allowed {
				t.Fatalf("admitted 1ns before RetryAfter, %v", d)
			}
			if at := s.clone().take(now+int64(d.Retry), n, 0); !at.Allowed {
				t.Fatalf("denied at RetryAfter %v, which then is %v", d.Retry, at.Retry)
			}
		}
	})
}

func TestRemainingIsWhatIsAdmitted(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now := w.step(t)
		d := s.take(now, rapid.Int64Range(0, 6).Draw(t, "n"), 0)
		c := s.clone()
		for i := range d.Remaining {
			if !c.take(now, 1, 0).Allowed {
				t.Fatalf("denied unit %d of Remaining %d", i+1, d.Remaining)
			}
		}
		if c.take(now, 1, 0).Allowed {
			t.Fatalf("admitted more than Remaining %d", d.Remaining)
		}
	})
}

func TestNextAfterAndResetAfterFromBothSides(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now := w.step(t)
		d := s.take(now, rapid.Int64Range(0, 6).Draw(t, "n"), 0)
		peek := func(wait time.Duration) Decision { return s.clone().take(now+int64(wait), 0, 0) }
		if full := size(s); d.Next == 0 || d.Reset == 0 {
			if d.Next != d.Reset || d.Remaining != full {
				t.Fatalf("NextAfter %v, ResetAfter %v and Remaining %d of %d don't agree on whether anything is spent",
					d.Next, d.Reset, d.Remaining, full)
			}
			return
		}
		if got := peek(d.Next - 1).Remaining; got != d.Remaining {
			t.Fatalf("Remaining 1ns before NextAfter %v: got %d, want %d still", d.Next, got, d.Remaining)
		}
		if got := peek(d.Next).Remaining; got <= d.Remaining {
			t.Fatalf("Remaining at NextAfter %v: got %d, want more than %d", d.Next, got, d.Remaining)
		}
		if peek(d.Reset-1).Reset == 0 {
			t.Fatalf("all is reset 1ns before ResetAfter %v", d.Reset)
		}
		if got, want := peek(d.Reset), (Decision{Result: Result{Allowed: true, Remaining: size(s)}}); got != want {
			t.Fatalf("at ResetAfter %v: got %+v, want %+v", d.Reset, got, want)
		}
	})
}

func TestWaitsChangeNothing(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		for range rapid.IntRange(1, 12).Draw(t, "future") {
			now, n, unseen := w.step(t), rapid.Int64Range(0, 4).Draw(t, "n"), rapid.Int64Range(0, 3).Draw(t, "unseen")
			d := s.take(now, n, unseen)
			before := s.clone()
			want := Want(rapid.IntRange(0, int(WantRetry|WantNext|WantReset)).Draw(t, "want"))
			if d.Allowed {
				want &^= WantRetry
			}
			var told Waits
			if want&WantRetry != 0 {
				told.Retry = d.Retry
			}
			if want&WantNext != 0 {
				told.Next = d.Next
			}
			if want&WantReset != 0 {
				told.Reset = d.Reset
			}
			if got := s.waits(now, n, unseen, want); got != told {
				t.Fatalf("%d units at %d, %d unseen, want %b: got %+v, want %+v", n, now, unseen, want, got, told)
			}
			if !reflect.DeepEqual(s.state(), before.state()) {
				t.Fatalf("%d units at %d, %d unseen: waits leave\n got %+v\nwant %+v", n, now, unseen, s.state(), before.state())
			}
			if got := s.take(now, 0, unseen); got.Next != d.Next || got.Reset != d.Reset {
				t.Fatalf("asked once more with 0 units: %v and %v, want %v and %v", got.Next, got.Reset, d.Next, d.Reset)
			}
		}
	})
}

func TestAStepBackLocksNobodyOut(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		for range rapid.IntRange(1, 30).Draw(t, "takes") {
			s.take(w.step(t), rapid.Int64Range(1, 3).Draw(t, "n"), 0)
		}
		limit, window := s.rule()
		now := w.now - rapid.OneOf(
			rapid.Int64Range(0, int64(window)/4),
			rapid.Int64Range(0, 3*int64(window)),
			rapid.Just(epoch/2)).Draw(t, "back")
		longest := int64(max(lengthAt(s, w.now, window), lengthAt(s, now, window))) + lateness(int64(window))
		switch k.name {
		case "sliding_window":
			longest += int64(window)/limit + 1
		case "token_bucket", "gcra", "leaky_bucket":
			longest = size(s)*int64(window)/limit + 1 + lateness(int64(window))
		}
		d := s.take(now, 1, 0)
		if d.Allowed {
			return
		}
		if int64(d.Retry) > longest {
			t.Fatalf("RetryAfter %v, want at most %v", d.Retry, time.Duration(longest))
		}
		if !s.take(now+int64(d.Retry), 1, 0).Allowed {
			t.Fatalf("denied after RetryAfter %v", d.Retry)
		}
	})
}

func TestAStepBackFreesNobody(t *testing.T) {
	for _, k := range kinds {
		for _, back := range []time.Duration{time.Second, 50 * time.Second, 3 * time.Minute, 10000 * time.Hour} {
			s := k.make(10, time.Minute, 0)
			s.others(epoch, 0)
			s.take(epoch, 4, 0)
			s.others(epoch, 6)
			if d := s.take(epoch-int64(back), 1, 0); d.Allowed {
				t.Errorf("%s: an eleventh of 10 after a step back of %v: %+v", k.name, back, d)
			}
		}
	}
}

func TestALateRequestSpendsInThePresent(t *testing.T) {
	for _, k := range kinds {
		s := k.make(4, time.Second, 0)
		boundary := epoch - epoch%int64(time.Second)
		s.take(boundary, 3, 0)
		if d := s.take(boundary-1000, 1, 0); !d.Allowed || d.Remaining != 0 {
			t.Errorf("%s: late take: got %+v, want the fourth of 4", k.name, d)
		}
		if d := s.take(boundary-1000, 1, 0); d.Allowed {
			t.Errorf("%s: late take: got a fifth of 4", k.name)
		}
		if got := s.ledger().Cur.Own; got != 4 {
			t.Errorf("%s: own total after late takes: got %d, want 4", k.name, got)
		}
		if d := s.take(boundary+1, 1, 0); d.Allowed {
			t.Errorf("%s: after late takes: got a fifth of 4", k.name)
		}
	}
}

func TestTakeThenReturnLeavesNoTrace(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now := w.step(t)
		s.advance(now)
		before := s.clone()
		n := rapid.Int64Range(0, 6).Draw(t, "n")
		if !s.take(now, n, 0).Allowed {
			t.Skip("denied")
		}
		s.refund(now, n)
		if got, want := s.ledger().Cur, before.ledger().Cur; got != want {
			t.Fatalf("counts after Return: got %+v, want %+v", got, want)
		}
		alike(t, s, before, *w)
	})
}

func TestALogReturnsWhatAStepBackHasMoved(t *testing.T) {
	const second = int64(time.Second)
	s := slidingLog.make(10, time.Minute, 0)
	s.take(epoch, 2, 0)
	s.take(epoch+50*second, 3, 0)
	s.take(epoch+20*second, 0, 0) // The 3 stand here now.
	s.take(epoch+59*second, 1, 0)
	s.refund(epoch+50*second, 3)
	if got := s.take(epoch+80*second, 0, 0).Remaining; got != 9 {
		t.Errorf("%d left, want all but the one of 59s", got)
	}
}

func TestADeniedTakeLeavesNoTrace(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now := w.step(t)
		s.advance(now)
		before := s.clone()
		if s.take(now, rapid.Int64Range(1, 20).Draw(t, "n"), rapid.Int64Range(0, 20).Draw(t, "unseen")).Allowed {
			t.Skip("admitted")
		}
		if got, want := s.ledger().Cur, before.ledger().Cur; got != want {
			t.Fatalf("counts after a denial: got %+v, want %+v", got, want)
		}
		alike(t, s, before, *w)
	})
}

func TestPendingIsHeldAgainstARequestAndNeverStored(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		now := w.step(t)
		n, unseen := rapid.Int64Range(0, 6).Draw(t, "n"), rapid.Int64Range(0, 15).Draw(t, "unseen")
		known, room := s.clone().take(now, n, 0), s.clone().take(now, 0, 0)
		d := s.clone().take(now, n, s.undrained(now, unseen))
		want := known.Allowed && n+unseen <= room.Remaining
		if !room.Allowed { // More is spent than the limit: nothing fits, not even 0.
			want = false
		}
		if d.Allowed != want || d.Estimated != (known.Allowed && !want) {
			t.Fatalf("take %d with %d unseen of Remaining %d: got %+v", n, unseen, room.Remaining, d)
		}
		if d.Estimated {
			spent := s.clone()
			if l := spent.ledger(); k.Kind == SlidingLog { // it is others that spend it
				spent.advance(now)
				spent.merge(now, Report{Epoch: l.Epoch, Remote: l.Cur.Remote + min(unseen, room.Remaining)})
			} else {
				spent.take(now, min(unseen, room.Remaining), 0)
			}
			want := spent.take(now, n, 0).Retry
			if unseen <= room.Remaining && d.Retry != want || d.Retry < want {
				t.Fatalf("only %d unseen denied, RetryAfter: got %v, want that with them spent, %v", unseen, d.Retry, want)
			}
		}
		if !d.Allowed && !d.Estimated && d.Retry != known.Retry {
			t.Fatalf("RetryAfter: got %v, want that over the known counts, %v", d.Retry, known.Retry)
		}
		left := room.Remaining
		if d.Allowed {
			left -= n
		}
		if d.Remaining != max(0, left-unseen) {
			t.Fatalf("Remaining: got %d, want %d - %d", d.Remaining, left, unseen)
		}
	})
}

// What others are taken to have spent drains where the bucket is empty, from the last answer on.
func TestPendingDrainsWhileTheBucketIsEmpty(t *testing.T) {
	const second = int64(time.Second)
	for _, k := range bucketKinds {
		for _, test := range []struct {
			name         string
			spent        int64 // at the answer, 10 drain in a second
			after        int64 // ms
			unseen, held int64
		}{
			{"at once", 0, 0, 40, 40},
			{"3.5 seconds later", 0, 3500, 40, 5},
			{"all of it has drained", 0, 3500, 30, 0},
			{"not while the bucket drains itself", 20, 2000, 40, 40},
			{"from when it is empty", 20, 3000, 40, 30},
		} {
			s := k.make(10, time.Second, 100)
			start := epoch - epoch%s.span()
			s.take(start, test.spent, 0)
			s.others(start, 0)
			now := start + test.after*1e6
			known := s.clone().take(now, 0, 0).Remaining
			if got := known - s.take(now, 0, test.unseen).Remaining; got != test.held {
				t.Errorf("%s: %s: %d held against a request, want %d", k.name, test.name, got, test.held)
			}
		}
		s := k.make(10, time.Second, 100)
		if got := s.take(epoch+10*second, 0, 40).Remaining; got != 60 {
			t.Errorf("%s: nothing was heard ever: %d left, want 60", k.name, got)
		}
	}
}

func TestAChangedLimitAppliesToWhatIsSpent(t *testing.T) {
	for _, k := range kinds {
		s := k.make(10, time.Hour, 0)
		if d := s.take(epoch, 10, 0); !d.Allowed {
			t.Fatalf("%s: 10 of 10 denied", k.name)
		}
		if d := s.with(15).take(epoch, 0, 0); d.Remaining != 5 {
			t.Errorf("%s: 15/1h after 10 spent of 10/1h: got %d left, want 5", k.name, d.Remaining)
		}
		if d := s.with(15).take(epoch, 5, 0); !d.Allowed {
			t.Errorf("%s: the 5 that are left were denied: %+v", k.name, d)
		}
		low := s.with(3)
		d := low.take(epoch, 1, 0)
		if d.Allowed || d.Remaining != 0 {
			t.Errorf("%s: 3/1h after 15 spent: got %+v, want a denial", k.name, d)
		}
		if low.clone().take(epoch+int64(d.Retry)-1, 1, 0).Allowed || !low.take(epoch+int64(d.Retry), 1, 0).Allowed {
			t.Errorf("%s: 3/1h after 15 spent: RetryAfter %v is not exact", k.name, d.Retry)
		}
	}
}

func TestALimitOfZeroDeniesAll(t *testing.T) {
	for _, k := range kinds {
		for _, extra := range []int64{0, 5} {
			s := k.make(0, time.Minute, extra)
			s.penalize(epoch, 3)
			if got, want := s.take(epoch, 1, 0), (Decision{Waits: Waits{Retry: lengthAt(s, epoch, time.Minute)}}); got != want {
				t.Errorf("%s: got %+v, want %+v", k.name, got, want)
			}
			if got, want := s.take(epoch, 0, 7), (Decision{Result: Result{Allowed: true}}); got != want {
				t.Errorf("%s: nothing asked for: got %+v, want %+v", k.name, got, want)
			}
		}
	}
}

func TestAPenaltyIsBounded(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		limit, window := s.rule()
		for range rapid.IntRange(1, 40).Draw(t, "penalties") {
			s.penalize(w.step(t), rapid.Int64Range(0, 30).Draw(t, "n"))
		}
		d := s.take(w.now, 1, 0)
		longest := int64(lengthAt(s, w.now, window))
		switch k.name {
		case "sliding_window":
			longest *= 2
		case "token_bucket", "gcra", "leaky_bucket":
			longest = int64(window)/limit + 1
		}
		if int64(d.Retry) > longest {
			t.Fatalf("after penalties: RetryAfter %v, want at most %v", d.Retry, time.Duration(longest))
		}
	})
}

// What is charged counts in full, however much it is, and makes nobody wait for longer than
// Machine.Charge says.
func TestAChargeIsBounded(t *testing.T) {
	each(t, func(t *rapid.T, k kind) {
		s := k.draw(t)
		w := newWalk(t, s)
		limit, window := s.rule()
		n := rapid.OneOf(rapid.Int64Range(1, 30), rapid.Just[int64](math.MaxInt64))
		for range rapid.IntRange(1, 20).Draw(t, "charges") {
			s.take(w.step(t), rapid.Int64Range(0, 5).Draw(t, "taken"), 0)
			left, own, n := s.take(w.now, 0, 0).Remaining, s.ledger().Cur.Own, n.Draw(t, "n")
			s.charge(w.now, n)
			if after := s.take(w.now, 0, 0).Remaining; after != max(0, left-min(n, left)) {
				t.Fatalf("%d are left of %d after a charge of %d", after, left, n)
			}
			if added := s.ledger().Cur.Own - own; k.Traits().Windowed && added != min(n, maxCharged-own) {
				t.Fatalf("a charge of %d counts %d", n, added)
			}
		}
		longest := int64(lengthAt(s, w.now, window))
		switch {
		case k == slidingWindow:
			longest *= 2
		case k.Traits().Draining:
			longest += (size(s) + 1) * int64(window) / limit
		}
		if d := s.take(w.now, 1, 0); int64(d.Retry) > longest {
			t.Fatalf("after charges: RetryAfter %v, want at most %v", d.Retry, time.Duration(longest))
		}
	})
}

func TestAPenaltyKeepsTheNewestOfALog(t *testing.T) {
	s := slidingLog.make(3, time.Second, 0)
	s.take(epoch, 3, 0)
	for _, test := range []struct{ at, n, retry int64 }{{500, 1, 500}, {600, 1, 400}, {700, 50, 1000}, {800, 1, 900}} {
		s.penalize(epoch+test.at*1e6, test.n)
		if got := millis(s.take(epoch+test.at*1e6, 1, 0).Retry); got != test.retry {
			t.Errorf("charged %d at %d: RetryAfter %dms, want %dms", test.n, test.at, got, test.retry)
		}
		if got := s.(keyed[LogState]).s.own; got != 3 {
			t.Errorf("charged %d at %d: %d in the log, want 3", test.n, test.at, got)
		}
	}
}

func TestAPenaltyFillsABucketToTheBrimAndCountsWhatItAdds(t *testing.T) {
	const second = int64(time.Second)
	for _, k := range bucketKinds {
		s := k.make(10, time.Second, 10)
		start := epoch - epoch%second
		s.take(start, 10, 0)
		// A client that knocks every 30ms is charged what has drained each time, and never gets in.
		for at := int64(30e6); at <= 900e6; at += 30e6 {
			if s.take(start+at, 1, 0).Allowed {
				t.Fatalf("%s: admitted at %v", k.name, time.Duration(at))
			}
			s.penalize(start+at, 1)
			if got := s.level(start + at); got != 10 {
				t.Fatalf("%s: level after a penalty: got %v, want the brim, 10", k.name, got)
			}
		}
		if got := s.ledger().Cur.Own; got != 19 {
			t.Errorf("%s: own total: got %d, want 10 and the 9 that drained in 900ms", k.name, got)
		}
	}
}

// Penalties may come as late as answers of a store that is far away, while other requests are
// decided: what has drained meanwhile drains once, and so is filled once.
func TestLatePenaltiesFillOnce(t *testing.T) {
	const late = 300 * time.Millisecond
	for _, k := range bucketKinds {
		s := k.make(10, time.Second, 10)
		start := epoch - epoch%int64(time.Second)
		s.take(start, 10, 0)
		at := start
		for range 400 {
			at += int64(5 * time.Millisecond)
			if s.take(at, 1, 0).Allowed {
				t.Fatalf("%s: admitted after %v", k.name, time.Duration(at-start))
			}
			s.penalize(at-int64(late), 1)
		}
		if got := s.ledger().Cur.Own; got < 29 || got > 31 {
			t.Errorf("%s: own total %d, want 10 and the 20 that drained in two seconds", k.name, got)
		}
		if wait := s.take(at, 1, 0).Retry; wait > 100*time.Millisecond {
			t.Errorf("%s: the next request waits %v, want what one takes to drain", k.name, wait)
		}
	}
}

// Whatever the limit and the pace, the ledger counts what penalties have filled in, to less than
// one request.
func TestTheLedgerCountsTheParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(bucketKinds).Draw(t, "kind")
		limit := rapid.Int64Range(100, 1000).Draw(t, "limit") // all within two epochs
		s := k.make(limit, time.Minute, 10)
		start := epoch + rapid.Int64Range(0, int64(time.Minute)).Draw(t, "start")
		now := start
		s.take(start, 10, 0)
		for range rapid.IntRange(1, 50).Draw(t, "knocks") {
			// less than one request drains
			now += rapid.Int64Range(0, int64(time.Minute)/limit-1).Draw(t, "later")
			if s.take(now, 1, 0).Allowed {
				t.Fatalf("admitted at %v", time.Duration(now-start))
			}
			s.penalize(now, 1)
		}
		l := s.ledger()
		filled := 10 + float64(limit)*float64(now-start)/float64(time.Minute)
		if got := float64(l.Cur.Own + l.Prev.Own); math.Abs(got-filled) > 1 {
			t.Fatalf("own total: got %v, want %.3f and less than one more or less", got, filled)
		}
	})
}

func TestShiftFreesNobodyAndLocksNobodyOut(t *testing.T) {
	eachOf(t, lengthKinds, func(t *rapid.T, k kind) {
		s, w := k.stirred(t)
		s.take(w.now, 0, 0)
		by := s.span() * 16 * rapid.Int64Range(-20, 20).Draw(t, "by")
		moved := s.clone()
		moved.shift(w.now+by, time.Duration(by))
		if k.name == "sliding_log" {
			by = by / s.span() * s.span() // epochs are whole
			moved = s.clone()
			moved.shift(w.now+by, time.Duration(by))
		}
		for range 8 {
			n := rapid.Int64Range(0, 4).Draw(t, "n")
			got, want := moved.take(w.now+by, n, 0), s.take(w.now, n, 0)
			if got != want {
				t.Fatalf("at %d, shifted by %d:\n got %+v\nwant %+v", w.now, by, got, want)
			}
			w.step(t)
		}
		if l := moved.ledger(); by != 0 && l.Cur.Acked+l.Prev.Acked != 0 && !k.Traits().Draining {
			t.Fatalf("shifted epochs count as acknowledged: %+v", *l)
		}
	})
}

func TestExtremesDoNotPanic(t *testing.T) {
	extremes := []int64{0, 1, 2, 100, math.MaxInt32, 1 << 31, 1 << 53, 1 << 62, math.MaxInt64 - 1, math.MaxInt64}
	each(t, func(t *rapid.T, k kind) {
		amounts := rapid.OneOf(rapid.SampledFrom(extremes), rapid.Int64Range(0, math.MaxInt64))
		window := rapid.OneOf(rapid.SampledFrom(windows), rapid.Just(time.Duration(math.MaxInt64)), rapid.Just(time.Duration(0))).Draw(t, "window")
		extra := amounts.Draw(t, "extra")
		s := k.make(amounts.Draw(t, "limit"), window, extra)
		for range rapid.IntRange(1, 25).Draw(t, "events") {
			now := rapid.OneOf(rapid.Int64(), rapid.Int64Range(epoch, epoch+4*max(1, min(int64(window), 1<<55)))).Draw(t, "now")
			n := amounts.Draw(t, "n")
			switch rapid.IntRange(0, 10).Draw(t, "event") {
			default:
				d := s.take(now, n, amounts.Draw(t, "unseen"))
				if d.Remaining < 0 || d.Retry < 0 || d.Next < 0 || d.Reset < 0 || d.Delay < 0 || d.Allowed && d.Estimated {
					t.Fatalf("%+v", d)
				}
			case 4:
				s.penalize(now, n)
			case 5:
				s.refund(now, n)
			case 6:
				if b, ok := s.(keyed[BucketState]); ok {
					hearAnything(t, b, now, amounts)
				}
				e := s.ledger().Epoch - rapid.Int64Range(-1, 2).Draw(t, "age")
				s.merge(now, Report{Epoch: e, Remote: n, Level: rapid.Float64().Draw(t, "level"), LevelAt: now}, Report{Epoch: rapid.Int64().Draw(t, "epoch"), Remote: n})
			case 7:
				s.idle(now)
				s.level(now)
			case 8:
				s.shift(now, time.Duration(rapid.Int64().Draw(t, "by")))
			case 9:
				s = s.with(amounts.Draw(t, "changed limit"))
			case 10:
				s.charge(now, n)
			}
			if s.ledger().Cur.Own < 0 || s.span() <= 0 {
				t.Fatalf("own %d, span %d", s.ledger().Cur.Own, s.span())
			}
		}
	})
}

// hearAnything says what there is of a bucket, and hears anything at all.
func hearAnything(t *rapid.T, b keyed[BucketState], now int64, amounts *rapid.Generator[int64]) {
	m := b.machine.(Bucketed[BucketState])
	update := m.Update(b.s, b.limit, now, time.Duration(amounts.Draw(t, "interval")))
	if update.Unacked < 0 || update.UnackedFor < 0 || update.Total < 0 || update.Whole < 0 || update.Rest < 0 || update.Size < 0 || update.Incarnation == 0 && now > 0 {
		t.Fatalf("%+v", update)
	}
	h := BucketReply{Total: amounts.Draw(t, "held"), Others: amounts.Draw(t, "others")}
	h.Whole, h.Rest = rapid.Int64().Draw(t, "whole"), amounts.Draw(t, "rest")
	h.At, h.Rate = rapid.Int64().Draw(t, "at"), amounts.Draw(t, "rate")
	m.MergeReply(b.s, b.limit, now, h)
	m.StateAt(b.limit, now, h.BucketLevel, amounts.Draw(t, "behind"))
	if rapid.Bool().Draw(t, "restart") {
		m.Restart(b.s, now)
	}
}

func TestLongLogsKeepTheirOrderAndTheirMemory(t *testing.T) {
	const limit, window = 500, int64(time.Second)
	k := keyOf[LogState](Params{Kind: SlidingLog, Limit: limit, Window: time.Second})
	s := k.s
	random := rand.New(rand.NewPCG(1, 2))
	var admitted []int64
	now := epoch
	for range 50_000 {
		now += random.Int64N(3e6)
		var in int64
		for i := len(admitted) - 1; i >= 0 && now-admitted[i] < window; i-- {
			in++
		}
		if got := k.take(now, 1, 0).Allowed; got != (in < limit) {
			t.Fatalf("with %d in the window: admitted %v", in, got)
		} else if got {
			admitted = append(admitted, now)
		}
		if left := len(s.hits) - s.head; cap(s.hits) > max(16, 2*left+1) || left > limit {
			t.Fatalf("room for %d hits, and %d in it, at limit %d", cap(s.hits), left, limit)
		}
	}
	k.take(now+window, 1, 0)
	if cap(s.hits) > 16 {
		t.Errorf("room for %d hits after the log has emptied", cap(s.hits))
	}
}
