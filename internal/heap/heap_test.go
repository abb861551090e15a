package heap

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever is pushed, changed and popped, the least comes out first.
func TestTheFirstComesOutFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Heap[int]{Before: func(a, b int) bool { return a < b }}
		var all []int
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			v := rapid.IntRange(0, 20).Draw(t, "value")
			switch step := rapid.IntRange(0, 3).Draw(t, "step"); {
			case len(all) == 0 || step < 2:
				h.Push(v)
				all = append(all, v)
			case step == 2:
				if got := h.Pop(); got != all[0] {
					t.Fatalf("popped %d of %v, want %d", got, all, all[0])
				}
				all = all[1:]
			default:
				h.All[0], all[0] = v, v
				h.Fix()
			}
			slices.Sort(all)
			if len(h.All) != len(all) || len(all) > 0 && h.All[0] != all[0] {
				t.Fatalf("%v is first of %d, want that of %v", h.All, len(h.All), all)
			}
		}
	})
}
