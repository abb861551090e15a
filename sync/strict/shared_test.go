package strict

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// TestReportsLetANodeGoOn: with what Take returned, a node's own counters know what all nodes have
// spent.
func TestReportsLetANodeGoOn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	raw := []byte("k")
	bucket := Rule{Kind: algorithms.TokenBucket, Limit: 100, Window: long}
	var all []Verdict
	for range 61 {
		_, all = take(t, s, "b", keys.IDOf(raw), bucket)
	}
	level := algorithms.Params{Kind: algorithms.TokenBucket, Limit: bucket.Limit, Window: bucket.Window}
	buckets := tableOf[algorithms.BucketState](level, 10)
	buckets.Import(level.Compile(), keys.KeyOf(raw), raw, clock.Now(), 0, all[0].Reports)
	if got := buckets.Take(level.Compile(), keys.KeyOf(raw), raw, clock.Now(), 0, 0); got.Remaining != 39 {
		t.Errorf("%d remaining by the node's own bucket, want 39", got.Remaining)
	}
}

// TestKeysExpireAndHoldNoClientBytes looks at every key in Redis.
func TestKeysExpireAndHoldNoClientBytes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	shapes := map[string]string{
		"token bucket": ":t-1h:", "gcra": ":g-1h:", "leaky bucket": ":q-1h:", "log": ":l-1h:",
	}
	for name, rule := range kinds {
		rule.Window = time.Hour
		server.Do("FLUSHALL")
		g, _ := take(t, s, "z", keys.IDOf([]byte("secret client")), rule)
		s.Refund(g, nil)
		take(t, s, "z", keys.IDOf([]byte("secret client")), rule)
		found := false
		for _, k := range server.Do("KEYS", "*").([]any) {
			key := k.(string)
			found = found || strings.Contains(key, shapes[name])
			if !strings.HasPrefix(key, "test:2:{") || strings.Contains(key, "secret") {
				t.Errorf("%s: key %q", name, key)
			}
			if ttl := server.Do("PTTL", key).(int64); ttl < time.Minute.Milliseconds() || ttl > (6*time.Hour).Milliseconds() {
				t.Errorf("%s: key %q expires after %d ms", name, key, ttl)
			}
		}
		if !found {
			t.Errorf("%s: no key with %s", name, shapes[name])
		}
	}
}

// TestBucketOutlivesItsDrain: a bucket that is forgotten before it has drained would be a burst for
// nothing.
//
// no clock: the bucket drains in a day.
func TestBucketOutlivesItsDrain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 1, Window: time.Second, Burst: 100_000}
	take(t, s, "z", id(1), rule)
	for _, k := range server.Do("KEYS", "*:level").([]any) {
		if ttl := time.Duration(server.Do("PTTL", k).(int64)) * time.Millisecond; ttl < 100_000*time.Second {
			t.Errorf("a bucket that drains in 100000 s expires after %s", ttl)
		}
	}
}

// BenchmarkTake measures the wall time of a call and the server's time in the script.
func BenchmarkTake(b *testing.B) {
	server := redistest.Start(b)
	for name, rule := range kinds {
		b.Run(name, func(b *testing.B) {
			s := limiter(b, server.URL)
			rule.Limit, rule.Burst, rule.Queue = 1<<40, 0, 1<<40
			rules := []Rule{rule}
			if _, _, err := s.Take(context.Background(), name, rules, id(0), 1, nil); err != nil {
				b.Fatal(err)
			}
			server.Do("CONFIG", "RESETSTAT")
			var dst []Verdict
			i := 0
			for b.Loop() {
				var err error
				i++
				if dst, _, err = s.Take(context.Background(), name, rules, id(i%1000), 1, dst[:0]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(server.TimeOf("evalsha"), "server-us/op")
		})
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
		small := Rule{Kind: kind, Limit: 50, Window: long, Burst: 100, Queue: 99}
		large := Rule{Kind: kind, Limit: 100, Window: long, Burst: 100, Queue: 99}
		if got := drain(t, one, "z", key, small); got != 100 {
			t.Errorf("%s: the first node got %d, want 100", kind, got)
		}
		if got := drain(t, other, "z", key, large); got != 0 {
			t.Errorf("%s: the second node, with a higher limit, got %d more, want none", kind, got)
		}
	}
}
