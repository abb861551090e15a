package limits

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// deny counts so many denials of the key with a number.
func (d *DeniedKeys) deny(key byte, n int, now int64) {
	for range n {
		d.add(uint64(key), now, false, func() (keys.ID, string) { return keys.ID{key}, fmt.Sprint("key ", key) })
	}
}

// What was denied counts for five to ten minutes, exactly while few keys are denied.
func TestDeniedKeysOfTheLastMinutes(t *testing.T) {
	d, minute := new(DeniedKeys), int64(time.Minute)
	d.deny(1, 5, 0)
	d.deny(2, 7, 4*minute)
	d.add(2, 4*minute, true, nil)
	d.deny(1, 6, 5*minute)
	for at, want := range []string{
		5: "[{[1] key 1 11 0} {[2] key 2 7 1}]", 9: "[{[1] key 1 11 0} {[2] key 2 7 1}]", 10: "[{[1] key 1 6 0}]", 15: "[]",
	} {
		if want == "" {
			continue
		}
		var all []string
		for _, k := range d.Most(int64(at) * minute) {
			all = append(all, fmt.Sprintf("{[%d] %s %d %d}", k.ID[0], k.Text, k.Denied, k.WouldDeny))
		}
		if got := fmt.Sprint(all); got != want {
			t.Errorf("after %d minutes: %s, want %s", at, got, want)
		}
	}
	if d.deny(1, 1, 16*minute); len(d.Most(minute)) != 0 {
		t.Error("after the clock has stepped back something is known of the time before that")
	}
}

// Whoever is denied most stays in the list beside any number of others, and is said to have been
// denied no more often than it was.
func TestDeniedKeysHoldTheHeaviest(t *testing.T) {
	d, now := new(DeniedKeys), int64(0)
	const heavy, rounds = 2, 100
	for i := range 40 * rounds {
		now += int64(time.Second) / 100 // 400 in a second: no flood
		for j := range 3 {
			d.add(uint64(1000+i*3+j), now, false, func() (keys.ID, string) { return keys.ID{9, byte(i), byte(i >> 8), byte(j)}, "" })
		}
		d.deny(heavy, 1, now)
	}
	all := d.Most(now)
	if len(all) > 2*deniedListed {
		t.Errorf("%d keys are listed", len(all))
	}
	if k := all[0]; k.ID[0] != heavy || k.Denied != 40*rounds {
		t.Errorf("the first is %v with %d denials, want key %d with %d", k.ID, k.Denied, heavy, 40*rounds)
	}
	for _, k := range all[1:] {
		if k.Denied > 1 {
			t.Fatalf("a key that was denied once has %d", k.Denied)
		}
	}
}

// Under a flood some denials stand for all.
func TestDeniedKeysUnderAFlood(t *testing.T) {
	d, second := new(DeniedKeys), int64(time.Second)
	asked := 0
	const each = 50_000
	for i := range each {
		for key := range uint64(2) {
			d.add(key, second+int64(i), false, func() (keys.ID, string) { asked++; return keys.ID{byte(key)}, "" })
		}
	}
	for _, k := range d.Most(second) {
		if k.Denied < each*8/10 || k.Denied > each*12/10 {
			t.Errorf("key %d has %d denials, want some %d", k.ID[0], k.Denied, each)
		}
	}
	if asked != 2 {
		t.Errorf("keys were described %d times, want twice", asked)
	}
	if d.every.Load() != deniedSample {
		t.Error("each denial is counted")
	}
	d.deny(3, 900, 3*second)
	if got := d.every.Load(); got != 0 {
		t.Errorf("after the flood one in %d is counted", got)
	}
}

// A denial of a key that is listed allocates nothing.
func TestDeniedKeysAllocateNothing(t *testing.T) {
	d := new(DeniedKeys)
	raw := []byte("key")
	if n := testing.AllocsPerRun(100, func() {
		d.add(1, 0, false, func() (keys.ID, string) { return keys.IDOf(raw), "" })
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Requests deny at once: nothing that they count is lost. The race detector sees the list.
func TestDeniedKeysOfRequestsAtOnce(t *testing.T) {
	d := new(DeniedKeys)
	var requests sync.WaitGroup
	for range 8 {
		requests.Go(func() {
			d.deny(1, 100, 0)
			d.Most(0)
		})
	}
	requests.Wait()
	if all := d.Most(0); len(all) != 1 || all[0].Denied != 800 {
		t.Errorf("%v, want 800 denials of one key", all)
	}
}
