package algorithms

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSettle(t *testing.T) {
	tests := []struct {
		name            string
		before          EpochCount
		held, mine, sum int64
		remote          int64
		forgot          bool
	}{
		{"first message", EpochCount{Own: 5}, 0, 5, 5, 0, false},
		{"others are there", EpochCount{Own: 5}, 0, 5, 12, 7, false},
		{"spent more while it was on its way", EpochCount{Own: 9}, 0, 5, 12, 7, false},
		{"a reply was lost", EpochCount{Own: 5, Acked: 2}, 4, 5, 5, 0, false},
		{"refunded", EpochCount{Own: 3, Acked: 3, Remote: 7}, 5, 3, 10, 7, false},
		{"others refunded", EpochCount{Own: 5, Acked: 5, Remote: 7}, 5, 5, 8, 3, false},
		{"the store forgot", EpochCount{Own: 5, Acked: 5, Remote: 7}, 0, 5, 5, 7, true},
		{"the store went back", EpochCount{Own: 8, Acked: 5, Remote: 7}, 4, 8, 20, 12, true},
		{"the store forgot, and was only asked", EpochCount{Own: 5, Acked: 5, Remote: 7}, 0, 0, 30, 7, true},
		{"this node's part was overwritten, and it only asked", EpochCount{Own: 5, Acked: 5, Remote: 7}, 2, 2, 12, 7, true},
	}
	for _, test := range tests {
		l := Ledger{Epoch: 100, Cur: test.before}
		r, forgot, ok := l.Ack(100, test.held, test.mine, test.sum, false)
		if r != test.remote || forgot != test.forgot || !ok {
			t.Errorf("%s: got %d, forgot %v, ok %v; want %d, %v", test.name, r, forgot, ok, test.remote, test.forgot)
		}
		if l.Cur.Acked != test.mine || l.Cur.Own != test.before.Own {
			t.Errorf("%s: counts %+v", test.name, l.Cur)
		}
	}
}

func TestWhatIsKnownIsKeptForAForgottenEpochOnly(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: EpochCount{Own: 5, Acked: 5, Remote: 7}}
	l.Ack(100, 0, 5, 5, false)
	if r, forgot, _ := l.Ack(100, 5, 5, 6, false); forgot || r != 7 {
		t.Errorf("second reply: got %d, forgot %v; want 7 kept", r, forgot)
	}
	l.Advance(101, 1)
	if r, _, _ := l.Ack(100, 5, 5, 6, false); r != 7 {
		t.Errorf("the forgotten epoch as the previous one: got %d, want 7 kept", r)
	}
	l.Cur.Remote = 9
	if r, _, _ := l.Ack(101, 0, 0, 4, false); r != 4 {
		t.Errorf("the epoch after: got %d, want 4", r)
	}
}

func TestSettleOfAnEpochNotHeld(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: EpochCount{Own: 5}}
	for _, epoch := range []int64{98, 101, -1 << 63, 1<<63 - 1} {
		if _, _, ok := l.Ack(epoch, 0, 1, 1, false); ok || l.Cur.Acked != 0 {
			t.Errorf("Settle(%d) of a ledger at 100: ok %v, %+v", epoch, ok, l)
		}
	}
}

func TestRoll(t *testing.T) {
	const history = 4
	tests := []struct {
		name  string
		to    int64
		began bool
		epoch int64
		want  []int64 // Own by age.
	}{
		{"the same", 100, false, 100, []int64{1, 2, 3, 4, 5}},
		{"the next", 101, true, 101, []int64{0, 1, 2, 3, 4}},
		{"two on", 102, true, 102, []int64{0, 0, 1, 2, 3}},
		{"as far as any lives", 104, true, 104, []int64{0, 0, 0, 0, 1}},
		{"beyond", 105, true, 105, []int64{0, 0, 0, 0, 0}},
		{"one back is late", 99, false, 100, []int64{1, 2, 3, 4, 5}},
		{"two back is a step", 98, true, 98, []int64{1, 2, 3, 4, 5}},
		{"far back", -7, true, -7, []int64{1, 2, 3, 4, 5}},
	}
	for _, test := range tests {
		var l Ledger
		for e := int64(96); e <= 100; e++ {
			l.Advance(e, history)
			l.Cur = EpochCount{Own: 101 - e, Acked: 101 - e}
		}
		l.Attempts = 9
		began := l.Advance(test.to, history)
		var got []int64
		for age := range int64(history + 1) {
			c, _ := l.At(l.Epoch - age)
			got = append(got, c.Own)
		}
		if began != test.began || l.Epoch != test.epoch || !slices.Equal(got, test.want) {
			t.Errorf("%s: began %v, epoch %d, %v; want %v, %d, %v", test.name, began, l.Epoch, got, test.began, test.epoch, test.want)
		}
	}
}

