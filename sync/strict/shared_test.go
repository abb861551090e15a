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
