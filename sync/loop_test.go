package ratesync

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// fakeServer stands for a server in virtual time, where no real one can be: it answers the two
// scripts as if no other node were there, and notes when it was called for which zone.
type fakeServer struct {
	redis.UniversalClient

	mu    sync.Mutex
	made  int
	calls map[string][]time.Time
	held  map[string]string
	trip  time.Duration // there and back
	slow  time.Duration // of each tenth call, beside the trip
	fails bool
}

// EvalSha is how heartbeats come.
//
// bubble: of each test.
func (c *fakeServer) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	if err := c.called("nodes"); err != nil {
		return redis.NewCmdResult(nil, err)
	}
	now := time.Now()
	return redis.NewCmdResult([]any{itoa(now.Unix()), itoa(int64(now.Nanosecond() / 1000)), int64(1 << 40), int64(1), int64(0), "", "0", []any{}, []any{}}, nil)
}

// Process is how counts come.
//
// bubble: of each test.
func (c *fakeServer) Process(_ context.Context, cmd redis.Cmder) error {
	arg := func(i int) string { return *cmd.Args()[i].(*string) }
	if err := c.called(strings.Split(arg(3), ":")[3]); err != nil {
		cmd.SetErr(err)
		return err
	}
	now := time.Now()
	keys, _ := strconv.Atoi(arg(2))
	reply := itoa(now.Unix()) + " " + itoa(int64(now.Nanosecond()/1000)) + "\n"
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range keys {
		// Before them are the seq, how many there are, and the threshold.
		key, total, more := arg(3+i), arg(3+keys+3+3*i+1), strings.Fields(arg(3+keys+3+3*i+2))
		reply += "\n" + c.held[key]
		c.held[key] = strings.Join(append([]string{arg(3 + keys), total}, more...), " ")
		reply += "\n" + strings.Join(append([]string{total, "0", "0"}, more...), " ")
	}
	cmd.(*redis.StringCmd).SetVal(reply)
	return nil
}

// called takes the time of the way there and back.
//
// bubble: of each test.
func (c *fakeServer) called(zone string) error {
	c.mu.Lock()
	trip := c.trip
	if c.made++; c.made%10 == 0 {
		trip += c.slow
	}
	c.mu.Unlock()
	time.Sleep(trip)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[zone] = append(c.calls[zone], time.Now())
	if c.fails {
		return errors.New("connection refused")
	}
	return nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func (c *fakeServer) count(zone string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls[zone])
}

// known is how many keys were sent to it.
func (c *fakeServer) known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

func (c *fakeServer) setFails(fails bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = fails
}

// vnode is a node in virtual time.
type vnode struct {
	fakeServer
	t    *testing.T
	rep  *Replicator
	logs *observer.ObservedLogs
}

func newVnode(t *testing.T) *vnode {
	core, logs := observer.New(zap.InfoLevel)
	n := &vnode{t: t, fakeServer: fakeServer{calls: make(map[string][]time.Time), held: make(map[string]string), trip: time.Millisecond}, logs: logs}
	n.rep = NewReplicator(&n.fakeServer, "test", time.Second, wallClock, zap.New(core))
	t.Cleanup(n.rep.Close)
	return n
}

// zone attaches a table with a limit that is far away.
func (n *vnode) zone(name string, rate time.Duration) (touch func(key string), source *TableSyncer) {
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 40, Window: 100 * time.Hour}
	tab := tableOf[algorithms.WindowState](alg, 10_000)
	source = NewTableSyncer(tab, Spec{Zone: name, Kind: 'f', Window: alg.Window, SubWindows: 1})
	tab.Configure(table.SyncConfig{Params: alg, Interval: rate, Early: true, Waker: source.Waker}, 10_000)
	n.rep.Attach(source, rate)
	n.t.Cleanup(source.Detach)
	return func(key string) { tab.Take(alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 1, 0) }, source
}

func between(t *testing.T, what string, got, low, high int) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: %d calls, want %d to %d", what, got, low, high)
	}
}

func TestEachZoneHasItsOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		fast, _ := n.zone("fast", 250*time.Millisecond)
		slow, slowSource := n.zone("slow", 2*time.Second)
		for range 1000 { // ten seconds
			fast("k")
			slow("k")
			time.Sleep(10 * time.Millisecond)
		}
		// The first two syncs of a key come early.
		between(t, "250ms in 10s", n.count("fast"), 40, 43)
		between(t, "2s in 10s", n.count("slow"), 5, 8)
		between(t, "heartbeats in 10s", n.count("nodes"), 10, 11)

		n.rep.Attach(slowSource, 100*time.Millisecond) // as a reload does
		before := n.count("slow")
		for range 100 {
			slow("k")
			time.Sleep(10 * time.Millisecond)
		}
		between(t, "changed to 100ms, in 1s", n.count("slow")-before, 9, 12)
	})
}

func TestIdleKeysCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		touch, _ := n.zone("idle", time.Second)
		touch("k")
		time.Sleep(5 * time.Second)
		before := n.count("idle")
		time.Sleep(time.Hour)
		between(t, "an hour without requests", n.count("idle")-before, 0, 0)
		touch("k")
		time.Sleep(10 * time.Millisecond)
		between(t, "a key that was away for long", n.count("idle")-before, 1, 1)
	})
}

