package strict

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A zone with hundreds of clients, each request with a key that nobody has asked for, holds up the
// requests of another zone by less than three round trips.
func TestAZoneWithManyKeysDoesNotHoldUpAnother(t *testing.T) {
	const trip = 20 * time.Millisecond
	onALine(t, time.Hour, func(t *testing.T, l *line, s *Limiter) {
		l.setTrip(trip)
		rule := algorithms.Params{Kind: kinds["token bucket"].Kind, Limit: 1 << 30, Window: long}
		n := 0
		most := func() (most time.Duration) {
			for range 15 {
				n++
				start := time.Now()
				take(t, s, "login", id(n), rule)
				most = max(most, time.Since(start))
			}
			return most
		}
		take(t, s, "login", id(0), rule) // loads the script
		if alone := most(); alone != trip {
			t.Fatalf("a request alone takes %s, with a Redis %s away", alone, trip)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var keys, decided atomic.Int64
		var all sync.WaitGroup
		for range 800 {
			all.Go(func() {
				for ctx.Err() == nil {
					key := keys.Add(1)
					if _, _, err := s.Take(ctx, "flood", []algorithms.Params{rule}, [16]byte{byte(key), byte(key >> 8), byte(key >> 16), 1}, 1, nil); err == nil {
						decided.Add(1)
					}
				}
			})
		}
		redistest.Eventually(t, "the flood is under way", func() bool { return decided.Load() > 2000 })
		beside := most()
		t.Logf("a request takes %s at most beside a flood", beside)
		cancel()
		all.Wait()
		if beside > 4*trip {
			t.Errorf("a request took %s beside a flood, and %s alone: held up by more than three round trips", beside, trip)
		}
	})
}

// Of each zone that waits a place carries as many calls as of any other, the oldest first.
func TestAPlaceCarriesTheCallsOfAllZones(t *testing.T) {
	var p semaphore
	jobs := map[string][]*job{}
	for _, zone := range []string{"a", "b", "c"} {
		for range map[string]int{"a": 20, "b": 2, "c": 1}[zone] {
			one := &job{zone: zone}
			jobs[zone] = append(jobs[zone], one)
			p.add(one)
		}
	}
	a, b, c := jobs["a"], jobs["b"], jobs["c"]
	want := []*job{a[0], b[0], c[0], a[1], b[1], a[2], a[3], a[4]}
	if got := p.next(); !slices.Equal(got, want) {
		t.Errorf("a place carries %d calls of other keys than the first of each zone in turn", len(got))
	}
	if got := p.next(); !slices.Equal(got, a[5:5+maxPipelined]) {
		t.Errorf("the next place carries %d calls, want the next %d of the zone that still waits", len(got), maxPipelined)
	}
}
