package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A settling is one request: admitted at an instant with some units, settled later to others.
type settling struct {
	Reserved
	at, cost int64
}

// A costed is a key of a table whose requests reserve and settle.
type costed[S any] struct {
	*Table[S]
	random *rand.Rand
	limit  algorithms.Limit
	key    keys.Key
	now    int64
	open   []settling
}

func costedOf[S any](p algorithms.Params, seed uint64) *costed[S] {
	p.Reserves = true
	c := &costed[S]{Table: New[S](p.Kind, 10), limit: p.Compile(), now: t0 - t0%int64(min(p.Epoch(), p.Window))}
	c.Configure(SyncConfig{Params: p}, 10)
	c.random, c.key = rand.New(rand.NewPCG(seed, 3)), keys.KeyOf([]byte("k"))
	return c
}

func (c *costed[S]) take(n, cost int64) bool {
	d := c.Take(c.limit, c.key, []byte("k"), c.now, n, reserving|InParts)
	if d.Allowed {
		c.open = append(c.open, settling{c.ReservationOf(c.limit, c.key, d), c.now, cost})
	}
	return d.Allowed
}

// settleOne settles any of the requests that are under way.
func (c *costed[S]) settleOne() (l settling, ok bool) {
	if len(c.open) == 0 {
		return l, false
	}
	i := c.random.IntN(len(c.open))
	l = c.open[i]
	c.open = slices.Delete(c.open, i, i+1)
	c.Settle(c.key, l.Reserved, c.now, l.cost)
	return l, true
}

// own returns what a ledger has as its own, in the current epoch and the one before.
func (c *costed[S]) own() (current, before int64) {
	c.With(c.key, func(s *S) {
		l := c.machine.Ledger(s)
		current, before = l.Cur.Own, l.Prev.Own
	})
	return current, before
}

// Law: when all is settled, windows and logs hold exactly what was really used.
func TestWhatIsSettledIsWhatWasUsed(t *testing.T) {
	for _, k := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog} {
		algorithms.ByState(k, usedUp[algorithms.WindowState], nil, usedUp[algorithms.LogState])(t, k)
	}
}

func usedUp[S any](t *testing.T, kind algorithms.Kind) {
	t.Helper()
	const lives = 100_000
	p := algorithms.Params{Kind: kind, Limit: 1 << 40, Window: 24 * time.Hour}
	c, sum, admitted := costedOf[S](p, 1), int64(0), 0
	for admitted < lives || len(c.open) > 0 {
		c.now += c.random.Int64N(int64(400 * time.Millisecond))
		if admitted < lives && c.random.IntN(2) == 0 {
			n, cost := c.random.Int64N(5000), c.random.Int64N(20_000)
			if c.random.IntN(8) == 0 {
				cost = 0
			}
			if c.take(max(1, n), cost) {
				admitted++
			}
		} else if l, ok := c.settleOne(); ok {
			sum += l.cost
		}
	}
	if own := c.Totals(c.now).Own; own != sum || c.Reservations().Len() != 0 {
		t.Errorf("%s: %d lives of requests: %d counted, %d used, %d keys reserved", kind, lives, own, sum, c.Reservations().Len())
	}
	if left := c.Take(c.limit, c.key, []byte("k"), c.now, 0, 0).Remaining; left != p.Limit-sum {
		t.Errorf("%s: %d are left, want %d", kind, left, p.Limit-sum)
	}
}

// A refund goes to the window of the take, and a charge to that of the settlement.
func TestAChargeToTheEpochOfTheTakeIsNotFree(t *testing.T) {
	for seed := range uint64(200) {
		c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 40, Window: time.Hour}, seed)
		var first, second int64
		for range 20 {
			if n, cost := 1+c.random.Int64N(9), c.random.Int64N(20); c.take(n, cost) {
				first += min(n, cost)
				second += max(0, cost-n)
			}
		}
		c.now += int64(time.Hour) * 3 / 2
		c.take(1, 1)
		second++
		for len(c.open) > 0 {
			c.settleOne()
		}
		if current, before := c.own(); current != second || before != first {
			t.Errorf("seed %d: %d in the window of the settlements and %d in that of the takes, want %d and %d", seed, current, before, second, first)
		}
	}
}

