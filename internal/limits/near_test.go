package limits

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

func TestAKeyIsNearOnceAWindow(t *testing.T) {
	var k NearKeys
	one, two, three := keys.Key{A: 1}, keys.Key{B: 1}, keys.Key{A: 3}
	for i, c := range []struct {
		key  keys.Key
		now  int64
		want bool
	}{
		{one, 100, true}, {one, 100, false}, {one, 199, false}, {two, 150, true}, {three, 150, false}, {one, 200, true}, {three, 299, true},
		{two, 299, false}, {one, 150, true}, // the clock has stepped back
	} {
		if got := k.First(c.key, c.now/100, 2); got != c.want {
			t.Errorf("step %d: First(%v, %d) = %v, want %v", i, c.key, c.now, got, c.want)
		}
	}
}

func TestOfManyRequestsOneIsTheFirst(t *testing.T) {
	var k NearKeys
	var first atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for key := range uint64(100) {
				if k.First(keys.Key{A: key}, 5, 1000) {
					first.Add(1)
				}
			}
		})
	}
	all.Wait()
	if first.Load() != 100 {
		t.Errorf("%d were the first of 100 keys", first.Load())
	}
}

func TestNearIsAFifth(t *testing.T) {
	for _, test := range []struct {
		left, size int64
		want       bool
	}{{2, 10, true}, {3, 10, false}, {1, 5, true}, {0, 1, true}, {1, 1, false}} {
		if got := isNear(test.left, test.size); got != test.want {
			t.Errorf("%d of %d left is near: %t", test.left, test.size, got)
		}
	}
}
