package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

var hourBucket = algorithms.Params{Kind: algorithms.TokenBucket, Limit: 20, Window: time.Hour}

// newCharged returns a table of buckets that are charged.
func newCharged() *Table[algorithms.BucketState] {
	tab := of[algorithms.BucketState](hourBucket, 100)
	tab.Configure(SyncConfig{Params: hourBucket, Rate: time.Second, Charges: true}, 100)
	return tab
}

func takeOne(tab *Table[algorithms.BucketState], now int64) Taken {
	return tab.Take(hourBucket.Compile(), keys.KeyOf(raw(1)), raw(1), now, 1, 0)
}

// What the store reports of a key is ignored while a charge of it is in flight, which it may or may
// not have in it, and where a newer report has come.
func TestReportsOfAChargedKeyThatMayBeOldAreIgnored(t *testing.T) {
	tab := newCharged()
	spent := func(at time.Duration, level float64) {
		tab.Import(hourBucket.Compile(), keys.KeyOf(raw(1)), raw(1), t0+3, 0, []algorithms.Report{{Level: level, LevelAt: t0 + int64(at)}})
	}
	left := func(want int64) {
		t.Helper()
		if got, _ := tab.Room(hourBucket.Compile(), keys.KeyOf(raw(1)), raw(1), t0+3); got != want {
			t.Errorf("%d are left, want %d", got, want)
		}
	}
	spent(100*time.Millisecond, 5)
	left(15)
	spent(0, 9)
	left(15)
	takeOne(tab, t0+2)
	c, _ := tab.ChargeOf(keys.KeyOf(raw(1)), t0+2)
	spent(200*time.Millisecond, 9)
	left(14)
	tab.FailCharge(t0+3, c)
	if _, hasDebt := tab.HasDebt(keys.KeyOf(raw(1))); !hasDebt {
		t.Error("a charge that was not counted is not to be charged any more")
	}
	spent(300*time.Millisecond, 9)
	left(10)
}

// A charge that comes back to a table that is not charged any more, or to a key that is gone,
// changes nothing.
func TestAChargeThatComesBackLate(t *testing.T) {
	tab := newCharged()
	takeOne(tab, t0)
	c, _ := tab.ChargeOf(keys.KeyOf(raw(1)), t0)
	if _, ok := tab.ChargeOf(keys.KeyOf(raw(1)), t0); ok {
		t.Error("a key has a second charge while one is in flight")
	}
	tab.Configure(SyncConfig{Params: hourBucket, Rate: time.Second}, 100)
	tab.AckCharge(t0, c, []algorithms.Report{{Level: 7, LevelAt: t0}})
	if got, _ := tab.Room(hourBucket.Compile(), keys.KeyOf(raw(1)), raw(1), t0); got != 19 {
		t.Errorf("%d are left, want 19: the report is of another store", got)
	}
	tab.FailCharge(t0, c) // it is not in flight
	gone := c
	gone.Key = keys.KeyOf(raw(2))
	if tab.AckCharge(t0, gone, nil); tab.Keys() != 1 {
		t.Errorf("the charge of a key that is gone: %d keys, want one", tab.Keys())
	}
}

// Tables that are not charged have no charges, whatever their keys have counted.
func TestOnlyTablesThatAreChargedHaveCharges(t *testing.T) {
	totals := of[algorithms.BucketState](hourBucket, 100)
	totals.Configure(SyncConfig{Params: hourBucket, Rate: time.Second}, 100)
	takeOne(totals, t0)
	windows := of[algorithms.WindowState](hour, 100)
	windows.Configure(SyncConfig{Params: hour, Rate: time.Second, Charges: true}, 100)
	take(windows, hour, 1, t0)
	for name, tab := range map[string]interface {
		Tick()
		DrainCharges(now int64, most int, dst []Charge) []Charge
		HasDebt(keys.Key) (keys.ID, bool)
		ChargeOf(keys.Key, int64) (Charge, bool)
	}{"buckets that sync totals": totals, "windows": windows} {
		tab.Tick()
		_, hasDebt := tab.HasDebt(keys.KeyOf(raw(1)))
		if all := tab.DrainCharges(t0, 10, nil); len(all) != 0 || hasDebt {
			t.Errorf("%s: charges %+v, hasDebt %t, want none", name, all, hasDebt)
		}
		if c, ok := tab.ChargeOf(keys.KeyOf(raw(1)), t0); ok {
			t.Errorf("%s: ChargeOf() = %+v", name, c)
		}
	}
	if c, ok := newCharged().ChargeOf(keys.KeyOf(raw(1)), t0); ok {
		t.Errorf("a key that was never seen: ChargeOf() = %+v", c)
	}
}

// What works without a request does nothing to a table that no configuration has reached yet.
func TestATableWithoutAConfiguration(t *testing.T) {
	tab := New[algorithms.WindowState](algorithms.SlidingWindow, 100)
	take(tab, hour, 1, t0)
	tab.Sweep(t0 + 2*int64(time.Hour))
	tab.Resend()
	tab.ResetAcks()
	if tab.Ack(t0, []Answer{{Message: Message{Key: keys.KeyOf(raw(1))}, Sum: 5}}) {
		t.Error("Ack() reports a loss")
	}
	if m := tab.Drain(t0, 10, false, nil); len(m) != 0 || tab.Save(t0) != nil || tab.Totals(t0) != (Totals{}) {
		t.Errorf("Drain() = %+v, Save() = %v, Totals() = %+v, want nothing", m, tab.Save(t0), tab.Totals(t0))
	}
	if tab.Keys() != 1 {
		t.Errorf("%d keys, want one", tab.Keys())
	}
}
