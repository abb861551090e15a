package strict

import "testing"

// Requests that leave a key's queue, all at once as where a flood is cut off, look through it a few
// times in all and not once each: the zone's lock is held meanwhile.
func TestLeavingAQueueIsNotLinearInIt(t *testing.T) {
	const n = 10_000
	f := &flight{}
	for range n {
		f.waiters = append(f.waiters, &waiter{})
	}
	all := append([]*waiter(nil), f.waiters...)
	looked := 0
	for i, w := range all {
		if i%10 == 0 {
			continue // stays
		}
		before := len(f.waiters)
		f.leave(w)
		if f.leavers == 0 {
			looked += before
		}
	}
	if looked > 4*n {
		t.Errorf("%d requests left a queue of %d, which looked at %d, want at most %d", n-n/10, n, looked, 4*n)
	}
	f.dropLeavers()
	if len(f.waiters) != n/10 {
		t.Errorf("%d requests are left in the queue, want %d", len(f.waiters), n/10)
	}
	for _, w := range f.waiters {
		if w.gone {
			t.Fatal("a request that has left is still in the queue")
		}
	}
}