// Bound: a bucket never admits more, in units really used, than its burst and what drains, and what
// was charged beyond estimates comes off that. By the instant alone until which a unit counts it
// doesn't hold: only if no more is refunded than stands in the bucket, and if what was taken later
// moves down with a refund.
func TestABucketAdmitsNoMoreThanItsBoundInUnitsUsed(t *testing.T) {
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 9))
		p := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 + random.Int64N(200), Window: time.Minute, Burst: 1 + random.Int64N(100)}
		c := costedOf[algorithms.BucketState](p, seed)
		charges := seed%3 == 0
		var all []settling
		for range 60 {
			if c.now += c.random.Int64N(int64(time.Minute) * p.Burst / p.Limit / 4); c.random.IntN(2) == 0 {
				n := 1 + c.random.Int64N(p.Burst)
				cost := c.random.Int64N(n + 1)
				if charges {
					cost = c.random.Int64N(2 * n)
				}
				if c.take(n, cost) {
					all = append(all, c.open[len(c.open)-1])
				}
			} else {
				c.settleOne()
			}
		}
		if over := beyond(p, all); over > 0 {
			t.Fatalf("seed %d, %+v: %.2f above the burst", seed, p, over)
		}
	}
}

// beyond returns how far a bucket that knows what each request really uses would have been above
// its burst. Of one that is still under way, or that has cost more than it took, it goes by the
// lesser.
func beyond(p algorithms.Params, all []settling) (over float64) {
	level, last := 0.0, int64(0)
	for _, l := range all {
		level = max(0, level-float64(l.at-last)*float64(p.Limit)/float64(p.Window))
		level, last = level+float64(min(l.N, l.cost)), l.at
		over = max(over, level-float64(p.Burst)-1e-3)
	}
	return over
}

// All n - m to the ledger but less to the deficit: what has drained would come back at the others.
// A bucket takes the same from both.
func TestABucketRefundsToTheOthersWhatItRefundsItself(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		c := costedOf[algorithms.BucketState](algorithms.Params{Kind: kind, Limit: 60, Window: time.Minute, Burst: 200}, 1)
		c.take(50, 10)
		c.now += int64(30 * time.Second) // when 20 are left of the 50
		c.settleOne()
		level, _ := c.machine.Level(&c.stripe(c.key).slot(0).state, c.limit, c.now)
		if current, _ := c.own(); level != 0 || current != 30 {
			t.Errorf("%s: %v stand in the bucket and others hear of %d, want 0 and the 30 that have drained", kind, level, current)
		}
	}
}

// Shifting only what was taken later gives nearly all back: many answers that cost less than they
// reserved must not leave the rest spent.
func TestRefundsOfManyRequestsComeBack(t *testing.T) {
	c := costedOf[algorithms.BucketState](algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1_000_000, Window: 24 * time.Hour}, 1)
	for range 100 {
		c.take(4000, 1000)
	}
	c.now += int64(20 * time.Second)
	for len(c.open) > 0 {
		c.settleOne()
	}
	level, _ := c.machine.Level(&c.stripe(c.key).slot(0).state, c.limit, c.now)
	if level > 100_000 {
		t.Errorf("%.0f stand in the bucket after 100 answers of 1000, want 100000 less what has drained", level)
	}
}

// A bucket refunds no more than has not drained. Where all requests reserve four times what they
// use, all comes back of answers that take a sixth of the time in which it drains, part of it where
// they take half of that, and nothing where they take longer.
func TestSteadyOverestimates(t *testing.T) {
	for took, want := range map[time.Duration][2]float64{10 * time.Second: {.95, 1}, 30 * time.Second: {.5, .75}, 61 * time.Second: {}} {
		c := costedOf[algorithms.BucketState](algorithms.Params{Kind: algorithms.TokenBucket, Limit: 6000, Window: time.Minute}, 1)
		level := func() float64 {
			level, _ := c.machine.Level(&c.stripe(c.key).slot(0).state, c.limit, c.now)
			return level
		}
		refunded, unused := 0.0, 0.0
		for range 900 {
			c.now += int64(200 * time.Millisecond)
			for len(c.open) > 0 && c.now-c.open[0].at >= int64(took) {
				before := level()
				c.Settle(c.key, c.open[0].Reserved, c.now, 40)
				c.open, refunded, unused = c.open[1:], refunded+before-level(), unused+120
			}
			c.take(160, 40)
		}
		part := refunded / unused
		if t.Logf("answers of %v: %.2f of what they don't use is refunded", took, part); part < want[0] || part > want[1] {
			t.Errorf("answers of %v: %.2f is refunded, want %.2f to %.2f", took, part, want[0], want[1])
		}
	}
}

