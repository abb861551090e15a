package table

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A stepped is a table whose server's clock steps while one client asks for twice its limit all the
// time, in virtual time.
type stepped struct {
	setClock func(now int64, ahead, uncertainty time.Duration)
	take     func(now int64) bool
	now      int64
	server   time.Duration // how far its clock is ahead
	at       []int64       // when requests were admitted
}

const (
	steppedLimit  = 60
	steppedWindow = time.Minute
)

func newStepped[S any](kind algorithms.Kind) *stepped {
	alg := algorithms.Params{Kind: kind, Limit: steppedLimit, Window: steppedWindow, Burst: steppedLimit}
	tab := of[S](alg, 100)
	tab.Configure(SyncConfig{Params: alg, Interval: time.Second}, 100)
	raw := []byte("k")
	s := &stepped{now: 1_700_000_000_000_000_000}
	s.setClock = tab.SetClock
	s.take = func(now int64) bool { return tab.Take(alg.Compile(), keys.KeyOf(raw), raw, now, 1, 0).Allowed }
	return s
}

// run lets time pass: a request each half second, a heartbeat each second.
func (s *stepped) run(d time.Duration) {
	for end := s.now + int64(d); s.now < end; {
		if s.now/int64(time.Second/2)%2 == 0 {
			s.setClock(s.now, s.server, time.Millisecond)
		}
		if s.take(s.now) {
			s.at = append(s.at, s.now)
		}
		s.now += int64(time.Second / 2)
	}
}

// most is the most that was admitted in any window of true time, from the third one on: the first
// ones may hold a burst.
func (s *stepped) most() (most int) {
	late := s.at[2*steppedLimit:]
	first := 0
	for i, at := range late {
		for at-late[first] >= int64(steppedWindow) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// Whatever way the server's clock steps, a client has no more than one limit more and no less than
// one limit less for it, and nobody is locked out for longer than a window.
func TestStepsOfTheServersClock(t *testing.T) {
	steps := []time.Duration{200 * time.Millisecond, 3 * time.Second, 20 * time.Second, 31 * time.Second, 59 * time.Second, 90 * time.Second, time.Hour, 24 * time.Hour}
	for kind, limit := range map[algorithms.Kind]int{ // in any window of true time
		algorithms.FixedWindow: 2 * steppedLimit, algorithms.SlidingWindow: 2 * steppedLimit, algorithms.SlidingLog: steppedLimit * 6 / 5, algorithms.TokenBucket: steppedLimit * 6 / 5,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			make := algorithms.ByState(kind, newStepped[algorithms.WindowState], newStepped[algorithms.BucketState], newStepped[algorithms.LogState])
			random := rand.New(rand.NewPCG(1, 2))
			for _, step := range append(steps, -steps[0], -steps[1], -steps[2], -steps[3], -steps[4], -steps[5], -steps[6], -steps[7]) {
				for range 8 {
					s := make(kind)
					s.run(5*time.Minute + time.Duration(random.Int64N(int64(time.Minute))).Truncate(time.Second))
					stood, before := s.now, len(s.at)
					s.server += step
					s.run(10 * time.Minute)
					after := s.at[before:]
					if len(after) == 0 || after[0]-stood > int64(steppedWindow+2*time.Second) {
						t.Fatalf("a step of %v: nobody is admitted for a window afterwards", step)
					}
					if n := len(after); n > 11*steppedLimit+6 || n < 9*steppedLimit-6 {
						t.Errorf("a step of %v: %d admitted in ten windows, want 540 to 660", step, n)
					}
					if most := s.most(); most > limit+1 {
						t.Errorf("a step of %v: %d admitted in a window of true time, want at most %d", step, most, limit)
					}
				}
			}
		})
	}
}

// A heartbeat may be answered before it is noticed that the machine was asleep. It takes the time
// that has passed for a step of the server's clock, and the next one takes that back: in the end
// that time has passed.
func TestSleepThatAHeartbeatNoticesFirst(t *testing.T) {
	s := newStepped[algorithms.WindowState](algorithms.FixedWindow)
	s.run(5 * time.Minute)
	for s.take(s.now) {
	}
	s.setClock(s.now, time.Hour, time.Millisecond)
	if s.take(s.now) {
		t.Error("a step of the server's clock freed a client")
	}
	s.now += int64(time.Hour)
	s.setClock(s.now, 0, time.Millisecond)
	if !s.take(s.now) {
		t.Error("a client that had spent its limit an hour ago is denied")
	}
}
