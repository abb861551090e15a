package strict

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// held is what Redis holds of a key in the rule of a zone: what is left of the limit, as a call
// that asks for nothing shows.
func held(t testing.TB, s *Limiter, zone string, key [16]byte, rule Rule) int64 {
	t.Helper()
	n, _ := heldAt(t, s, zone, key, rule)
	return n
}

// heldAt is held with the instant of Redis' clock, in microseconds.
func heldAt(t testing.TB, s *Limiter, zone string, key [16]byte, rule Rule) (n, at int64) {
	t.Helper()
	rs, err := s.ruleset(zone, []Rule{rule})
	if err != nil {
		t.Fatal(err)
	}
	for {
		all, err := s.call(rs, rs.keysOf(key), call{seq: s.seq.Add(1), rules: []Rule{rule}})
		if err == ratesync.ErrReply {
			continue // a later call of the same key has overtaken it
		}
		if err != nil {
			t.Fatal(err)
		}
		return rule.size() - all[0].remaining[0], all[0].at
	}
}

// Nothing that a denied request spent stays spent, at any rate of requests: a shared limit loses
// what is under way in one call at most, and two seconds after the end it holds what was admitted.
// What waits is bounded by the limit's shape, never by the requests.
func TestDeniedRequestsLeaveNothingSpent(t *testing.T) {
	for _, name := range []string{"token bucket"} {
		shared := kinds[name]
		t.Run(name, func(t *testing.T) {
			onALine(t, 10*time.Second, func(t *testing.T, l *line, s *Limiter) {
				l.setTrip(20 * time.Millisecond)
				shared.Limit, shared.Burst, shared.Queue = 1000, 1000, 999
				own := Rule{Kind: algorithms.TokenBucket, Limit: 5, Window: long}
				const clients = 200
				var wg sync.WaitGroup
				var admitted, denied, waiting atomic.Int64
				for range clients {
					wg.Go(func() {
						for denied.Load() < 8*clients {
							all, _ := take(t, s, name, id(1), shared)
							g, _ := take(t, s, name+" own", id(2), own)
							switch {
							case g.Admitted():
								admitted.Add(1)
							case all.Admitted():
								denied.Add(1)
								s.Refund(all, nil)
							}
							waiting.Store(max(waiting.Load(), backlog(s, name, id(1))))
						}
					})
				}
				wg.Wait()
				time.Sleep(2 * time.Second) // virtual time
				if got := held(t, l.other(t), name, id(1), shared); got != 5 || admitted.Load() != 5 {
					t.Errorf("%d admitted and %d denied, %d held 2 s after that, want 5 and 5", admitted.Load(), denied.Load(), got)
				}
				if most := int64(clients); waiting.Load() > most {
					t.Errorf("%d corrections waited at once, want %d at most", waiting.Load(), most)
				}
			})
		})
	}
}

// backlog is how many corrections wait for a key.
func backlog(s *Limiter, zone string, key [16]byte) (n int64) {
	s.mu.Lock()
	rs := s.zones[zone][0]
	s.mu.Unlock()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if q := rs.queues[key]; q != nil {
		for _, c := range q.pending {
			n += int64(len(c))
		}
	}
	return n
}

// Requests that are denied and counted all the same are charged to the window in which they were
// denied: after a flood a client that is silent is free within one window, whatever had queued up.
func TestPenaltiesEndWithTheFlood(t *testing.T) {
	for _, kind := range allKinds {
		if kind == algorithms.LeakyBucket || kind == algorithms.GCRA {
			continue // as the other bucket
		}
		t.Run(kind.String(), func(t *testing.T) {
			onALine(t, 10*time.Second, func(t *testing.T, l *line, s *Limiter) {
				l.setTrip(20 * time.Millisecond)
				rule := Rule{Kind: kind, Limit: 5, Window: 2 * time.Second, CountsDenied: true}
				free := rule.Window
				if kind == algorithms.SlidingWindow {
					// What came at the beginning of a sub-window is known as of its end.
					rule.Buckets, free = 4, free+rule.Window/4
				}
				var wg sync.WaitGroup
				for range 60 {
					wg.Go(func() {
						for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
							take(t, s, "z", id(1), rule)
						}
					})
				}
				wg.Wait()
				time.Sleep(free) // virtual time
				if n := held(t, l.other(t), "z", id(1), rule); n >= rule.Limit {
					t.Errorf("%d of %d are held %s after the last request, with a window of %s", n, rule.Limit, free, rule.Window)
				}
			})
		})
	}
}

// However many corrections are added, their number goes by the rule: what is live is kept to the
// unit, and what has left the window is dropped.
func TestCorrectionsAreBoundedAndExact(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for name, rule := range kinds {
		rule.Window, rule.Limit = time.Minute, 40
		for round := range 50 {
			var all corrections
			now := int64(1_800_000_000_000_000)
			for range 2000 {
				now += random.Int64N(1 << random.IntN(20))
				c := correction{op: refund, n: 1, at: now - random.Int64N(1<<random.IntN(27))}
				if random.IntN(2) == 0 {
					c.op = penalty
				}
				all = all.add(rule, c)
			}
			if len(all) > 2 {
				t.Fatalf("%s, round %d: %d corrections, want 2 at most", name, round, len(all))
			}
		}
	}
}
