package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

func admit(t *testing.T, n *node, alg algorithms.Params, now int64, count, want int) {
	t.Helper()
	got := 0
	for range count {
		if take(n.Table, alg, 1, now).Allowed {
			got++
		}
	}
	if got != want {
		t.Errorf("node %s: %d of %d admitted, want %d", n.name, got, count, want)
	}
}

func TestAKeyNotDrainedTwice(t *testing.T) {
	a := newNode("a", hour)
	admit(t, a, hour, t0, 1, 1)
	a.MakeOutgoing()
	updates := a.takeOut(t0, false)
	if len(updates) != 1 {
		t.Fatalf("TakeUpdates() = %d messages, want 1", len(updates))
	}
	admit(t, a, hour, t0, 1, 1)
	a.MakeOutgoing()
	if again := a.takeOut(t0, false); len(again) != 0 {
		t.Errorf("a key that is under way is said again: %d messages", len(again))
	}
	a.Unanswered(updates)
	a.MakeOutgoing()
	if again := a.takeOut(t0, false); len(again) != 1 || first(again) != 2 {
		t.Errorf("TakeUpdates() after Unanswered = %+v, want one message with total 2", again)
	}
}

func TestNewKeysAndThoseNearTheirLimitAreUrgent(t *testing.T) {
	alg := sliding(100, time.Minute)
	s, a := newStore(), newNode("a", alg)
	woken := cycle.NewWaker()
	a.Configure(SyncConfig{Params: alg, Interval: time.Second, Early: true, Waker: woken}, 1000)
	urgent := func(now int64) int { return a.syncEarly(s, now) }
	admit(t, a, alg, t0, 1, 1)
	if !woken.IsCalled() || urgent(t0) == 0 {
		t.Error("a new key woke nobody, or has no message")
	}
	admit(t, a, alg, t0+int64(10*time.Millisecond), 1, 1)
	if !a.Urgent() || urgent(t0+int64(10*time.Millisecond)) == 0 {
		t.Error("a key whose share of the attempts is not known is not urgent")
	}
	admit(t, a, alg, t0+int64(time.Second), 9, 9)
	if a.Urgent() {
		t.Error("a key with 89 of 100 left is urgent")
	}
	admit(t, a, alg, t0+int64(time.Second), 20, 20)
	if !a.Urgent() || urgent(t0+int64(time.Second)) == 0 {
		t.Error("a key with 30 unsent and 69 left is not urgent")
	}
	if a.Urgent() {
		t.Error("urgent after the sync")
	}
}

// A denial by an estimate asks a client to wait for the next sync, or until what is estimated would
// have left the limit, whichever is first; a second at least.
func TestRetryAfterOfAnEstimate(t *testing.T) {
	const window, limit = 10 * time.Second, 100
	for _, rate := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Minute} {
		eachAlgorithm(t, limit, limit/2, window, func(t *testing.T, alg algorithms.Params) {
			most := 2 * window
			switch {
			case alg.Kind == algorithms.FixedWindow || alg.Kind == algorithms.SlidingLog:
				most = window
			case alg.Kind.Traits().Draining:
				// What is estimated drains within the time that a few of it take.
				most = 2 * time.Second
			}
			algorithms.ByState(alg.Kind, retryOfAnEstimate[algorithms.WindowState], retryOfAnEstimate[algorithms.BucketState], retryOfAnEstimate[algorithms.LogState])(t, alg, rate, most)
		})
	}
}

func retryOfAnEstimate[S any](t *testing.T, alg algorithms.Params, rate, most time.Duration) {
	t.Helper()
	s, raw := newStore(), []byte("key")
	a, b := &talker[S]{Table: of[S](alg, 10), name: "a"}, &talker[S]{Table: of[S](alg, 10), name: "b"}
	for _, n := range []*talker[S]{a, b} {
		n.Configure(SyncConfig{Params: alg, Interval: rate}, 10)
	}
	now := t0
	for range 4 { // both see half of the traffic
		for _, n := range []*talker[S]{a, b} {
			for range 4 {
				n.Take(alg.Compile(), keys.KeyOf(raw), raw, now, 1, allWaits)
			}
			n.sync(s, now)
		}
		now += int64(10 * time.Millisecond)
	}
	synced := now - int64(10*time.Millisecond)
	for range 200 {
		d := a.Take(alg.Compile(), keys.KeyOf(raw), raw, now, 1, allWaits)
		if d.Allowed {
			now += int64(time.Millisecond)
			continue
		}
		next := max(time.Second, rate-time.Duration(now-synced))
		if !d.Estimated || d.Retry < time.Second || d.Retry > min(next, max(most, time.Second)) {
			t.Errorf("synced every %v: denied %+v, want Estimated, and RetryAfter of a second at least, and at most %v and the next sync, %v",
				rate, d.Decision, most, next)
		}
		return
	}
	t.Error("nothing was denied")
}