// A debt, however large, makes a window or log wait for two windows at most, and a bucket for one
// more than a full one takes to drain. Penalize would clamp it to the size of a bucket or log, and
// a total beyond 2^53 is rejected by Redis for all nodes.
func TestADebtIsBounded(t *testing.T) {
	const debt = 1 << 60
	for _, k := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		owes(t, costedOf[algorithms.WindowState](algorithms.Params{Kind: k, Limit: 10, Window: time.Minute}, 1), debt, 2*time.Minute)
	}
	owes(t, costedOf[algorithms.LogState](algorithms.Params{Kind: algorithms.SlidingLog, Limit: 10, Window: time.Minute}, 1), debt, time.Minute)
	for _, k := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		owes(t, costedOf[algorithms.BucketState](algorithms.Params{Kind: k, Limit: 10, Window: time.Minute, Burst: 20}, 1), debt, 3*time.Minute)
	}
}

func owes[S any](t *testing.T, c *costed[S], debt int64, most time.Duration) {
	t.Helper()
	c.take(1, debt)
	c.settleOne()
	d := c.Take(c.limit, c.key, []byte("k"), c.now, 1, 0)
	if d.Allowed || d.Retry > most || d.Retry <= 0 {
		t.Errorf("%T: in debt: %+v, want a wait of up to %v", c.machine, d, most)
	}
	if current, _ := c.own(); current > 1<<52 {
		t.Errorf("%T: %d in one epoch", c.machine, current)
	}
	c.now += int64(d.Retry)
	if !c.Take(c.limit, c.key, []byte("k"), c.now, 1, 0).Allowed {
		t.Errorf("%T: denied after its wait", c.machine)
	}
}

// A response that comes when its key has been idle for long is charged all the same, and no sweep
// drops what waits for it.
func TestAnAnswerLongerThanItsWindowIsChargedInFull(t *testing.T) {
	c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Second}, 1)
	c.take(2, 100)
	c.now += int64(time.Hour)
	c.Sweep(c.now)
	c.settleOne()
	if current, _ := c.own(); current != 98 {
		t.Errorf("%d are charged, want 98", current)
	}
}

// A reset forgives what is reserved: its settlement then changes nothing, a charge included.
func TestASettlementAfterAResetChangesNothing(t *testing.T) {
	for _, cost := range []int64{0, 1, 9} {
		c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Hour}, 1)
		c.take(3, cost)
		c.now++
		c.Reset(c.now, &reset.Set{All: reset.Reset{Stamp: c.now / 1000, At: c.now, Until: c.now + int64(time.Hour)}})
		c.now++
		c.take(2, 2)
		c.settleOne()
		c.settleOne()
		if current, _ := c.own(); current != 2 {
			t.Errorf("cost %d: %d counted after a reset, want 2", cost, current)
		}
	}
}

// So it is where the reset came to the key after it had taken something, by a walk that had begun
// before, and where the reset is over.
func TestASettlementAfterALateResetChangesNothing(t *testing.T) {
	for _, after := range []time.Duration{0, 2 * time.Hour} {
		for _, cost := range []int64{0, 9} {
			c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: 24 * time.Hour}, 1)
			began := c.now
			c.now++
			c.take(3, cost)
			c.Reset(began, &reset.Set{All: reset.Reset{Stamp: began / 1000, At: began, Until: began + int64(time.Hour)}})
			c.take(2, 2)
			c.now += int64(after)
			first := c.open[0]
			c.Settle(c.key, first.Reserved, c.now, first.cost)
			if current, _ := c.own(); current != 2 {
				t.Errorf("cost %d, %v later: %d counted, want 2", cost, after, current)
			}
		}
	}
}

