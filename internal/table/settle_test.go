package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const reserving = Reserve | algorithms.WantReset

// A unit of a bucket is refunded until it has drained. Who held responses back could otherwise
// spend what others had refunded for it: 64 guesses at 5/1m.
func TestAUnitThatHasDrainedIsNotRefunded(t *testing.T) {
	l := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 5, Window: time.Minute}.Compile()
	tab := New[algorithms.BucketState](algorithms.TokenBucket, 10)
	key, now := keys.KeyOf([]byte("k")), t0
	var all []Reserved
	for range 12 {
		for range 5 {
			taken := tab.Take(l, key, []byte("k"), now, 1, reserving)
			if !taken.Allowed {
				t.Fatal("an empty bucket denies")
			}
			all = append(all, tab.ReservationOf(l, key, taken))
		}
		now += int64(time.Minute)
	}
	guesses := 0
	for _, r := range append(all, Reserved{}) {
		for tab.Take(l, key, []byte("k"), now, 1, 0).Allowed {
			guesses++
		}
		if r.group != nil {
			tab.Settle(key, r, now, 0)
		}
	}
	if guesses != 5 {
		t.Errorf("%d guesses at 5/1m after twelve minutes of reservations, want 5", guesses)
	}
	if n := tab.Reservations().Len(); n != 0 {
		t.Errorf("%d keys have reservations when all are settled", n)
	}
}

// What is reserved of a log may come back, whether it counts by instants or by sixteenths.
func TestWhatALogHasReservedMayComeBack(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingLog, Limit: 3, Window: time.Hour, Reserves: true}
	l := p.Compile()
	for _, granted := range []bool{false, true} {
		tab := New[algorithms.LogState](algorithms.SlidingLog, 10)
		tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
		key := keys.KeyOf([]byte("k"))
		tab.Take(l, key, []byte("k"), t0, 1, reserving)
		tab.Take(l, key, []byte("k"), t0, 1, 0)
		if tab.With(key, func(s *algorithms.LogState) {
			if granted { // from then on all counts by sixteenths
				tab.machine.Adopt(s, l, t0/int64(p.Epoch()), 1)
			}
		}); !granted {
			tab.Take(l, key, []byte("k"), t0, 1, 0)
		}
		for n, want := range map[int64]bool{1: true, 2: false} {
			if got := tab.AdmitsReleased(l, key, t0, n); got != want || tab.Take(l, key, []byte("k"), t0, n, 0).Allowed {
				t.Errorf("granted %t: %d fit in once one of 3 comes back: %t, want %t, and not before", granted, n, got, want)
			}
		}
	}
}

// A response may begin after two steps of the store's clock, whose parity is that of none.
func TestAUnitIsRefundedAfterTwoSteps(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.SlidingLog, Limit: 3, Window: time.Hour, Reserves: true}
	l := p.Compile()
	tab := New[algorithms.LogState](algorithms.SlidingLog, 10)
	tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
	key := keys.KeyOf([]byte("k"))
	tab.SetClock(t0, 0, 0)
	tab.Take(l, key, []byte("k"), t0, 1, 0)
	later := t0 + int64(time.Second)
	r := tab.ReservationOf(l, key, tab.Take(l, key, []byte("k"), later, 1, reserving))
	tab.SetClock(later, 10*time.Minute, 0)
	tab.SetClock(later, 20*time.Minute, 0)
	tab.Settle(key, r, later, 0)
	// What is left is the earlier one: it leaves the log an hour after its own instant.
	end := t0 + int64(time.Hour)
	if got := tab.Take(l, key, []byte("k"), end-1, 0, 0).Remaining; got != 2 {
		t.Errorf("%d are left just before the unit ends that was kept, want 2", got)
	}
	if got := tab.Take(l, key, []byte("k"), end, 0, 0).Remaining; got != 3 {
		t.Errorf("%d are left when the unit ends that was kept, want 3", got)
	}
}