func TestMove(t *testing.T) {
	var l Ledger
	for e := int64(97); e <= 100; e++ {
		l.Advance(e, 3)
		l.Cur = EpochCount{Own: 5, Acked: 5, Remote: 7}
	}
	l.Renumber(-40)
	for e := int64(57); e <= 60; e++ {
		if c, ok := l.At(e); !ok || c != (EpochCount{Own: 5, Remote: 7}) {
			t.Errorf("epoch %d: got %+v, want 5 not acknowledged and 7 remote", e, c)
		}
	}
	if _, ok := l.At(100); ok {
		t.Error("the old number is still held")
	}
	if r, forgot, _ := l.Ack(60, 0, 5, 5, true); forgot || r != 7 {
		t.Errorf("first reply for a moved epoch: got %d, forgot %v; want the 7 kept until the others have sent again", r, forgot)
	}
	if r, forgot, _ := l.Ack(60, 5, 5, 7, false); forgot || r != 2 {
		t.Errorf("when they have: got %d, forgot %v; want 2", r, forgot)
	}
}

func TestAMovedLedgerOfNothingKeepsItsNumbers(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: EpochCount{Own: 5, Acked: 5}}
	if l.Renumber(0); l.Epoch != 100 || l.Cur.Acked != 5 {
		t.Errorf("Move(0): %+v", l)
	}
}

// What is told as less than it was may have arrived without an answer. What the store then holds is
// no loss.
func TestWhatIsGivenBackIsNotTakenForLost(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: EpochCount{Own: 4, Acked: 5, Remote: 7}}
	if c, ok := l.LowerAcked(100); !ok || c.Own != 4 || l.Resend != Returned {
		t.Fatalf("Send: %+v, %v, redo %d; want 4 to be sent until it is answered", c, ok, l.Resend)
	}
	l.Cur.Own = 6 // The answer is lost, and more is admitted.
	if c, _ := l.LowerAcked(100); c.Own != 6 {
		t.Fatalf("Send: %+v, want 6", c)
	}
	if r, forgot, _ := l.Ack(100, 4, 6, 12, false); forgot || r != 6 {
		t.Errorf("got %d, forgot %v; want 6 remote, as one was refunded there too", r, forgot)
	}
	if _, ok := l.LowerAcked(50); ok {
		t.Error("an epoch that is not held was sent")
	}
}

func TestAStepBackOverAnEdgePutsTheNewEpochIntoTheOldOne(t *testing.T) {
	for _, history := range []int{1, 4} {
		l := Ledger{Epoch: 98}
		for e := int64(99); e <= 103; e++ {
			l.Advance(e, history)
			l.Cur = EpochCount{Own: e, Acked: e - 1, Remote: 10 * e}
		}
		l.Attempts = 9
		l.Shift(0, 102)
		want := []EpochCount{{Own: 102 + 103, Acked: 101, Remote: 10 * (102 + 103)}}
		for age := 1; age < history; age++ {
			e := int64(102 - age)
			want = append(want, EpochCount{Own: e, Acked: e - 1, Remote: 10 * e})
		}
		want = append(want, EpochCount{}) // The oldest was forgotten when the rewound epoch began.
		for age, want := range want {
			if got, ok := l.At(102 - int64(age)); !ok || got != want {
				t.Errorf("live %d: epoch %d: got %+v, want %+v", history, 102-age, got, want)
			}
		}
		if l.Epoch != 102 || l.Resend != Unconfirmed {
			t.Errorf("live %d: %+v; want all to be said again", history, l)
		}
		if r, _, _ := l.Ack(102, 101, 205, 205+1020, true); r != 2050 {
			t.Errorf("live %d: got %d remote, want what is known to be kept until the others have sent", history, r)
		}
	}
}

