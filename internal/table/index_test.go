package table

import (
	"math/rand/v2"
	"testing"
)

// An index is held to a map through a long life, with keys that crowd a few words.
func TestIndexAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var x index
	keys := make(map[uint32]Key) // by place
	places := make(map[Key]uint32)
	find := func(key Key) (place uint32, ok bool) {
		for at := tagOf(key); ; {
			if place, at, ok = x.seek(tagOf(key), at); !ok || keys[place] == key {
				return place, ok
			}
		}
	}
	for step := range 200_000 {
		// Tags of a narrow range meet often, and some are the same.
		key := Key{uint64(random.IntN(300)) * 0x1_0000_0001, uint64(random.IntN(4))}
		place, there := places[key]
		got, ok := find(key)
		if ok != there || ok && got != place {
			t.Fatalf("step %d: find(%v) = %d, %t, want %d, %t", step, key, got, ok, place, there)
		}
		switch grows := step/20_000%2 == 0; {
		case there && (!grows || random.IntN(4) == 0):
			x.remove(key, place)
			delete(places, key)
			delete(keys, place)
		case !there && (grows || random.IntN(4) == 0):
			place = uint32(random.Uint32N(1 << 20))
			for _, taken := keys[place]; taken; _, taken = keys[place] {
				place++
			}
			x.add(key, place)
			places[key], keys[place] = place, key
		}
		if x.n != len(places) {
			t.Fatalf("step %d: %d keys, want %d", step, x.n, len(places))
		}
	}
	for key, place := range places {
		if got, ok := find(key); !ok || got != place {
			t.Errorf("find(%v) = %d, %t, want %d", key, got, ok, place)
		}
	}
}
