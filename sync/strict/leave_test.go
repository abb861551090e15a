package strict

import "testing"

// Requests that leave a key's queue, all at once as where a flood is cut off, look through it a few
// times in all and not once each: the zone's lock is held meanwhile.
func TestLeavingAQueueIsNotLinearInIt(t *testing.T) {
	const n = 10_000
	q := &queue{}
	for range n {
		q.waiters = append(q.waiters, &waiter{})
	}
	all := append([]*waiter(nil), q.waiters...)
	looked := 0
	for i, w := range all {
		if i%10 == 0 {
			continue // stays
		}
		before := len(q.waiters)
		q.leave(w)
		if q.abandoned == 0 {
			looked += before
		}
	}
	if looked > 4*n {
		t.Errorf("%d requests left a queue of %d, which looked at %d, want at most %d", n-n/10, n, looked, 4*n)
	}
	q.dropLeavers()
	if len(q.waiters) != n/10 {
		t.Errorf("%d requests are left in the queue, want %d", len(q.waiters), n/10)
	}
	for _, w := range q.waiters {
		if w.gone {
			t.Fatal("a request that has left is still in the queue")
		}
	}
}
