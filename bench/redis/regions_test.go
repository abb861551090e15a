//go:build unix

package redis

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// regionKeys is how many keys change in each region.
const regionKeys = 1000

// A region is a Redis with one node, which is the one that reads the others.
type region struct {
	server *redistest.Server
	rep    *ratesync.Replicator
	source *ratesync.Source
	touch  func()
}

// newRegion has a node count so many keys every 100 ms. Where others is not nil it reads these
// every rate, and has them read what has at least so much.
func newRegion(t *testing.T, server *redistest.Server, here string, others map[string]redis.UniversalClient, rate time.Duration, least int64) *region {
	now := func() int64 { return time.Now().UnixNano() }
	r := &region{server: server, rep: ratesync.NewReplicator(server.Client(), "bench", time.Second, now, zap.NewNop())}
	t.Cleanup(r.rep.Close)
	alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 40, Window: 24 * time.Hour, SubWindows: 1}
	tab := table.New[algorithms.WindowState](alg.Kind, 1<<20)
	r.source = ratesync.NewSource(tab, ratesync.Spec{Zone: "z", Kind: 's', Window: alg.Window, SubWindows: 1, History: 1})
	regions := 1
	if others != nil {
		r.rep.Relay(ratesync.Regions{Here: here, Others: others, Interval: rate})
		r.source.SetLeastTold(least)
		regions = len(others) + 1
	}
	tab.Configure(table.SyncConfig{Params: alg, Interval: 100 * time.Millisecond, Regions: regions, Waker: r.source.Waker}, 1<<20)
	r.touch = func() {
		raw := make([]byte, 8)
		for i := range regionKeys {
			binary.BigEndian.PutUint64(raw, uint64(i))
			tab.Take(alg.Compile(), keys.KeyOf(raw), raw, now(), 1, 0)
		}
	}
	r.rep.Attach(r.source, 100*time.Millisecond)
	t.Cleanup(r.source.Detach)
	return r
}

// perKey touches all keys for a while, and returns the CPU time of the server for each that was
// synced, in microseconds, without what it takes when nothing happens.
func (r *region) perKey(t *testing.T, d time.Duration) float64 {
	r.touch()
	redistest.Eventually(t, "all keys were synced", func() bool { return r.rep.Status().Keys >= regionKeys })
	time.Sleep(2 * time.Second) // the other region reads them meanwhile
	idle, rest := cpu(t, r.server), d/2
	time.Sleep(rest) // what is measured
	idle = (cpu(t, r.server) - idle) / rest.Seconds()
	before, used, began := r.rep.Status(), cpu(t, r.server), time.Now()
	// the load that is measured: every key twice in an interval
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		r.touch()
	}
	used = cpu(t, r.server) - used - idle*time.Since(began).Seconds()
	return used * 1e6 / float64(r.rep.Status().Keys-before.Keys)
}

// TestRegions measures what regions cost: a push of a key that is told, and of one that isn't, by
// that of a key without regions; what the other region says in its own Redis of a key that is told;
// and a relay that finds nothing new.
func TestRegions(t *testing.T) {
	rounds, d := 1, time.Second
	if *figures {
		rounds, d = 5, 4*time.Second
	}
	best := map[string]float64{}
	for range rounds {
		for _, c := range []struct {
			name  string
			tells bool
			rate  time.Duration
			least int64
		}{
			{"without regions", false, 0, 0},
			{"below the threshold", true, 100 * time.Millisecond, 1 << 30},
			{"told", true, 100 * time.Millisecond, 1},
		} {
			t.Run(c.name, func(t *testing.T) {
				here, there := redistest.Start(t), redistest.Start(t)
				var others map[string]redis.UniversalClient
				var us *region
				if c.tells {
					others = map[string]redis.UniversalClient{"us": there.Client()}
					us = newRegion(t, there, "us", map[string]redis.UniversalClient{"eu": here.Client()}, 100*time.Millisecond, 1)
				}
				r := newRegion(t, here, "eu", others, c.rate, c.least)
				await(t, r)
				took := r.perKey(t, d)
				if was, ok := best[c.name]; !ok || took < was {
					best[c.name] = took
				}
				if c.name == "told" {
					measureLink(t, r, us, d)
				}
				if c.name == "below the threshold" {
					if n := r.rep.RegionsStatus().Others[0].Messages; n != 0 {
						t.Errorf("%d messages of keys below the threshold", n)
					}
					measureIdle(t, r, d)
				}
			})
		}
	}
	plain := best["without regions"]
	for name, us := range best {
		t.Logf("%s: %.2f us of the region's own Redis a push, %.2f times one without regions", name, us, us/plain)
	}
	if n := best["told"] / plain; *figures && n > 2.4 {
		t.Errorf("a push of a key that is told, and its reading, take %.2f times as long, want at most 2.4", n)
	}
}

// await waits until the other region is read, where there is one.
func await(t *testing.T, r *region) {
	if s := r.rep.RegionsStatus(); s != nil {
		redistest.Eventually(t, "the node reads the other region", func() bool {
			s := r.rep.RegionsStatus()
			return s.Relay && s.Others[0].Offset != 0
		})
	}
}

// measureLink measures what the other region reads for a key, and says in its own Redis.
func measureLink(t *testing.T, r, us *region, d time.Duration) {
	there := us.server
	messages := func() int64 { return us.rep.RegionsStatus().Others[0].Messages }
	before, in, out, used := messages(), there.Info("stats", "total_net_input_bytes"), there.Info("stats", "total_net_output_bytes"), cpu(t, there)
	// the load that is measured
	for end := time.Now().Add(2 * d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r.touch()
	}
	n := float64(messages() - before)
	if n == 0 {
		t.Fatal("nothing was read")
	}
	bytes := float64(there.Info("stats", "total_net_input_bytes")-in) / n
	t.Logf("%.0f cells: %.0f B to the other Redis and %.0f B back, %.2f us of it, each", n, bytes,
		float64(there.Info("stats", "total_net_output_bytes")-out)/n, (cpu(t, there)-used)*1e6/n)
	if bytes > 150 {
		t.Errorf("a key that is told takes %.0f B, want at most 150", bytes)
	}
}

// measureIdle measures a relay while no request comes.
func measureIdle(t *testing.T, r *region, d time.Duration) {
	time.Sleep(time.Second) // the last sync, which is not measured
	calls, used, own := r.server.Calls("evalsha"), cpu(t, r.server), processCPU(t)
	began := time.Now()
	time.Sleep(2 * d) // what is measured
	took := time.Since(began).Seconds()
	t.Logf("idle: %.1f calls a second to its own Redis, %.2f %% of a processor there, %.2f %% for the nodes of both regions",
		float64(r.server.Calls("evalsha")-calls)/took, 100*(cpu(t, r.server)-used)/took, 100*(processCPU(t)-own).Seconds()/took)
}

// processCPU is the CPU time that this process has used.
func processCPU(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