// Nor is it charged to anybody else, where the key that was reset is gone by then.
func TestASettlementOfAKeyThatIsGoneChangesNothing(t *testing.T) {
	c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: time.Second}, 1)
	c.take(3, 9)
	c.now++
	c.Reset(c.now, &reset.Set{Keys: map[[16]byte]reset.Reset{keys.IDOf([]byte("k")): {Stamp: c.now / 1000, At: c.now, Until: c.now + int64(time.Minute)}}})
	c.now += int64(time.Hour)
	c.Sweep(c.now)
	if n := c.Keys(); n != 0 {
		t.Fatalf("%d keys are left, want none", n)
	}
	c.settleOne()
	if c.overflow.Load() != nil {
		t.Error("keys share counters in a table with room")
	}
}

// A key beyond max_keys reserves and settles in units.
func TestASharedCounterSettlesInUnits(t *testing.T) {
	for _, limit := range []int64{1000, 10 << 30} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			c := costedOf[algorithms.WindowState](algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: time.Hour}, 1)
			for i := range 10 {
				raw := fmt.Appendf(nil, "other %d", i)
				c.Take(c.limit, keys.KeyOf(raw), raw, c.now, 1, 0)
			}
			step, sum := limit/1000, int64(0)
			for range 50 {
				if c.take(10*step, c.random.Int64N(20)*step) {
					l, _ := c.settleOne()
					sum += l.cost
				}
			}
			shared := c.overflow.Load()
			if shared == nil {
				t.Fatal("the key has a slot")
			}
			shared.With(overflowOf(c.key), func(s *algorithms.WindowState) {
				if own, _ := shared.machine.Ledger(s).Sum(0); own != sum {
					t.Errorf("%d spent, want %d", own, sum)
				}
			})
		})
	}
}

// Only a request that costs nothing counts as none that has asked, and only in the epoch in which
// it came: by these attempts nodes estimate their share of a key.
func TestWhatCostsSomethingHasAsked(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.SlidingLog, algorithms.TokenBucket, algorithms.GCRA} {
		algorithms.ByState(kind, attempts[algorithms.WindowState], attempts[algorithms.BucketState], attempts[algorithms.LogState])(t, kind)
	}
}

// attempts has a request that took 4 settle beside another one, whose response has cost all that it
// took.
func attempts[S any](t *testing.T, kind algorithms.Kind) {
	t.Helper()
	const epochs = 720 * time.Hour
	for _, test := range []struct {
		cost  int64
		later time.Duration // when it settles, before the other one comes
		want  uint32
	}{{0, 0, 1}, {1, 0, 2}, {3, 0, 2}, {4, 0, 2}, {9, 0, 2}, {0, epochs, 1}, {3, epochs, 1}} {
		p := algorithms.Params{Kind: kind, Limit: 20, Window: epochs, Burst: 20, Reserves: true}
		if kind.Traits().Draining && test.later > 0 {
			continue // it has no epochs
		}
		c := costedOf[S](p, 1)
		c.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		c.now += int64(min(p.Epoch(), epochs)) - 1
		c.take(4, test.cost)
		if test.later > 0 {
			c.now++ // the next epoch
		}
		c.take(1, 1)
		for len(c.open) > 0 {
			c.settleOne()
		}
		c.With(c.key, func(s *S) {
			if got := c.machine.Ledger(s).Attempts; got != test.want {
				t.Errorf("%s: 4 units that cost %d and were taken %v before: Attempts = %d, want %d", kind, test.cost, test.later, got, test.want)
			}
		})
	}
}