// Of what the store said before a step nothing is believed under the new numbers.
func TestAnAnswerOfBeforeAStepIsNotBelieved(t *testing.T) {
	alg := sliding(100, time.Minute)
	a, epoch := newNode("a", alg), t0/int64(time.Minute)
	admit(t, a, alg, t0, 5, 5)
	now := t0 + int64(time.Minute)
	admit(t, a, alg, now, 2, 2)
	a.MakeOutgoing()
	updates := a.TakeUpdates(now, 1, 1000, false, nil)
	a.setOffset(now, -time.Minute, true) // the 2 are now of the epoch in which others have spent 30
	a.Merge(now, now, updates, []cell.Reply{{Sum: cell.Sum{Epoch: epoch + 1, Totals: []int64{2, 35}}}})
	if got := a.Totals(now); got.Own != 7 || got.Remote != 0 || got.Unsent != 7 {
		t.Errorf("Totals() = %+v, want 2 and 5 of its own, not confirmed, and nothing remote", got)
	}
	a.MakeOutgoing()
	updates = a.TakeUpdates(now, 2, 1000, false, nil)
	a.Merge(now, t0, updates, []cell.Reply{{Previous: cell.State{Seq: 1, Epoch: epoch + 1, Totals: []int64{2, 5}}, Sum: cell.Sum{Epoch: epoch, Totals: []int64{32, 5}}}})
	if got := a.Totals(now); got.Own != 7 || got.Remote != 30 || got.Unsent != 0 {
		t.Errorf("Totals() = %+v after a sync, want all confirmed and 30 remote", got)
	}
}

// Until the other nodes have followed a step, they have not sent what they hold under its new
// number.
func TestWhatIsKnownIsKeptUntilOthersHaveFollowedAStep(t *testing.T) {
	alg := fixed(100, time.Minute)
	s, a, b := newStore(), newNode("a", alg), newNode("b", alg)
	admit(t, b, alg, t0, 30, 30)
	b.sync(s, t0)
	admit(t, a, alg, t0, 1, 1)
	a.sync(s, t0)
	a.setOffset(t0, time.Minute, true)
	a.sync(s, t0)
	admit(t, a, alg, t0, 100, 69)
	b.setOffset(t0, time.Minute, true)
	k := keys.KeyOf(raw(1))
	admit(t, b, alg, t0, 1, 1)
	b.Refund(alg.Compile(), k, take(b.Table, alg, 1, t0), 1)
	b.sync(s, t0)
	now := t0 + int64(stepGrace+2*time.Second)
	a.Refund(alg.Compile(), k, Taken{At: t0 + int64(time.Minute), clock: Clock{int64(time.Minute), int64(time.Minute)}}, 2)
	a.sync(s, now)
	if got := a.Totals(now); got.Own != 68 || got.Remote != 31 {
		t.Errorf("Totals() = %+v when all have followed, want 68 of its own and 31 remote", got)
	}
}

// A request that was taken before a step and is refunded after it is found where the step has
// moved it.
func TestAReturnFollowsAStep(t *testing.T) {
	log := algorithms.Params{Kind: algorithms.SlidingLog, Limit: 10, Window: time.Minute}
	tab := New[algorithms.LogState](algorithms.SlidingLog, 10)
	tab.Configure(SyncConfig{Params: log, Interval: time.Second}, 10)
	k := raw(1)
	first := tab.Take(log.Compile(), keys.KeyOf(k), k, t0, 1, allWaits)
	tab.Take(log.Compile(), keys.KeyOf(k), k, t0+int64(30*time.Second), 1, allWaits)
	tab.setOffset(t0+int64(30*time.Second), -time.Hour, true)
	tab.Refund(log.Compile(), keys.KeyOf(k), first, 1)
	if d := tab.Take(log.Compile(), keys.KeyOf(k), k, t0+int64(40*time.Second), 0, allWaits); d.Remaining != 9 || d.Reset != 50*time.Second {
		t.Errorf("%+v, want the later one of two to be left", d.Decision)
	}
}

