package algorithms

import "testing"

// What a kind says of itself is what its machine does.
func TestKindsAreWhatTheirMachinesDo(t *testing.T) {
	codes := map[byte]Kind{}
	for i := range KindNames() {
		k := Kind(i)
		if other, taken := codes[k.Traits().Code]; taken {
			t.Errorf("%s and %s have the letter %c in Redis", other, k, k.Traits().Code)
		}
		codes[k.Traits().Code] = k
		m := traits[k].machine
		_, leaves := m.(Leaver[BucketState])
		of := ByState(k, isOf[WindowState](m), isOf[BucketState](m), isOf[LogState](m))
		if !of || leaves != k.Traits().Queues {
			t.Errorf("%s: machine %T of its state %t, windowed %t, draining %t, queues %t", k, m, of, k.Traits().Windowed, k.Traits().Draining, k.Traits().Queues)
		}
		sizes := Params{Kind: k, Limit: 10, Burst: 20, Queue: 30, SubWindows: 4, Window: 4e9}.Compile()
		want := int64(10)
		switch {
		case k.Traits().TakesBurst:
			want = 20
		case k.Traits().Queues:
			want = 31
		}
		if sizes.Size != want || (sizes.History == 4) != k.Traits().TakesSubWindows || (sizes.History == 0) != (k.Traits().Fixed || k.Traits().Draining) {
			t.Errorf("%s: compiled to %+v", k, sizes)
		}
	}
}

func isOf[S any](machine any) bool { _, ok := machine.(Machine[S]); return ok }