// What this node has reserved is told as open, and what others have open is denied as spent only
// once it is settled.
func TestOthersAreToldWhatIsOpen(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 2, Window: time.Hour, Reserves: true}
	l := p.Compile()
	tab := New[algorithms.WindowState](algorithms.FixedWindow, 10)
	tab.Configure(SyncConfig{Params: p, Interval: time.Second, Early: true}, 10)
	key, epoch, seq := keys.KeyOf([]byte("k")), t0/int64(time.Hour), int64(0)
	r := tab.ReservationOf(l, key, tab.Take(l, key, []byte("k"), t0, 1, reserving))
	say := func(open int64) []Update {
		t.Helper()
		seq++
		tab.MakeOutgoing()
		updates := tab.TakeUpdates(t0, seq, 10, false, nil)
		if first(updates) != 1 || updates[0].State.Reserved != open {
			t.Fatalf("%+v is said, want 1, of which %d are open", updates, open)
		}
		return updates
	}
	updates := say(1)
	tab.Settle(key, r, t0, 1) // while the message is under way
	tab.Merge(t0, t0, updates, []cell.Reply{{Sum: cell.Sum{Epoch: epoch, Totals: []int64{2}, Reserved: 2}}})
	if tab.Take(l, key, []byte("k"), t0, 1, 0).Allowed || !tab.AdmitsReleased(l, key, t0, 1) {
		t.Error("beside one of another node that is open: want a denial that ends with it")
	}
	updates = say(0)
	held := cell.State{Seq: 1, Epoch: epoch, Totals: []int64{1}, Reserved: 1}
	tab.Merge(t0, t0, updates, []cell.Reply{{Previous: held, Sum: cell.Sum{Epoch: epoch, Totals: []int64{2}}}})
	if tab.AdmitsReleased(l, key, t0, 1) {
		t.Error("with all settled: the denial is for good")
	}
}

// A step of the store's clock moves what is reserved along with what is spent: other nodes must not
// take it for settled, and nobody must take what others had reserved before for reserved for good.
func TestWhatIsReservedFollowsAStep(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, -3 * time.Hour} {
		for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
			p := algorithms.Params{Kind: kind, Limit: 2, Window: time.Hour, Reserves: true}
			l := p.Compile()
			tab := New[algorithms.WindowState](kind, 10)
			tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
			tab.SetClock(t0, 0, 0)
			key := keys.KeyOf([]byte("k"))
			before := tab.Take(l, key, []byte("k"), t0, 1, reserving)
			r := tab.ReservationOf(l, key, before)
			seq, open := int64(0), int64(1) // another node has reserved one
			say := func(now int64) []Update {
				t.Helper()
				seq++
				tab.MakeOutgoing()
				updates := tab.TakeUpdates(now, seq, 10, false, nil)
				if len(updates) == 0 {
					t.Fatal("nothing is said")
				}
				return updates
			}
			merge := func(now int64, updates []Update) {
				state := &updates[0].State
				tab.Merge(now, tab.in(now), updates, []cell.Reply{{Sum: cell.Sum{Epoch: state.Epoch, Totals: []int64{state.At(state.Epoch) + open}, Reserved: state.Reserved + open}}})
			}
			merge(t0, say(t0))
			now := t0 + int64(time.Second)
			tab.SetClock(now, by, 0)
			if late := tab.ReservationOf(l, key, before); late.group != r.group {
				t.Errorf("%s, a step of %v: the unit is not found any more", kind, by)
			}
			if tab.Take(l, key, []byte("k"), now, 1, 0).Allowed || !tab.AdmitsReleased(l, key, now, 1) {
				t.Errorf("%s, a step of %v: want a denial that ends with what this node has reserved", kind, by)
			}
			updates := say(now)
			m := updates[0].State
			if first(updates) != 1 || m.Reserved != 1 || m.Epoch != r.At/int64(time.Hour)+int64(by/time.Hour) {
				t.Errorf("%s, a step of %v: said is %+v, want 1, which is open", kind, by, m)
			}
			if _, others := tab.Reservations().In(key, r.At/int64(time.Hour)); others != 0 {
				t.Errorf("%s, a step of %v: %d of others are reserved in an epoch of before", kind, by, others)
			}
			if _, others := tab.Reservations().In(key, m.Epoch); others != 1 {
				t.Errorf("%s, a step of %v: %d of others are reserved, want 1 as before", kind, by, others)
			}
			tab.Settle(key, r, now, 0)
			now += int64(10 * time.Second) // all have followed the step
			open = 0
			merge(now, updates)
			if tab.Reservations().Len() != 0 {
				t.Errorf("%s, a step of %v: something is reserved when all has settled", kind, by)
			}
		}
	}
}

