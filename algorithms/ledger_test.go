package algorithms

import (
	"slices"
	"testing"
)

func TestSettle(t *testing.T) {
	tests := []struct {
		name            string
		before          Count
		held, mine, sum int64
		elsewhere       int64
		forgot          bool
	}{
		{"first message", Count{Own: 5}, 0, 5, 5, 0, false},
		{"others are there", Count{Own: 5}, 0, 5, 12, 7, false},
		{"spent more while it was on its way", Count{Own: 9}, 0, 5, 12, 7, false},
		{"a reply was lost", Count{Own: 5, Acked: 2}, 4, 5, 5, 0, false},
		{"given back", Count{Own: 3, Acked: 5, Elsewhere: 7}, 5, 3, 10, 7, false},
		{"others gave back", Count{Own: 5, Acked: 5, Elsewhere: 7}, 5, 5, 8, 3, false},
		{"the store forgot", Count{Own: 5, Acked: 5, Elsewhere: 7}, 0, 5, 5, 7, true},
		{"the store went back", Count{Own: 8, Acked: 5, Elsewhere: 7}, 4, 8, 20, 12, true},
	}
	for _, test := range tests {
		l := Ledger{Epoch: 100, Cur: test.before}
		r, forgot, ok := l.Settle(100, test.held, test.mine, test.sum, false)
		if want := (Report{Epoch: 100, Elsewhere: test.elsewhere}); r != want || forgot != test.forgot || !ok {
			t.Errorf("%s: got %+v, forgot %v, ok %v; want %+v, %v", test.name, r, forgot, ok, want, test.forgot)
		}
		if l.Cur.Acked != test.mine || l.Cur.Own != test.before.Own {
			t.Errorf("%s: counts %+v", test.name, l.Cur)
		}
	}
}

func TestWhatIsKnownIsKeptForAForgottenEpochOnly(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: Count{Own: 5, Acked: 5, Elsewhere: 7}}
	l.Settle(100, 0, 5, 5, false)
	if r, forgot, _ := l.Settle(100, 5, 5, 6, false); forgot || r.Elsewhere != 7 {
		t.Errorf("second reply: got %+v, forgot %v; want 7 kept", r, forgot)
	}
	l.Roll(101, 1)
	if r, _, _ := l.Settle(100, 5, 5, 6, false); r.Elsewhere != 7 {
		t.Errorf("the forgotten epoch as the previous one: got %+v, want 7 kept", r)
	}
	l.Cur.Elsewhere = 9
	if r, _, _ := l.Settle(101, 0, 0, 4, false); r.Elsewhere != 4 {
		t.Errorf("the epoch after: got %+v, want 4", r)
	}
}

func TestSettleOfAnEpochNotHeld(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: Count{Own: 5}}
	for _, epoch := range []int64{98, 101, -1 << 63, 1<<63 - 1} {
		if _, _, ok := l.Settle(epoch, 0, 1, 1, true); ok || l.Cur.Acked != 0 {
			t.Errorf("Settle(%d) of a ledger at 100: ok %v, %+v", epoch, ok, l)
		}
	}
}

func TestFinalEpochs(t *testing.T) {
	var l Ledger
	l.Roll(100, 3)
	l.Settle(100, 0, 0, 4, false)
	if l.Final(100) {
		t.Error("the current epoch is final unasked")
	}
	l.Roll(101, 3)
	l.Settle(100, 0, 0, 4, true)
	l.Roll(103, 3)
	if !l.Final(100) || l.Final(101) || l.Final(103) {
		t.Errorf("final: %v %v %v, want 100 only", l.Final(100), l.Final(101), l.Final(103))
	}
	l.Move(5)
	if l.Final(105) {
		t.Error("a moved epoch is final")
	}
}

func TestRoll(t *testing.T) {
	const live = 4
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
			l.Roll(e, live)
			l.Cur = Count{Own: 101 - e, Acked: 101 - e}
		}
		l.Attempts = 9
		began := l.Roll(test.to, live)
		var got []int64
		for age := range int64(live + 1) {
			got = append(got, l.At(l.Epoch-age).Own)
		}
		if began != test.began || l.Epoch != test.epoch || !slices.Equal(got, test.want) {
			t.Errorf("%s: began %v, epoch %d, %v; want %v, %d, %v", test.name, began, l.Epoch, got, test.began, test.epoch, test.want)
		}
	}
}

func TestMove(t *testing.T) {
	var l Ledger
	for e := int64(97); e <= 100; e++ {
		l.Roll(e, 3)
		l.Cur = Count{Own: 5, Acked: 5, Elsewhere: 7}
	}
	l.Move(-40)
	for e := int64(57); e <= 60; e++ {
		if c := l.At(e); c == nil || *c != (Count{Own: 5, Elsewhere: 7}) {
			t.Errorf("epoch %d: got %+v, want 5 not acknowledged and 7 elsewhere", e, c)
		}
	}
	if l.At(100) != nil {
		t.Error("the old number is still held")
	}
	if r, forgot, _ := l.Settle(60, 0, 5, 5, false); forgot || r.Elsewhere != 7 {
		t.Errorf("first reply for a moved epoch: got %+v, forgot %v; want the 7 kept until the others have sent again", r, forgot)
	}
	l.Roll(61, 3)
	l.Cur.Elsewhere = 7
	if r, _, _ := l.Settle(61, 0, 0, 2, false); r.Elsewhere != 2 {
		t.Errorf("an epoch begun after the move: got %+v, want 2", r)
	}
}

func TestAMovedLedgerOfNothingKeepsItsNumbers(t *testing.T) {
	l := Ledger{Epoch: 100, Cur: Count{Own: 5, Acked: 5}}
	if l.Move(0); l.Epoch != 100 || l.Cur.Acked != 5 {
		t.Errorf("Move(0): %+v", l)
	}
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
		l := Ledger{Epoch: 100, Cur: Count{Own: 5}, Prev: Count{Own: 4}}
		if l.giveBack(test.epoch, test.n); l.Cur.Own != test.cur || l.Prev.Own != test.prev {
			t.Errorf("%s: got %d and %d, want %d and %d", test.name, l.Cur.Own, l.Prev.Own, test.cur, test.prev)
		}
	}
}

func TestABucketThatTakesLongerToFillGetsANewLedger(t *testing.T) {
	small, large := TokenBucket{Limit: 10, Window: 1e9}, TokenBucket{Limit: 10, Window: 1e9, Burst: 41}
	s := new(BucketState)
	small.Take(s, epoch, 4, 0)
	l := small.Ledger(s)
	l.Settled = true
	l.Cur.Acked = 4
	large.Take(s, epoch, 1, 0)
	if got, want := large.Span(s), 8*large.Window; got != want || l.Scale != 3 {
		t.Errorf("span %v, scale %d; want %v, 3", got, l.Scale, want)
	}
	if l.Settled || l.Cur != (Count{Own: 1}) || l.Prev != (Count{}) || l.Epoch != epoch/8e9 {
		t.Errorf("ledger %+v, want a new one with 1", *l)
	}
	if got := large.Level(s, epoch); got != 5 {
		t.Errorf("level %v, want 5", got)
	}
	small.Take(s, epoch, 1, 0)
	if got := small.Span(s); got != 8*small.Window || l.Cur.Own != 2 {
		t.Errorf("smaller again: span %v, own %d; want no change, 2", got, l.Cur.Own)
	}
}