// A table that is synced no more goes on by the clock of the store that it had: what looks at its
// keys changes nothing.
func TestALogThatIsSyncedNoMoreIsLookedAtInItsTime(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingLog, Limit: 10, Window: time.Minute}
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		tab, k := New[algorithms.LogState](algorithms.SlidingLog, 10), raw(1)
		tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		tab.setOffset(t0, ahead, true)
		tab.Configure(SyncConfig{Params: p}, 10)
		tab.Take(p.Compile(), keys.KeyOf(k), k, t0, 4, 0)
		later := t0 + int64(30*time.Second)
		used := int64(0)
		tab.EachSpend(later, func(s Spend) { used = s.Used })
		if d := tab.Take(p.Compile(), keys.KeyOf(k), k, later, 0, allWaits); used != 4 || d.Remaining != 6 || d.Reset != 30*time.Second {
			t.Errorf("%v ahead: %d used, then %+v, want 4, and 6 left for 30s", ahead, used, d.Decision)
		}
	}
}

// A new key, and one whose slot was another's, go by the clock as it is.
func TestAKeyThatComesAfterAStepHasNothingToFollow(t *testing.T) {
	alg := fixed(10, time.Minute)
	a := newNode("a", alg)
	for key := range 200 {
		take(a.Table, alg, key, t0)
	}
	now := t0 + int64(time.Hour)
	for key := range 100 {
		take(a.Table, alg, key, now)
	}
	a.Sweep(now)
	a.setOffset(now, time.Hour, true)
	for key := 200; key < 400; key++ { // some get the slot of one that has gone
		take(a.Table, alg, key, now)
		a.With(keys.KeyOf(raw(key)), func(s *algorithms.WindowState) {
			if l := window.Ledger(s); l.Resend != 0 {
				t.Errorf("key %d has followed a step that came before it: %+v", key, *l)
			}
		})
	}
}

func TestATableThatBeginsToSyncSendsWhatItHolds(t *testing.T) {
	a := newNode("a", hour)
	a.Configure(SyncConfig{Params: hour}, 1000)
	admit(t, a, hour, t0, 4, 4)
	a.MakeOutgoing()
	if m := a.takeOut(t0, false); len(m) != 0 {
		t.Errorf("a local table has %d messages", len(m))
	}
	a.Configure(SyncConfig{Params: hour, Interval: time.Second}, 1000)
	a.MakeOutgoing()
	if m := a.takeOut(t0, false); len(m) != 1 || first(m) != 4 {
		t.Errorf("TakeUpdates() = %+v, want one message with total 4", m)
	}
}

func TestAFloodGivesItsMemoryBackBesideTraffic(t *testing.T) {
	alg := fixed(10, time.Second)
	s, a := newStore(), newNode("a", alg)
	a.Configure(SyncConfig{Params: alg, Interval: time.Second}, 100_000)
	for i := range 50_000 {
		take(a.Table, alg, 1000+i, t0)
	}
	now := t0
	for range 5 {
		now += int64(time.Minute)
		for i := range 500 {
			take(a.Table, alg, i, now)
		}
		for range 3 {
			a.MakeOutgoing()
			for m := a.takeOut(now, false); len(m) > 0; m = a.takeOut(now, false) {
				a.mergeOne(now, m, a.deliver(s, now, m))
			}
			for i := range 500 { // there are always keys to send
				take(a.Table, alg, i, now)
			}
		}
		a.Sweep(now)
	}
	slots := 0
	for s := range a.stripes {
		slots += len(a.stripes[s].chunks) * chunkSize
	}
	if a.Keys() != 500 || slots > 8*1024 {
		t.Errorf("%d keys in %d slots, want 500 in a few thousand", a.Keys(), slots)
	}
	a.MakeOutgoing()
	if m := a.takeOut(now, false); len(m) != 500 {
		t.Errorf("after memory was given back %d keys are due, want 500", len(m))
	}
}

// Near a large limit a single request more or less needs no early sync.
func TestAKeyNearItsLimitIsUrgentByParts(t *testing.T) {
	alg := sliding(10*earlyOfLimit, time.Minute)
	s, a := newStore(), newNode("a", alg)
	a.Configure(SyncConfig{Params: alg, Interval: time.Second, Early: true}, 1000)
	at := t0
	for _, count := range []int{10*earlyOfLimit - 21, 1} {
		admit(t, a, alg, at, count, count)
		a.sync(s, at)
		a.takeOut(at, true)
		at += int64(time.Second)
	}
	admit(t, a, alg, at, 9, 9)
	if a.Urgent() {
		t.Error("with 9 unsent and 11 left of 640 a key is urgent; a part is 10")
	}
	admit(t, a, alg, at, 1, 1)
	if !a.Urgent() {
		t.Error("with 10 unsent and 10 left of 640 a key is not urgent")
	}
}

