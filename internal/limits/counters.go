package limits

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/saved"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// counterPool has the counters of the process, which outlive configurations: zones acquire them
// when they are provisioned and release them in Cleanup. What nobody holds ends.
var counterPool = caddy.NewUsagePool()

// Counters are the table of one limit and its way to other nodes, whatever its algorithm. They are
// safe for concurrent use.
type Counters struct {
	key      string // in counterPool
	zone     string
	table    decider
	upkeep   upkeep
	forgiver forgiver
	gauges   gauges
	source   *ratesync.Source

	sweep atomic.Int64 // nanoseconds, 0 before the first Start
	stop  chan struct{}
	done  chan struct{}

	// mu makes configure, detach and Destruct take turns. It is held while the last counts are
	// sent, and nothing else takes it.
	mu       sync.Mutex
	attached *Redis
}

// decider is a table as a request sees it.
type decider interface {
	Take(l algorithms.Limit, key table.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken
	Refund(l algorithms.Limit, key table.Key, t table.Taken, n int64)
	Penalize(l algorithms.Limit, key table.Key, t table.Taken, n int64)
	Leave(l algorithms.Limit, key table.Key, t table.Taken, now, n int64)
	Import(l algorithms.Limit, key table.Key, raw []byte, now int64, all []algorithms.Report)
	Room(l algorithms.Limit, key table.Key, raw []byte, now int64) (left int64, ok bool)
}

// upkeep is a table as configurations and snapshots see it.
type upkeep interface {
	Configure(b table.SyncConfig, maxKeys int)
	Sweep(now int64)
	Save(now int64) saved.Counts
	Resume(p algorithms.Params, now int64, counts saved.Counts) int
}

// gauges are a table as those see it who watch it.
type gauges interface {
	Totals(now int64) table.Totals
	Keys() int
	Overflowing() bool
	Overflowed() int64
	OverflowBytes() int64
}

// acquire returns the counters of one limit: new ones, or those that a configuration already holds.
// Counts go on over a reload where namespace, zone, algorithm and window stay the same.
func acquire(namespace string, z *settings.Compiled, r rates.Rate) *Counters {
	key := strconv.Quote(namespace) + " " + strconv.Quote(z.Name) + " " + specOf(z, r).Name()
	c, _, _ := counterPool.LoadOrNew(key, func() (caddy.Destructor, error) { return newCounters(key, z, r), nil })
	return c.(*Counters)
}

// release gives the counters up. Their end can't fail.
func (c *Counters) release() { _, _ = counterPool.Delete(c.key) }

// specOf names a limit to other nodes.
func specOf(z *settings.Compiled, r rates.Rate) ratesync.Spec {
	return ratesync.SpecOf(z.Name, z.Params(r))
}

// newCounters is the one place that knows which kind has which state.
func newCounters(key string, z *settings.Compiled, r rates.Rate) *Counters {
	c := &Counters{key: key, zone: z.Name, stop: make(chan struct{}), done: make(chan struct{})}
	switch k := z.Kind; {
	case k.Windowed():
		hold[algorithms.WindowState](c, z, r)
	case k.Logged():
		hold[algorithms.LogState](c, z, r)
	default:
		hold[algorithms.BucketState](c, z, r)
	}
	return c
}

// hold gives counters a table of one state.
func hold[S any](c *Counters, z *settings.Compiled, r rates.Rate) {
	t := table.New(algorithms.MachineOf[S](z.Kind), z.MaxKeys)
	c.table, c.upkeep, c.forgiver, c.gauges, c.source = t, t, t, t, ratesync.NewSource(t, specOf(z, r))
}

// catchUp is how often a zone with sync_rate 0 sends what it had to count by itself while Redis was
// unavailable.
const catchUp = time.Second

// configure applies a configuration that has become the current one: parameters for work in the
// background, and the Redis, nil for none.
func (l *Limit) configure(sweep time.Duration, redis *Redis, resets *reset.Set) {
	c, z := l.Counters, l.Settings
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweepEvery(sweep)
	every := time.Duration(z.SyncRate)
	switch {
	case !l.IsSynced(redis):
		every, redis = 0, nil
	case z.SyncRate == rates.Strict:
		every = catchUp
	}
	charges := z.SyncRate == rates.Strict && !z.Kind.Windowed()
	old := c.attached
	if redis == nil && old != nil {
		c.source.Detach() // sends the last counts, which a table without a rate doesn't give out
	}
	if old != nil && redis != old {
		c.forgiver.ForgetResets()
	}
	c.forgiver.Reset(clock.Now(), resets)
	c.upkeep.Configure(table.SyncConfig{
		Params:  l.params(),
		Rate:    every,
		Early:   z.EarlySync && z.SyncRate != rates.Strict,
		Charges: charges,
		Mixed:   slices.ContainsFunc(z.Limits, func(r rates.Rate) bool { return r.From != "" }),
		Wake:    c.source.Wake,
	}, z.MaxKeys)
	c.attached = redis
	if redis != nil {
		if redis != old {
			redis.Hold()
		}
		if charges {
			redis.Replicator.AttachCharged(c.source, every, redis.Strict.Charger(z.Name, strict.Rule(l.params())))
		} else {
			redis.Replicator.Attach(c.source, every)
		}
	}
	if old != nil && old != redis {
		old.Release()
	}
}

// detach ends the sync through a Redis, if that is where it goes.
func (c *Counters) detach(redis *Redis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached == redis {
		c.source.DetachFrom(redis.Replicator)
		c.attached = nil
		redis.Release()
	}
}

// sweepEvery starts the sweep, or changes its interval from the next one on.
func (c *Counters) sweepEvery(d time.Duration) {
	if c.sweep.Swap(int64(d)) != 0 {
		return
	}
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(time.Duration(c.sweep.Load())):
				c.upkeep.Sweep(clock.Now())
			}
		}
	}()
}