// What one request costs is no number of attempts: a request of 2^20 units, admitted or denied, is
// one.
func TestAttemptsAreRequests(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1000, Window: time.Minute}
	tab := newTable(100, p)
	tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 100)
	raw := []byte("client")
	key, l := keys.KeyOf(raw), p.Compile()
	taken := tab.Take(l, key, raw, t0, 900, 0)
	if !taken.Allowed || tab.Take(l, key, raw, t0, 1<<20, 0).Allowed || !tab.Take(l, key, raw, t0, 0, 0).Allowed {
		t.Fatal("900 of 1000 are not admitted, or 2^20 are, or nothing can't be read")
	}
	counts := func(units int64, attempts uint32) {
		t.Helper()
		tab.With(key, func(s *algorithms.WindowState) {
			if l := window.Ledger(s); l.Cur.Own != units || l.Attempts != attempts {
				t.Errorf("%+v, want %d units and %d attempts", *l, units, attempts)
			}
		})
	}
	counts(900, 2)
	tab.Refund(l, key, taken, 900)
	counts(0, 1)
}

// Refunds of others that don't shorten one's own reservations: what this node has reserved in a
// bucket above what another one had moves down with the other's refund, and ends to count sooner.
// Else it would be refunded though it has drained, out of what was taken since.
func TestRefundsOfOthersShortenOnesOwnReservations(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		for _, c := range []struct {
			refunded, seconds, back int64
		}{
			{0, 0, 50}, {0, 50, 50}, {0, 51, 49}, {0, 99, 1}, {0, 100, 0}, // from 50 on
			{50, 0, 50}, {50, 1, 49}, {50, 49, 1}, {50, 50, 0}, {50, 60, 0}, // at once
			{30, 20, 50}, {30, 21, 49}, {30, 69, 1}, {30, 70, 0}, {30, 90, 0}, // from 20 on
		} {
			p := algorithms.Params{Kind: kind, Limit: 60, Window: time.Minute, Burst: 200, Reserves: true}
			s, a, other := newStore(), costedOf[algorithms.BucketState](p, 1), costedOf[algorithms.BucketState](p, 1)
			all := []*talker[algorithms.BucketState]{{Table: other.Table, name: "other"}, {Table: a.Table, name: "a"}}
			for _, n := range all {
				n.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
			}
			sync := func() {
				for _, n := range all {
					n.Take(a.limit, a.key, []byte("k"), a.now, 0, 0)
					n.sync(s, a.now)
				}
			}
			a.take(1, 1)
			a.settleOne()
			sync()
			a.now += int64(10 * time.Second)
			other.now = a.now
			if !other.take(50, 50-c.refunded) {
				t.Fatal("50 of 200 are denied")
			}
			if sync(); !a.take(50, 0) {
				t.Fatal("50 of 200 are denied, beside 50 of others")
			}
			if c.refunded > 0 {
				other.settleOne()
			}
			sync()
			a.now += c.seconds * int64(time.Second)
			a.Take(a.limit, a.key, []byte("k"), a.now, 60, 0) // since then
			before, _ := a.machine.Level(&a.stripe(a.key).slot(0).state, a.limit, a.now)
			a.settleOne()
			after, _ := a.machine.Level(&a.stripe(a.key).slot(0).state, a.limit, a.now)
			if got := before - after; got != float64(c.back) {
				t.Errorf("%s, %d of others refunded, settled after %d s: %v come back, want %d", kind, c.refunded, c.seconds, got, c.back)
			}
		}
	}
}

// What was taken after a reset drains no sooner as something is rolled back that came before it.
func TestWhatIsRolledBackAfterAResetMovesNothing(t *testing.T) {
	c := costedOf[algorithms.BucketState](algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Burst: 10, Window: 10 * time.Second}, 1)
	before := c.Take(c.limit, c.key, []byte("k"), c.now, 5, reserving|InParts)
	c.now += int64(time.Millisecond)
	c.ForgiveKey(c.key, c.now, c.now)
	c.now += int64(time.Millisecond)
	after := c.Take(c.limit, c.key, []byte("k"), c.now, 5, reserving|InParts)
	late := c.ReservationOf(c.limit, c.key, before)
	c.Settle(c.key, late, c.now, RolledBack)
	undrained, _ := c.reservations.Undrained(c.key, c.ReservationOf(c.limit, c.key, after).group, c.now)
	if left := c.Take(c.limit, c.key, []byte("k"), c.now, 0, 0).Remaining; late.group != nil || undrained != 5 || left != 5 {
		t.Errorf("of 10, of which 5 are taken after the reset, %d are left, and %d of them have yet to drain", left, undrained)
	}
}
