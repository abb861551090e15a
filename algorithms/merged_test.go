package algorithms

import "testing"

// A step of the clock makes two epochs one. Others that have followed it before this ledger have
// told what they spent in both, which is no more than an estimate until they all have followed: it
// is not kept then, also where the store had lost something of the epoch.
func TestWhatAStepPutsTogetherIsNotKept(t *testing.T) {
	var l Ledger
	l.Advance(10, 0)
	l.Cur = EpochCount{Own: 56, Acked: 56, Remote: 70}
	if remote, forgot, _ := l.Ack(10, 20, 56, 137, false); !forgot || remote != 81 {
		t.Fatalf("Ack = %d, forgot %t, want a loss and 81 of others", remote, forgot)
	}
	l.Cur.Remote = 81
	l.Advance(11, 0)
	l.Cur = EpochCount{Own: 3, Acked: 3, Remote: 46} // the 46 are of those 81
	l.Shift(1, 11)
	if l.Epoch != 11 || l.Cur.Own != 59 || l.Cur.Remote != 127 {
		t.Fatalf("after the step epoch %d has %+v, want all of both in 11", l.Epoch, l.Cur)
	}
	for _, c := range []struct {
		held, sum, want int64
		early           bool
	}{{3, 105, 127, true}, {59, 142, 127, true}, {59, 161, 102, false}} {
		remote, _, _ := l.Ack(11, c.held, 59, c.sum, c.early)
		if l.Cur.Remote = remote; remote != c.want {
			t.Errorf("of a sum of %d, early %t: %d of others, want %d", c.sum, c.early, remote, c.want)
		}
	}
}