// Destruct sends the last counts and ends all work in the background.
func (c *Counters) Destruct() error {
	if c.sweep.Load() != 0 {
		close(c.stop)
		<-c.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source.Detach()
	if c.attached != nil {
		c.attached.Release()
		c.attached = nil
	}
	return nil
}

// save returns what outlives the process, and resume takes it in. It returns of how many keys a
// decision can still use it.
func (c *Counters) save() saved.Counts { return c.upkeep.Save(clock.Now()) }

func (l *Limit) resume(counts saved.Counts) int {
	return l.upkeep.Resume(l.params(), clock.Now(), counts)
}

// Totals returns sums over all keys.
func (c *Counters) Totals() table.Totals { return c.gauges.Totals(clock.Now()) }

// Overflow returns how many decisions were made for keys beyond max_keys, and the memory of their
// sketch.
func (c *Counters) Overflow() (decisions, bytes int64) {
	return c.gauges.Overflowed(), c.gauges.OverflowBytes()
}

// IsUnavailable reports whether what other nodes count of a key can't be had.
func (c *Counters) IsUnavailable(raw []byte) bool {
	lost := c.source.Lost()
	return lost != 0 && ratesync.LostFor(lost, table.IDOf(raw))
}

// Node returns the name of this node's part in what is synced.
func (c *Counters) Node() string { return c.source.Node() }

// Sync tells how far the sync has come, nil where nothing is synced.
func (c *Counters) Sync() *ratesync.SyncStatus { return c.source.Status() }

// state returns what metrics show.
func (c *Counters) state() metrics.ZoneState {
	s := metrics.ZoneState{Zone: c.zone, Keys: int64(c.gauges.Keys()), Sketch: c.gauges.Overflowing()}
	if sync := c.source.Status(); sync != nil {
		s.Syncs, s.Synced = true, sync.Synced
	}
	return s
}

// addTo adds what metrics show of a limit to the state of its counters. Nil, a limit that is not in
// the current configuration, adds nothing, and neither does one that comes with the request.
func (l *Limit) addTo(s metrics.ZoneState) metrics.ZoneState {
	if l == nil || l.Rate.From != "" {
		return s
	}
	s.Window, s.Requests = rates.WindowText(l.Rate.Window), l.Rate.Limit
	if k := l.Settings.Kind; k == algorithms.TokenBucket || k == algorithms.GCRA {
		s.Burst = l.enforced.Size
	}
	return s
}