// A sync of many keys rests as long as it works, until a quarter of the interval is over. What
// becomes urgent meanwhile doesn't wait for its end.
func TestManyKeysAreSyncedSlowly(t *testing.T) {
	const keys, calls = 900, 900 / batchSize
	for _, c := range []struct {
		trip, low, high time.Duration
		urgent          int // calls until an urgent key was sent, at most
	}{
		{time.Millisecond, 2 * (calls - 1) * time.Millisecond, 2 * (calls + 1) * time.Millisecond, 6},
		// Would take 1.7 s slowly.
		{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, calls + 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newVnode(t)
			touch, _ := n.zone("many", time.Second)
			all := func() {
				for i := range keys {
					touch(itoa(int64(i)))
				}
			}
			for range 3 { // the first two syncs of a key come early
				all()
				time.Sleep(3*time.Second + 100*time.Millisecond) // between two ticks
			}
			n.mu.Lock()
			n.trip = c.trip
			n.mu.Unlock()
			before := n.count("many")
			all()
			for n.count("many") < before+2 {
				time.Sleep(c.trip / 10)
			}
			touch("urgent")
			for n.known() == keys {
				time.Sleep(c.trip / 10)
			}
			between(t, "until an urgent key was sent", n.count("many")-before, 3, c.urgent)
			time.Sleep(2 * time.Second)
			n.mu.Lock()
			made := n.calls["many"][before:]
			n.mu.Unlock()
			made = made[:calls+1]
			if took := made[calls].Sub(made[0]); took < c.low || took > c.high {
				t.Errorf("trips of %v: the sync took %v, want %v to %v", c.trip, took, c.low, c.high)
			}
		})
	}
}

func TestALostServerIsTriedAgainAndMissedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		touch, source := n.zone("lost", 200*time.Millisecond)
		step := func(d time.Duration) {
			for range d / (10 * time.Millisecond) {
				touch("k")
				time.Sleep(10 * time.Millisecond)
			}
		}
		step(time.Second)
		n.setFails(true)
		before := n.count("lost")
		step(10 * time.Second)
		between(t, "10s of failures at 200ms", n.count("lost")-before, 40, 55)
		if source.UnavailableShards() != allShards {
			t.Error("Lost() = false while nothing is answered")
		}
		n.setFails(false)
		step(400 * time.Millisecond)
		if source.UnavailableShards() != 0 {
			t.Error("not back within two intervals")
		}
		step(time.Second)
		if down, up := n.logs.FilterMessageSnippet("fails").Len(), n.logs.FilterMessageSnippet("works again").Len(); down != 1 || up != 1 {
			t.Errorf("%d lines down and %d up, want 1 and 1", down, up)
		}
	})
}

// Where keys are many and the server is far away, as many calls as may be are always under way: a
// slow one holds up none but itself.
func TestASlowCallHoldsUpNoOther(t *testing.T) {
	const keys, trip = 8000, 50 * time.Millisecond
	for name, slow := range map[string]time.Duration{"all alike": 0, "every tenth is slow": 4 * trip} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newVnode(t)
				touch, _ := n.zone("many", time.Second)
				all := func() {
					for i := range keys {
						touch(itoa(int64(i)))
					}
				}
				for range 3 { // the first two syncs of a key come early
					all()
					time.Sleep(10 * time.Second)
				}
				n.mu.Lock()
				n.trip, n.slow = trip, slow
				n.mu.Unlock()
				for range 2 { // the first makes the sync go as fast as it can
					all()
					time.Sleep(10 * time.Second)
				}
				all()
				before := n.count("many")
				for waited := 0; n.count("many") == before && waited < 1000; waited++ {
					time.Sleep(trip / 10)
				}
				began := time.Now().Add(-trip)
				for n.count("many") < before+keys/batchSize && time.Since(began) < time.Minute {
					time.Sleep(trip / 10)
				}
				least := (keys/batchSize*trip + keys/batchSize/10*slow) / parallel
				if took := time.Since(began); took > least+least/10+slow {
					t.Errorf("%d calls took %v, want %v as %d are under way", keys/batchSize, took, least, parallel)
				}
			})
		})
	}
}

// A table that has nothing to send is synced as long as Redis answers heartbeats: in an outage it
// ages as one with requests does. Before Redis' first answer it was never synced.
func TestAnIdleTableIsAsOldAsTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		n.setFails(true)
		touch, busy := n.zone("busy", time.Second)
		_, idle := n.zone("idle", time.Second)
		_, slow := n.zone("slow", time.Hour)
		wait := func(d time.Duration) {
			for range d / (100 * time.Millisecond) {
				touch("k")
				time.Sleep(100 * time.Millisecond)
			}
		}
		ages := func(when string, low, high time.Duration, of ...*TableSyncer) {
			t.Helper()
			for _, s := range of {
				if age := time.Since(s.Status().Synced); age < low || age > high {
					t.Errorf("%s %s was synced %s ago, want %s to %s", when, s.name, age, low, high)
				}
			}
		}
		wait(5 * time.Second)
		for _, s := range []*TableSyncer{busy, idle, slow} {
			if got := s.Status().Synced; !got.IsZero() {
				t.Errorf("before Redis has answered %s was synced at %s", s.name, got)
			}
		}
		n.setFails(false)
		wait(10 * time.Second)
		ages("with Redis", 0, 2500*time.Millisecond, busy, idle)
		ages("with Redis", 9*time.Second, 10*time.Second, slow) // its next cycle is far away
		cycles := idle.Status().Cycles
		n.setFails(true)
		wait(12 * time.Second)
		ages("in an outage", 10500*time.Millisecond, 14500*time.Millisecond, busy, idle)
		if got := idle.Status().Cycles; got < cycles+10 {
			t.Errorf("%d cycles in an outage of 12 s, want one a second", got-cycles)
		}
		n.setFails(false)
		wait(3 * time.Second)
		ages("after it", 0, 2500*time.Millisecond, busy, idle)
	})
}
