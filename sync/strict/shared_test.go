package strict

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// TestBucketOutlivesItsDrain: a bucket that is forgotten before it has drained would be a burst for
// nothing.
//
// no clock: the bucket drains in a day.
func TestBucketOutlivesItsDrain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	rule := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1, Window: time.Second, Burst: 100_000}
	if _, _, err := s.Take(t.Context(), "z", []algorithms.Params{rule}, id(1), 100_000, nil); err != nil {
		t.Fatal(err)
	}
	for _, k := range server.Do("KEYS", "test:3:*:z:*").([]any) {
		if ttl := time.Duration(server.Do("PTTL", k).(int64)) * time.Millisecond; ttl < 100_000*time.Second {
			t.Errorf("a bucket that drains in 100000 s expires after %s", ttl)
		}
	}
}

// In strict mode nodes whose limits and bursts differ share one bucket: none of it is given out
// twice.
func TestNodesWhoseParametersDifferShareABucket(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket} {
		key := id(i)
		one, other := limiter(t, server.URL), limiter(t, server.URL)
		small := algorithms.Params{Kind: kind, Limit: 50, Window: long, Burst: 100, Queue: 99}
		large := algorithms.Params{Kind: kind, Limit: 100, Window: long, Burst: 100, Queue: 99}
		if got := drain(t, one, "z", key, small); got != 100 {
			t.Errorf("%s: the first node got %d, want 100", kind, got)
		}
		if got := drain(t, other, "z", key, large); got != 0 {
			t.Errorf("%s: the second node, with a higher limit, got %d more, want none", kind, got)
		}
	}
}
