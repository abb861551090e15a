package table

import (
	"math/rand/v2"
	"testing"
)

type indexKey [2]uint64

func indexTag(key indexKey) uint32 { return uint32(key[0]) }

// An index is held to a map through a long history, with keys that crowd a few words.
func TestIndexAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var x index
	keys := make(map[uint32]indexKey) // by slot
	slots := make(map[indexKey]uint32)
	find := func(key indexKey) (slot uint32, ok bool) {
		for at := indexTag(key); ; {
			if slot, at, ok = x.Seek(indexTag(key), at); !ok || keys[slot] == key {
				return slot, ok
			}
		}
	}
	for step := range 200_000 {
		// Tags of a narrow range meet often, and some are the same.
		key := indexKey{uint64(random.IntN(300)) * 0x1_0000_0001, uint64(random.IntN(4))}
		slot, there := slots[key]
		got, ok := find(key)
		if ok != there || ok && got != slot {
			t.Fatalf("step %d: find(%v) = %d, %t, want %d, %t", step, key, got, ok, slot, there)
		}
		switch grows := step/20_000%2 == 0; {
		case there && (!grows || random.IntN(4) == 0):
			x.Remove(indexTag(key), slot)
			delete(slots, key)
			delete(keys, slot)
		case !there && (grows || random.IntN(4) == 0):
			slot = uint32(random.Uint32N(1 << 20))
			for _, taken := keys[slot]; taken; _, taken = keys[slot] {
				slot++
			}
			x.Add(indexTag(key), slot)
			slots[key], keys[slot] = slot, key
		}
		if x.Len() != len(slots) {
			t.Fatalf("step %d: %d keys, want %d", step, x.Len(), len(slots))
		}
	}
	for key, slot := range slots {
		if got, ok := find(key); !ok || got != slot {
			t.Errorf("find(%v) = %d, %t, want %d", key, got, ok, slot)
		}
	}
}