func TestAShiftKeepsNoEpochThatHasNotBegun(t *testing.T) {
	tests := []struct {
		name      string
		by, epoch int64
		want      int64 // Own of the current epoch, with 3 in epoch 100 and 5 in 99.
	}{
		{"within an epoch", 0, 100, 3},
		{"ahead over a boundary", 0, 101, 3},
		{"whole epochs ahead", 7, 107, 3},
		{"whole epochs back", -7, 93, 3},
		{"far back", -70, 30, 3},
		{"back over a boundary", 0, 99, 8},
		{"whole epochs and a boundary back", -7, 92, 8},
		{"ahead, but not so far", 7, 106, 8},
		{"a clock that makes no sense", 7, 50, 3},
	}
	for _, test := range tests {
		l := Ledger{Epoch: 100, Cur: EpochCount{Own: 3, Acked: 3}, Prev: EpochCount{Own: 5, Acked: 5}}
		l.Shift(test.by, test.epoch)
		if l.Epoch > test.epoch || l.Cur.Own != test.want {
			t.Errorf("%s: %+v; want %d spent", test.name, l, test.want)
		}
	}
}

// The counts of older epochs take less room, as long as they are small.
func TestOlderCountsAreKept(t *testing.T) {
	const history = 5
	rapid.Check(t, func(t *rapid.T) {
		l, want := Ledger{Epoch: 100}, map[int64]EpochCount{}
		l.hold(history)
		number := rapid.OneOf(rapid.Int64Range(0, 9), rapid.SampledFrom([]int64{math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64}))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			e := l.Epoch - rapid.Int64Range(0, history).Draw(t, "age")
			c := EpochCount{Own: number.Draw(t, "own"), Acked: number.Draw(t, "acked"), Remote: number.Draw(t, "remote")}
			l.Put(e, c)
			want[e] = c
			l.Advance(l.Epoch+rapid.SampledFrom([]int64{0, 1, 1, 2, history + 1}).Draw(t, "on"), history)
			for age := range int64(history + 1) {
				if got, ok := l.At(l.Epoch - age); !ok || got != want[l.Epoch-age] {
					t.Fatalf("age %d: got %+v, %v; want %+v", age, got, ok, want[l.Epoch-age])
				}
			}
		}
	})
}

func TestGiveBackLowersTheEpochThatWasCharged(t *testing.T) {
	tests := []struct {
		name      string
		epoch, n  int64
		cur, prev int64
	}{
		{"current", 100, 2, 3, 4},
		{"previous", 99, 2, 5, 2},
		{"late: the rest was charged to the current", 99, 6, 3, 0},
		{"moved back since", 140, 2, 3, 4},
		{"no longer held", 98, 2, 5, 4},
		{"never below 0", 100, 9, 0, 4},
	}
	for _, test := range tests {
		l := Ledger{Epoch: 100, Cur: EpochCount{Own: 5}, Prev: EpochCount{Own: 4}}
		if l.Refund(test.epoch, test.n); l.Cur.Own != test.cur || l.Prev.Own != test.prev {
			t.Errorf("%s: got %d and %d, want %d and %d", test.name, l.Cur.Own, l.Prev.Own, test.cur, test.prev)
		}
	}
}

// Counts of old epochs that need more than 32 bits go along with steps of the clock, and with a
// clone, which shares none of them.
func TestLargeCountsOfOldEpochs(t *testing.T) {
	const history, large = 4, 1 << 40
	var l Ledger
	for e := int64(96); e <= 100; e++ {
		l.Advance(e, history)
		l.Cur = EpochCount{Own: large + e, Acked: 2, Remote: 3}
	}
	own := func(l *Ledger) (all []int64) {
		for age := range int64(history + 1) {
			c, _ := l.At(l.Epoch - age)
			all = append(all, c.Own)
		}
		return all
	}
	before := []int64{large + 100, large + 99, large + 98, large + 97, large + 96}
	if got := own(&l); !slices.Equal(got, before) {
		t.Fatalf("own counts by age: %v, want %v", got, before)
	}
	clone := l.Clone()
	clone.Advance(101, history)
	clone.Put(98, EpochCount{Own: 7})
	if got := own(&l); !slices.Equal(got, before) {
		t.Errorf("own counts by age after changes of a clone: %v, want %v", got, before)
	}
	l.Shift(0, 99) // back over the last boundary
	if got := own(&l); l.Epoch != 99 || !slices.Equal(got, []int64{2*large + 199, large + 98, large + 97, large + 96, 0}) {
		t.Errorf("own counts by age after a step back: %v", got)
	}
}

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
