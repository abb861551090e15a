package reset

import (
	"testing"
)

var a, b = [16]byte{1}, [16]byte{2}

func at(stamp int64) Reset { return Reset{Stamp: stamp, At: stamp * 1000, Until: stamp*1000 + 5000} }

func TestTheLaterResetWins(t *testing.T) {
	set := (&Set{Keys: map[[16]byte]Reset{a: at(3), b: at(9)}}).With(&Set{All: at(5)}, 0)
	if set.Of(a) != at(5) || set.Of(b) != at(9) || set.Of([16]byte{7}) != at(5) {
		t.Errorf("%+v: want the reset of all, except for b", set)
	}
	if _, there := set.Keys[a]; there {
		t.Errorf("%+v: the reset of all has not replaced that of a", set)
	}
	back := (&Set{All: at(5)}).With(&Set{Keys: map[[16]byte]Reset{a: at(3), b: at(9)}}, 0)
	if back.IsNewer(set) || set.IsNewer(back) {
		t.Errorf("%+v and %+v differ, want no difference by order", set, back)
	}
	if !set.IsNewer(&Set{All: at(5)}) || set.IsNewer(&Set{All: at(9)}) || (*Set)(nil).IsNewer(nil) || !set.IsNewer(nil) {
		t.Error("IsNewer must compare key by key")
	}
}

// Who has learned of a stamp alone, by a bucket, takes up what the record says of it.
func TestTheRecordGoesBeforeABucket(t *testing.T) {
	told, said := at(9), at(9)
	said.At -= 500
	for _, key := range []bool{true, false} {
		one, other := &Set{All: told}, &Set{All: said}
		if key {
			one, other = &Set{Keys: map[[16]byte]Reset{a: told}}, &Set{Keys: map[[16]byte]Reset{a: said}}
		}
		if !other.IsNewer(one) || one.IsNewer(other) || one.With(other, 0).Of(a) != said || other.With(one, 0).Of(a) != said {
			t.Errorf("%+v and %+v make %+v, want what the record says", one, other, one.With(other, 0))
		}
	}
}

func TestAResetIsOver(t *testing.T) {
	set := &Set{All: at(1), Keys: map[[16]byte]Reset{a: at(3)}}
	if left := set.With(nil, 6000); left.Of(b).Stamp != 0 || left.Of(a) != at(3) {
		t.Errorf("%+v: want only a left", left)
	}
	if left := set.With(nil, 8000); left != nil {
		t.Errorf("%+v: want none left", left)
	}
}

// What a key has spent since a reset was applied is not forgiven by it, however many others are
// applied later.
func TestAResetIsAppliedOnce(t *testing.T) {
	var none *Applied
	first := none.Next(&Set{Keys: map[[16]byte]Reset{a: at(3)}}, 100)
	next := first.Next(&Set{Keys: map[[16]byte]Reset{a: at(3), b: at(5)}}, 200)
	if when, ok := next.When(a); !ok || when != 100 || !next.Covers(a, 100) || next.Covers(a, 101) {
		t.Errorf("the first was applied at %d, %v, want at 100", when, ok)
	}
	if when, ok := next.When(b); !ok || when != 200 || !next.Covers(b, 200) || next.Covers(b, 201) {
		t.Errorf("the second was applied at %d, %v, want at 200", when, ok)
	}
	if _, ok := first.When(b); ok || first.Covers(b, 0) || none.Covers(a, 0) || next.Next(nil, 300) != nil {
		t.Error("want no reset of a key that has none")
	}
}
