package ratesync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A slotStore is a stand-in for Redis that runs the scripts themselves, in virtual time.
type slotStore struct {
	*redistest.Store
	t *testing.T
	// ahead is of its clock, and back by how much that was set back, in all, in nanoseconds.
	ahead, back, calls atomic.Int64
}

func newSlotStore(t *testing.T) *slotStore {
	s := &slotStore{t: t}
	s.Store = redistest.NewStore(t, s.time)
	return s
}

// time is its clock.
//
// bubble: of each test that has a store.
func (s *slotStore) time() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// run runs a script and returns its reply as a client has it.
func (s *slotStore) run(source string, keys []string, args []any) any {
	s.calls.Add(1)
	reply, err := s.Eval(source, keys, args...)
	if err != nil {
		s.t.Errorf("script: %v", err)
	}
	if n, ok := reply.(int64); ok { // table.concat of one number, of which Redis makes a text
		return fmt.Sprint(n)
	}
	return reply
}

// step steps the clock. What expires does so by that clock.
func (s *slotStore) step(d time.Duration) {
	s.ahead.Add(int64(d))
	s.back.Add(-int64(min(d, 0)))
}

// gauges are the gauges above 0 of a key that still count, by node.
func (s *slotStore) gauges(key string) map[string]int64 { return s.gaugesAt(key, s.time()) }

// gaugesAt are those that count at an instant, as far as nothing is written until then.
func (s *slotStore) gaugesAt(key string, at time.Time) map[string]int64 {
	all := map[string]int64{}
	s.Do("EXISTS", key) // what has expired goes
	for node, value := range s.Hash(key) {
		parts := strings.Fields(value)
		gauge, _ := strconv.ParseInt(parts[1], 10, 64)
		expiry, _ := strconv.ParseInt(parts[2], 10, 64)
		if gauge > 0 && expiry > at.UnixMilli() {
			all[node] = gauge
		}
	}
	return all
}

func (s *slotStore) count() (calls, hashes int) {
	s.Do("EXISTS", "")
	return int(s.calls.Load()), len(s.Hashes())
}

// A slotWire is a node's way to the store. Of the client's methods it has those that scripts need.
type slotWire struct {
	redis.UniversalClient
	store *slotStore

	mu     sync.Mutex
	random *rand.Rand
	// of a message: that it is lost, that its reply is, that it comes late, and that it comes twice
	lost, mute, late, twice float64
	cut                     bool
	ended                   bool
}

func (w *slotWire) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *slotWire) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetErr(errNoScript{})
	return cmd
}

type errNoScript struct{}

func (errNoScript) Error() string { return "NOSCRIPT No matching script" }
func (errNoScript) RedisError()   {}

// Eval is how messages go.
//
// bubble: of each test that has a store.
func (w *slotWire) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	w.mu.Lock()
	chance := func(p float64) bool { return w.random.Float64() < p }
	lost, mute, late, twice := w.cut || chance(w.lost), chance(w.mute), chance(w.late), chance(w.twice)
	delay, latency := time.Duration(w.random.Int64N(int64(5*time.Second))), time.Duration(w.random.Int64N(int64(20*time.Millisecond)))
	ended := w.ended
	w.mu.Unlock()
	fail := func() *redis.Cmd {
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return cmd
	}
	again := func() {
		go func() {
			time.Sleep(delay) // virtual time
			w.store.run(source, keys, args)
		}()
	}
	time.Sleep(latency) // virtual time
	switch {
	case lost || ended:
		return fail()
	case late:
		again()
		return fail()
	case twice:
		again()
	}
	reply := w.store.run(source, keys, args)
	if mute {
		return fail()
	}
	time.Sleep(latency) // virtual time
	if ctx.Err() != nil {
		return fail()
	}
	cmd.SetVal(reply)
	return cmd
}
