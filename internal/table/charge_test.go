package table

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

var hourLog = algorithms.Params{Kind: algorithms.SlidingLog, Limit: 20, Window: time.Hour}

// newCharged returns a table of logs that are charged.
func newCharged() *Table[algorithms.LogState] {
	tab := of[algorithms.LogState](hourLog, 100)
	tab.Configure(SyncConfig{Params: hourLog, Rate: time.Second, Charges: true}, 100)
	return tab
}

func takeLog(tab *Table[algorithms.LogState], now int64) Taken {
	return tab.Take(hourLog.Compile(), keys.KeyOf(raw(1)), raw(1), now, 1, 0)
}

// A charge whose key has followed a step of the clock meanwhile pays what it was for, and what was
// refunded of it is found at its new instant.
func TestAChargeIsPaidAfterAStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		tab := newCharged()
		takeLog(tab, t0)
		refunded := takeLog(tab, t0+1)
		c, ok := tab.ChargeOf(keys.KeyOf(raw(1)), t0+2)
		if !ok || len(c.Hits) != 2 {
			t.Fatalf("ChargeOf() = %+v, %t, want two hits", c, ok)
		}
		tab.setOffset(t0+2, step, true)
		tab.Refund(hourLog.Compile(), keys.KeyOf(raw(1)), refunded, 1)
		back, pending := tab.AckCharge(t0+3, c, []algorithms.Report{{Remote: 2, LevelAt: t0}})
		if want := []algorithms.Hit{{At: refunded.At + int64(step), N: -1}}; !pending || !slices.Equal(back.Hits, want) {
			t.Errorf("a step of %v: the refund is %+v, want %+v", step, back.Hits, want)
		}
		if keys, requests, _ := tab.Unsent(t0 + 3); keys != 0 || requests != 0 {
			t.Errorf("a step of %v: %d requests of %d keys are still to be charged, want none", step, requests, keys)
		}
	}
}

// What the store reports of a key is ignored while a charge of it is in flight, which it may or may
// not have in it, and where a newer report has come.
func TestReportsOfAChargedKeyThatMayBeOldAreIgnored(t *testing.T) {
	tab := newCharged()
	spent := func(at time.Duration, remote int64) {
		tab.Import(hourLog.Compile(), keys.KeyOf(raw(1)), raw(1), t0+3, 0, []algorithms.Report{{Remote: remote, LevelAt: t0 + int64(at)}})
	}
	left := func(want int64) {
		t.Helper()
		if got, _ := tab.Room(hourLog.Compile(), keys.KeyOf(raw(1)), raw(1), t0+3); got != want {
			t.Errorf("%d are left, want %d", got, want)
		}
	}
	spent(100*time.Millisecond, 5)
	left(15)
	spent(0, 9)
	left(15)
	takeLog(tab, t0+2)
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
	takeLog(tab, t0)
	c, _ := tab.ChargeOf(keys.KeyOf(raw(1)), t0)
	if _, ok := tab.ChargeOf(keys.KeyOf(raw(1)), t0); ok {
		t.Error("a key has a second charge while one is in flight")
	}
	tab.Configure(SyncConfig{Params: hourLog, Rate: time.Second}, 100)
	if refund, pending := tab.AckCharge(t0, c, []algorithms.Report{{Remote: 7, LevelAt: t0}}); pending {
		t.Errorf("a table that syncs totals hasDebt %+v", refund)
	}
	if got, _ := tab.Room(hourLog.Compile(), keys.KeyOf(raw(1)), raw(1), t0); got != 19 {
		t.Errorf("%d are left, want 19: the report is of another store", got)
	}
	tab.FailCharge(t0, c) // it is not in flight
	gone := c
	gone.Key = keys.KeyOf(raw(2))
	if _, pending := tab.AckCharge(t0, gone, nil); pending || tab.Keys() != 1 {
		t.Errorf("the charge of a key that is gone: %t, %d keys, want none and one", pending, tab.Keys())
	}
}

// Tables that are not charged have no charges, whatever their keys have counted.
func TestOnlyTablesThatAreChargedHaveCharges(t *testing.T) {
	logs := of[algorithms.LogState](hourLog, 100)
	logs.Configure(SyncConfig{Params: hourLog, Rate: time.Second}, 100)
	takeLog(logs, t0)
	windows := of[algorithms.WindowState](hour, 100)
	windows.Configure(SyncConfig{Params: hour, Rate: time.Second, Charges: true}, 100)
	take(windows, hour, 1, t0)
	for name, tab := range map[string]interface {
		Tick()
		DrainCharges(now int64, most int, dst []Charge) []Charge
		HasDebt(keys.Key) (keys.ID, bool)
		ChargeOf(keys.Key, int64) (Charge, bool)
	}{"logs that sync totals": logs, "windows": windows} {
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
