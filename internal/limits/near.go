// Who has come near a limit has a fifth of it left, or less. Which keys have come near their limit
// is remembered, so that it is told once a window.

package limits

import (
	"sync"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// NearKeys are the keys of one limit that have come near it in a window: the aligned one of the
// clock, whatever the algorithm. The zero value is ready. It is safe for concurrent use, and takes
// memory only where somebody asks.
type NearKeys struct {
	mu     sync.Mutex
	window int64 // its number
	seen   map[keys.Key]struct{}
}

// isNear reports whether a fifth or less is left.
func isNear(left, size int64) bool { return left <= size/5 }

// First notes that a key is near its limit in a window, given by its number, and reports whether it
// is so for the first time. It remembers at most limit keys of a window: any further one is not the
// first.
func (k *NearKeys) First(key keys.Key, window int64, limit int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if window != k.window || k.seen == nil {
		k.window, k.seen = window, map[keys.Key]struct{}{}
	}
	if _, again := k.seen[key]; again || len(k.seen) >= limit {
		return false
	}
	k.seen[key] = struct{}{}
	return true
}