// A node that only denies hears what the others do, a few times in an interval, as room comes
// back.
func TestAKeyAtItsLimitIsRefreshed(t *testing.T) {
	const rate = 800 * time.Millisecond
	alg := sliding(18, rate)
	s, a, b := newStore(), newNode("a", alg), newNode("b", alg)
	a.Configure(SyncConfig{Params: alg, Interval: rate, Early: true}, 1000)
	at := t0
	for range 3 {
		at += int64(10 * time.Millisecond)
		admit(t, b, alg, at, 3, 3)
		b.sync(s, at)
		admit(t, a, alg, at, 3, 3)
		a.sync(s, at)
		a.takeOut(at, true)
	}
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{99 * time.Millisecond, false}, {101 * time.Millisecond, true}} {
		admit(t, a, alg, at+int64(c.after), 1, 0)
		if a.Urgent() != c.want {
			t.Errorf("a key at its limit is urgent %v after its last sync, in an interval of 800ms: %v, want %v", c.after, !c.want, c.want)
		}
	}
}

// A request that waits, in a queue or for another zone, may be refunded long after it was sent,
// and be the last of its key.
func TestALateRefundIsSent(t *testing.T) {
	s, a := newStore(), newNode("a", hour)
	taken := take(a.Table, hour, 1, t0)
	for range 3 { // until there is nothing more to say
		a.sync(s, t0)
	}
	a.Refund(hour.Compile(), keys.KeyOf(raw(1)), taken, 1)
	a.sync(s, t0)
	if got := s.total(raw(1)); got != 0 {
		t.Errorf("the store counts %d after it was refunded, want 0", got)
	}
}

// hooked calls a function when a walk over all keys shifts one of them.
type hooked struct {
	algorithms.Machine[algorithms.WindowState]
	shifted func(*algorithms.WindowState)
}

func (h hooked) Shift(s *algorithms.WindowState, l algorithms.Limit, now int64, by time.Duration) {
	h.Machine.Shift(s, l, now, by)
	h.shifted(s)
}

// Requests come, and are refunded, while a step moves what is stored, key by key. Whole windows
// neither free nor lock out anyone.
func TestRequestsInTheMiddleOfAStep(t *testing.T) {
	const limit = 20
	alg := fixed(limit, time.Hour)
	for _, by := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour} {
		a := newNode("a", alg)
		var early, late Taken
		for key := range 100 {
			for range 10 {
				early = take(a.Table, alg, key, t0)
			}
		}
		var other keys.Key // the last key, when the first of another stripe has been shifted
		meanwhile := func(*algorithms.WindowState) {
			if other != (keys.Key{}) {
				return
			}
			other = keys.KeyOf(raw(99))
			a.Refund(alg.Compile(), other, early, 1)
			for range 5 {
				late = take(a.Table, alg, 99, t0)
			}
			a.Refund(alg.Compile(), other, late, 1)
		}
		last := a.stripe(keys.KeyOf(raw(99)))
		ready := func(s *algorithms.WindowState) {
			for i := range last.size {
				if &last.slot(i).state == s {
					return // its lock is held
				}
			}
			meanwhile(s)
		}
		a.machine = hooked{window, ready}
		a.setOffset(t0, by, true)
		if other == (keys.Key{}) {
			t.Fatal("no request came in the middle of the step")
		}
		for key, spent := range map[int]int{0: 10, 98: 10, 99: 13} {
			left := 0
			for take(a.Table, alg, key, t0).Allowed {
				left++
			}
			if left != limit-spent {
				t.Errorf("a step of %v: key %d: %d left of %d after %d were spent", by, key, left, limit, spent)
			}
		}
	}
}

