package explain

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/shared"
)

// One node that has a Redis to itself decides in strict mode as it would without one, whatever
// options of a zone meet: request by request, and wait by wait.
func TestStrictDecidesAsOneNodeAlone(t *testing.T) {
	number := 0
	rapid.Check(t, func(rt *rapid.T) {
		number++
		s := lawfulZone(rt, fmt.Sprint("twin ", number, " local"), []rates.SyncRate{rates.Local}, 20*time.Second)
		s.MaxKeys, s.Enforce = 1000, settings.Enforce(rapid.SampledFrom([]float64{0, 1, 1}).Draw(rt, "enforced"))
		strict := s
		strict.Name, strict.SyncRate = fmt.Sprint("twin ", number, " strict"), rates.Strict
		n := rapid.IntRange(1, 40).Draw(rt, "requests")
		pause := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second / 2, 4 * time.Second, 18 * time.Second}), n, n).Draw(rt, "pauses")
		key := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "a", "b", "c", "d"}), n, n).Draw(rt, "keys")
		begins := rapid.SliceOfN(rapid.SampledFrom([]int{-1, -1, 0, 200, 401}), n, n).Draw(rt, "responses")
		failure := ""
		synctest.Test(t, func(t *testing.T) {
			server, client := inMemory()
			defer server.Close()
			redis := shared.Borrow(client, shared.Options{Namespace: "test", Timeout: time.Second, StrictTimeout: time.Second, Logger: zap.NewNop()})
			both := [][]*limits.Zone{handler(t, nil, s), handler(t, redis, strict)}
			c := &lifecycle.Config{Logger: zap.NewNop(), Redis: redis, StrictTimeout: time.Second}
			for _, zones := range both {
				c.Add(zones[0])
				defer zones[0].Release()
			}
			c.Start()
			defer func() { c.Stop(); redis.Close(); _ = client.Close() }()
			var opened [2]open
			for i := range n {
				time.Sleep(pause[i])
				server.FastForward(pause[i])
				synctest.Wait()
				said, waits, what := askBoth(both, key[i], &opened)
				if failure = what; what != "" {
					break
				}
				synctest.Wait()
				if said[0] != said[1] || (waits[0]-waits[1]).Abs() > 2*time.Millisecond {
					failure = fmt.Sprintf("request %d of %q: %s for %s alone, and %s for %s by Redis", i, key[i], said[0], waits[0], said[1], waits[1])
					break
				}
				if at := i % max(1, len(opened[0])); begins[i] >= 0 && len(opened[0]) > 0 {
					opened[0].begin(at, begins[i])
					opened[1].begin(at, begins[i])
					synctest.Wait()
				}
			}
			opened[0].end()
			opened[1].end()
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// askBoth sends a request to each of two handlers with one zone. It returns what they decided, how
// long the client is to wait, and what failed, "" for nothing.
func askBoth(both [][]*limits.Zone, key string, opened *[2]open) (said [2]string, waits [2]time.Duration, failure string) {
	for j, zones := range both {
		e, err := limits.Evaluate(zones, request(key), clock.Now())
		if err != nil {
			return said, waits, err.Error()
		}
		o, asked := e.Of(zones[0])
		said[j] = fmt.Sprint("denied ", e.IsDenied(), ", asked ", asked, ", would ", o.Denied, ", reserved ", o.Reserved)
		for _, r := range o.Results {
			said[j] += fmt.Sprintf(", %d of %d", r.Remaining, r.Size)
		}
		waits[j] = e.Denial().Wait
		if h := e.Hold(); h != nil && !e.IsDenied() {
			opened[j] = append(opened[j], h)
		}
		e.Free()
	}
	return said, waits, ""
}
