package table

import "sync"

// resume holds the states of an earlier process until their keys come back: only the key's ID was kept, and where it belongs in this
// process is known when a request brings it.
type resume[S any] struct {
	mu     sync.Mutex
	states map[ID]S
}

func (r *resume[S]) take(id ID) (S, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.states[id]
	if ok {
		delete(r.states, id)
	}
	return s, ok
}