// A key that is only asked about once more is sent again if the store can't do that.
func TestAFailedConfirmationIsSentAgain(t *testing.T) {
	s, a := newStore(), newNode("a", hour)
	take(a.Table, hour, 1, t0)
	a.sync(s, t0) // from now on the key is dirty only to ask again
	a.MakeOutgoing()
	updates := a.takeOut(t0, false)
	if len(updates) != 1 {
		t.Fatalf("%d messages, want one that asks again", len(updates))
	}
	a.mergeOne(t0, updates, []cell.Reply{{Err: "WRONGTYPE"}})
	a.MakeOutgoing()
	if again := a.takeOut(t0, false); len(again) != 1 {
		t.Errorf("%d messages about the key after one failed, want it again", len(again))
	}
}

// What a store has lost of a key that it rejected before, as another program wrote there, is a loss
// like any other: keys that had no request since are not sent again for a rejection.
func TestALossAfterARejectionIsFound(t *testing.T) {
	s, a := newStore(), newNode("a", hour)
	admit(t, a, hour, t0, 3, 3)
	a.sync(s, t0)
	admit(t, a, hour, t0, 1, 1)
	a.MakeOutgoing()
	if a.mergeOne(t0, a.takeOut(t0, false), []cell.Reply{{Err: "WRONGTYPE"}}) {
		t.Error("a rejection is taken for a loss")
	}
	*s = *newStore()
	if !a.sync(s, t0) {
		t.Error("Merge() did not notice that the store has forgotten")
	}
}

// What is sent once more, as the store has forgotten it, is confirmed like what was counted.
func TestWhatIsResentIsConfirmed(t *testing.T) {
	s, a := newStore(), newNode("a", hour)
	take(a.Table, hour, 1, t0)
	a.sync(s, t0) // from now on the key is dirty only to ask again
	a.Resend()
	a.sync(s, t0)
	a.MakeOutgoing()
	if confirm := a.takeOut(t0, false); len(confirm) != 1 {
		t.Errorf("%d messages after a resend, want one that asks what others have sent meanwhile", len(confirm))
	}
}

// A Take that asks again for a request is no further attempt, as which a key passes for busy.
func TestAskingAgainIsNoAttempt(t *testing.T) {
	a := newNode("a", hour)
	take(a.Table, hour, 1, t0)
	a.Take(hour.Compile(), keys.KeyOf(raw(1)), raw(1), t0, 1, Retried)
	a.With(keys.KeyOf(raw(1)), func(s *algorithms.WindowState) {
		if l := window.Ledger(s); l.Attempts != 1 || l.Cur.Own != 2 {
			t.Errorf("%+v, want two units by one attempt", *l)
		}
	})
}

// What the store has confirmed is not unsent, until it is unsent again because the store has
// forgotten.
func TestUnsent(t *testing.T) {
	alg := sliding(100, time.Hour)
	tab := newTable(10, alg)
	tab.Configure(SyncConfig{Params: alg, Interval: time.Second}, 10)
	want := func(when string, now int64, keys int, requests int64) {
		t.Helper()
		if k, r, _ := tab.Unsent(now); k != keys || r != requests {
			t.Errorf("%s: Unsent() = %d, %d, want %d keys and %d requests", when, k, r, keys, requests)
		}
	}
	corrects := func(when string, want int) {
		t.Helper()
		if _, _, got := tab.Unsent(t0); got != want {
			t.Errorf("%s: %d keys have corrections alone, want %d", when, got, want)
		}
	}
	syncNode := func(confirmed bool) {
		tab.MakeOutgoing()
		updates := tab.TakeUpdates(t0, 1, 100, false, nil)
		if !confirmed {
			tab.Unanswered(updates)
			return
		}
		tab.Merge(t0, t0, updates, alone(updates, nil))
	}
	want("an empty table", t0, 0, 0)
	var taken Taken
	for i := range 3 {
		take(tab, alg, i, t0)
		taken = take(tab, alg, i, t0)
	}
	want("nothing was sent", t0, 3, 6)
	syncNode(false)
	want("sent in vain", t0, 3, 6)
	syncNode(true)
	want("all is confirmed", t0, 0, 0)
	corrects("all is confirmed", 0)
	for range 2 {
		tab.Refund(alg.Compile(), keys.KeyOf(raw(2)), taken, 1)
		want("what is confirmed is refunded", t0, 0, 0)
		corrects("one more of a key is refunded", 1)
	}
	syncNode(false)
	corrects("that is sent in vain", 1)
	syncNode(true)
	corrects("that is confirmed", 0)
	take(tab, alg, 1, t0)
	want("one more came", t0, 1, 1)
	tab.Resend()
	want("the store has forgotten", t0, 2, 5)
	want("no decision can use it any more", t0+int64(3*time.Hour), 0, 0)
}