// What others refund after a loss of the store is believed once all have said again what they have.
// In a month's window, too: until then what is known of them is kept, and not until the window
// ends.
func TestOthersRefundAfterALoss(t *testing.T) {
	for _, window := range []time.Duration{time.Hour, 30 * 24 * time.Hour} {
		t.Run(window.String(), func(t *testing.T) { othersRefundAfterALoss(t, window) })
	}
}

func othersRefundAfterALoss(t *testing.T, window time.Duration) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 9, Window: window, Reserves: true}
	key, l := keys.KeyOf([]byte("k")), p.Compile()
	tab := New[algorithms.WindowState](p.Kind, 10)
	tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
	now := t0
	seq, held := int64(0), int64(0)
	// answer has the others' total in the store, and how much of it is open; lost says that of this
	// node there is nothing.
	answer := func(total, open int64, lost bool) {
		t.Helper()
		r := tab.ReservationOf(l, key, tab.Take(l, key, []byte("k"), now, 1, reserving))
		tab.Settle(key, r, now, 0)
		tab.MakeOutgoing()
		seq++
		updates := tab.TakeUpdates(now, seq, 10, false, nil)
		if len(updates) == 0 {
			t.Fatal("nothing is said")
		}
		state := &updates[0].State
		h := cell.Reply{Sum: cell.Sum{Epoch: state.Epoch, Totals: []int64{first(updates) + total}, Reserved: state.Reserved + open}}
		if !lost && held > 0 {
			h.Previous = cell.State{Seq: seq - 1, Epoch: state.Epoch, Totals: []int64{held}}
		}
		held = first(updates)
		tab.Merge(now, now, updates, []cell.Reply{h})
	}
	check := func(when string, remote, reserved int64) {
		t.Helper()
		tab.With(key, func(s *algorithms.WindowState) {
			if got := tab.machine.Ledger(s).Cur.Remote; got != remote {
				t.Errorf("%s: others have spent %d, want %d", when, got, remote)
			}
		})
		if _, got := tab.Reservations().In(key, now/int64(p.Window)); got != reserved {
			t.Errorf("%s: others have reserved %d, want %d", when, got, reserved)
		}
	}
	tab.Settle(key, tab.ReservationOf(l, key, tab.Take(l, key, []byte("k"), now, 1, reserving)), now, 1)
	answer(5, 3, false)
	check("before the loss", 5, 3)
	answer(0, 0, true)
	check("when all is lost", 5, 0)
	now += int64(2 * time.Second)
	answer(2, 2, false)
	check("while others send again", 5, 2)
	now += int64(ResentReserved + 5*time.Second)
	answer(1, 1, false)
	check("when one has refunded two, and the other is gone", 1, 1)
	answer(4, 2, false)
	check("when there are more", 4, 2)
	answer(2, 0, false)
	check("when all is refunded", 2, 0)
	answer(5, 3, false)
	tab.ResetAcks()
	answer(0, 0, true)
	check("when the store is another one", 5, 0)
}

// A step of the clock may put the instant of a unit into another epoch than it is counted in. Its
// refund is not taken from what is spent there.
func TestAUnitIsRefundedInItsEpoch(t *testing.T) {
	const window = time.Hour
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		for _, history := range []int{0, 6} {
			if kind == algorithms.FixedWindow && history > 0 {
				continue
			}
			p := algorithms.Params{Kind: kind, Limit: 9, Window: window, SubWindows: history, Reserves: true}
			key, l := keys.KeyOf([]byte("k")), p.Compile()
			tab := New[algorithms.WindowState](kind, 10)
			tab.Configure(SyncConfig{Params: p, Interval: time.Second}, 10)
			tab.SetClock(t0, 0, 0)
			epoch := p.Epoch()
			now := (t0/int64(epoch)+1)*int64(epoch) - int64(epoch/10) // shortly before a boundary
			r := tab.ReservationOf(l, key, tab.Take(l, key, []byte("k"), now, 1, reserving))
			tab.SetClock(now, epoch/5, 0) // now shortly behind it
			for range 3 {
				tab.Take(l, key, []byte("k"), now, 1, 0)
			}
			tab.Settle(key, r, now, 0)
			tab.With(key, func(s *algorithms.WindowState) {
				if led := tab.machine.Ledger(s); led.Cur.Own != 3 || led.Prev.Own != 0 {
					t.Errorf("%s of %d parts: %d spent in this epoch and %d in the one before, want 3 and 0", kind, history, led.Cur.Own, led.Prev.Own)
				}
			})
		}
	}
}
