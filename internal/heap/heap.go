// Package heap keeps values so that the first of them is at hand. Unlike container/heap it puts no
// value into an interface, so it allocates nothing but the room for them.
package heap

// A Heap is values of which All[0] is none that another one is before. It begins with none.
type Heap[T any] struct {
	// Before reports whether a comes before b.
	Before func(a, b T) bool
	All    []T
}

// Push adds a value.
func (h *Heap[T]) Push(v T) {
	h.All = append(h.All, v)
	for i := len(h.All) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.Before(h.All[i], h.All[parent]) {
			return
		}
		h.All[i], h.All[parent] = h.All[parent], h.All[i]
		i = parent
	}
}

// Pop takes the first value out.
func (h *Heap[T]) Pop() T {
	first, last := h.All[0], len(h.All)-1
	h.All[0] = h.All[last]
	clear(h.All[last:])
	h.All = h.All[:last]
	h.Fix()
	return first
}

// Fix brings the first value to its place after it has changed.
func (h *Heap[T]) Fix() {
	for i := 0; ; {
		first := i
		for child := 2*i + 1; child < min(2*i+3, len(h.All)); child++ {
			if h.Before(h.All[child], h.All[first]) {
				first = child
			}
		}
		if first == i {
			return
		}
		h.All[i], h.All[first] = h.All[first], h.All[i]
		i = first
	}
}
