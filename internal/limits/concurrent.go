// The option concurrent of a zone: the gauges of what runs, which outlive configurations and the
// requests that they count. See slotlimit.go for one zone's limit on them.
//
// One lock is held over I/O, that of attach and detach, for which no request waits.

package limits

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Slots are what runs of the requests of zones of one name. They are safe for concurrent use.
type Slots struct {
	Table  *gauge.Table
	Syncer *ratesync.SlotSyncer
	// Names are the texts of keys that somebody wants to read.
	Names KeyNames
	// Denied are the keys that zones have denied most.
	Denied DeniedKeys

	zone  string
	users atomic.Int64 // handlers of configurations, written under slotPool's lock

	// mu makes Configure, Detach and end take turns. It is held while the last gauges are sent, and
	// nothing else takes it.
	mu       sync.Mutex
	attached *Redis
	sweep    *time.Ticker // nil before the first Configure
	stop     chan struct{}
	done     chan struct{} // closed when the sweep has ended
}

// slotPool has the slots of the process, by zone: what runs is the same in every namespace and with
// every Redis.
var slotPool = struct {
	sync.Mutex
	of map[string]*Slots
}{of: map[string]*Slots{}}

// AcquireSlots returns the slots of a zone: new ones, or those that a configuration already holds,
// or that requests under way do.
func AcquireSlots(zone string, maxKeys int) *Slots {
	slotPool.Lock()
	defer slotPool.Unlock()
	s := slotPool.of[zone]
	if s == nil {
		t := gauge.New(maxKeys)
		s = &Slots{Table: t, Syncer: ratesync.NewSlotSyncer(t, zone), zone: zone}
		slotPool.of[zone] = s
	}
	s.users.Add(1)
	return s
}

// Release gives the slots up. Where requests are under way that nobody limits any more they are
// kept, for a configuration that does again.
func (s *Slots) Release() {
	slotPool.Lock()
	last := s.users.Add(-1) == 0
	slotPool.Unlock()
	if last {
		s.end()
	}
	slotPool.Lock()
	defer slotPool.Unlock()
	for zone, s := range slotPool.of {
		if s.users.Load() == 0 && s.Table.InUse() == 0 {
			delete(slotPool.of, zone)
		}
	}
}

// EachSlots calls f with all slots of the pool. f must not acquire or release any.
func EachSlots(f func(*Slots)) {
	slotPool.Lock()
	defer slotPool.Unlock()
	for _, s := range slotPool.of {
		f(s)
	}
}

// Configure applies a configuration that has become the current one: the time between two sweeps,
// and the Redis, nil for none.
func (l *SlotLimit) Configure(sweep time.Duration, redis *Redis) {
	s, z := l.Slots, l.Settings
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepEvery(sweep)
	every := time.Duration(z.SyncRate)
	switch {
	case z.SyncRate < 0:
		redis = nil
	case z.SyncRate == config.Strict:
		every = strictInterval
	}
	old := s.attached
	if redis == nil && old != nil {
		s.Syncer.Detach()
	}
	s.Table.Configure(gauge.Config{
		Shared: redis != nil, Early: z.EarlySync && z.SyncRate != config.Strict, Strict: z.SyncRate == config.Strict,
		Nodes: s.Syncer.Nodes, Waker: s.Syncer.Waker,
	}, z.MaxKeys)
	if s.attached = redis; redis != nil {
		if redis != old {
			redis.Hold()
		}
		redis.Slots.Attach(s.Syncer, every)
	}
	if old != nil && old != redis {
		old.Release()
	}
}

// Detach ends the sync through a Redis, if that is where it goes.
func (s *Slots) Detach(redis *Redis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached == redis {
		s.detach()
	}
}

// detach ends the sync.
func (s *Slots) detach() {
	s.Syncer.Detach()
	if s.attached != nil {
		s.attached.Release()
		s.attached = nil
	}
}

// sweepEvery starts the sweep, or changes its interval.
func (s *Slots) sweepEvery(d time.Duration) {
	if s.sweep != nil {
		s.sweep.Reset(d)
		return
	}
	s.sweep, s.stop, s.done = time.NewTicker(d), make(chan struct{}), make(chan struct{})
	go func(tick <-chan time.Time, stop, done chan struct{}) {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-tick:
				s.Table.Sweep(clock.Now())
			}
		}
	}(s.sweep.C, s.stop, s.done)
}

// end says what has changed, and ends all work in the background.
func (s *Slots) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	slotPool.Lock()
	users := s.users.Load()
	slotPool.Unlock()
	if users > 0 {
		return // acquired again
	}
	if s.sweep != nil {
		s.sweep.Stop()
		close(s.stop)
		<-s.done
		s.sweep = nil
	}
	s.detach()
}

// Zone is the zone of the slots.
func (s *Slots) Zone() string { return s.zone }

// EachSpend calls f with the slots of each key. f must be quick: requests of a few keys wait for
// it.
func (s *Slots) EachSpend(f func(table.Spend)) {
	s.Table.Each(clock.Now(), func(g gauge.Gauge) {
		f(table.Spend{Key: g.Key, ID: g.ID, Used: g.Own + g.Others})
	})
}
