package ratelimit

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// What outlives a configuration belongs to the process: the counters, and the connections to Redis with their loops. Modules
// acquire it in Provision and release it in Cleanup; what nobody holds ends.
var (
	counterPool = caddy.NewUsagePool()
	redisPool   = caddy.NewUsagePool()
)

// counters is the table of one limit and its way to other nodes, whatever its algorithm.
type counters interface {
	caddy.Destructor
	// limiter decides by the parameters of a zone and one of its limits.
	limiter(s *settings.Zone, r rates.Rate) limiter
	// configure applies a configuration that has started: parameters for work in the background, and the Redis, nil for none.
	configure(s *settings.Zone, r rates.Rate, sweep time.Duration, shared *sharedRedis)
	// leave ends the exchange through a Redis, if that is where it goes.
	leave(shared *sharedRedis)
	// save and resume carry counts over a restart of the process. resume returns of how many keys they still matter.
	save() table.Saved
	resume(s *settings.Zone, r rates.Rate, saved table.Saved) int
	stats() table.Totals
	state() metrics.ZoneState
	overflowed() (decisions, bytes int64)
	// lost reports whether what other nodes count of a key can't be had.
	lost(raw []byte) bool
	// node is the name of this node's part in what is exchanged.
	node() string
	// exchange is nil where nothing is exchanged.
	exchange() *ratesync.ExchangeStatus
}

// limiter is one limit as a request sees it.
type limiter interface {
	take(key table.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken
	// max is the number of requests per window.
	max() int64
	giveBack(key table.Key, taken table.Taken, n int64)
	charge(key table.Key, taken table.Taken, n int64)
	// abandon frees the place in a queue of a client that went away while it waited.
	abandon(key table.Key, taken table.Taken, now, n int64)
	learn(key table.Key, raw []byte, now int64, all []algorithms.Report)
	// settle has Redis know what was decided for a key while it could not be asked.
	settle(ctx context.Context, key table.Key) error
	// room is what is left by this node's own counts. false means that the table is full and holds no place for the key.
	room(key table.Key, raw []byte, now int64) (left int64, ok bool)
}

// acquire returns the counters of one limit, new or those that a configuration already holds.
func acquire(namespace string, s *settings.Zone, r rates.Rate) (counters, string, error) {
	key := counterKey(namespace, s, r)
	c, _, err := counterPool.LoadOrNew(key, func() (caddy.Destructor, error) { return newCounters(s, r), nil })
	if err != nil {
		return nil, "", err
	}
	return c.(counters), key, nil
}

// counterKey says when counts go on after a reload: same namespace, zone, algorithm and window.
func counterKey(namespace string, s *settings.Zone, r rates.Rate) string {
	return strconv.Quote(namespace) + " " + strconv.Quote(s.Name) + " " + spec(s, r).Name()
}

// spec names a limit to other nodes.
func spec(s *settings.Zone, r rates.Rate) ratesync.Spec {
	p := ratesync.Spec{Zone: s.Name, Kind: s.Kind.Code(), Window: r.Window, Buckets: 1, Live: 1}
	switch s.Kind {
	case algorithms.FixedWindow:
		p.Live = 0
	case algorithms.SlidingWindow:
		p.Buckets, p.Live = s.Buckets, s.Buckets
	}
	return p
}

// ruleOf is a limit as Redis decides it.
func ruleOf(s *settings.Zone, r rates.Rate) strict.Rule {
	return strict.Rule{Kind: s.Kind.Code(), Limit: r.Limit, Window: r.Window, Buckets: s.Buckets, Burst: s.Burst, Queue: s.Queue}
}

// newCounters is the one place that knows which kind has which state.
func newCounters(s *settings.Zone, r rates.Rate) counters {
	switch k := s.Kind; {
	case k.Windowed():
		return hold[algorithms.WindowState](s, r)
	case k.Logged():
		return hold[algorithms.LogState](s, r)
	}
	return hold[algorithms.BucketState](s, r)
}

// held is counters of one state.
type held[S any] struct {
	zone   string
	table  *table.Table[S]
	source *ratesync.Source

	sweep atomic.Int64 // nanoseconds
	stop  chan struct{}
	done  chan struct{}

	mu       sync.Mutex
	attached *sharedRedis
}

func hold[S any](s *settings.Zone, r rates.Rate) counters {
	h := &held[S]{
		zone: s.Name, table: table.New(algorithms.MachineOf[S](s.Kind), s.MaxKeys),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	h.source = ratesync.NewSource(h.table, spec(s, r))
	return h
}

func (h *held[S]) limiter(s *settings.Zone, r rates.Rate) limiter {
	return &limit[S]{h.table, s.Params(r).Compile(), h.source}
}

func (h *held[S]) configure(s *settings.Zone, r rates.Rate, sweep time.Duration, shared *sharedRedis) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepEvery(sweep)
	every := time.Duration(s.SyncRate)
	switch {
	case s.SyncRate < 0 || shared == nil:
		every, shared = 0, nil
	case s.SyncRate == rates.Strict:
		every = strictCatchUp
	}
	charges := s.SyncRate == rates.Strict && !s.Kind.Windowed()
	old := h.attached
	if shared == nil && old != nil {
		h.source.Detach() // sends the last counts, which a table without a rate doesn't give out
	}
	h.table.Configure(table.SyncConfig{
		Params:  s.Params(r),
		Rate:    every,
		Early:   s.EarlySync && s.SyncRate != rates.Strict,
		CompensateLag: !s.Kind.Draining(),
		Charges: charges,
		Wake:    h.source.Wake,
	}, s.MaxKeys)
	h.attached = shared
	if shared != nil {
		if shared != old {
			shared.hold()
		}
		if charges {
			shared.replicator.AttachCharged(h.source, every, shared.strict.Charger(s.Name, ruleOf(s, r)))
		} else {
			shared.replicator.Attach(h.source, every)
		}
	}
	if old != nil && old != shared {
		old.release()
	}
}

func (h *held[S]) leave(shared *sharedRedis) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.attached == shared {
		h.source.DetachFrom(shared.replicator)
		h.attached = nil
		shared.release()
	}
}

// sweepEvery starts the sweep, or changes its interval from the next one on.
func (h *held[S]) sweepEvery(d time.Duration) {
	if h.sweep.Swap(int64(d)) != 0 {
		return
	}
	go func() {
		defer close(h.done)
		for {
			select {
			case <-h.stop:
				return
			case <-time.After(time.Duration(h.sweep.Load())):
				h.table.Sweep(clock.Now())
			}
		}
	}()
}

// Destruct sends the last counts and ends all work in the background.
func (h *held[S]) Destruct() error {
	if h.sweep.Load() != 0 {
		close(h.stop)
		<-h.done
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.source.Detach()
	if h.attached != nil {
		h.attached.release()
		h.attached = nil
	}
	return nil
}

func (h *held[S]) save() table.Saved { return h.table.Save(clock.Now()) }

func (h *held[S]) resume(s *settings.Zone, r rates.Rate, saved table.Saved) int {
	return h.table.Resume(s.Params(r), clock.Now(), saved)
}

func (h *held[S]) stats() table.Totals { return h.table.Totals(clock.Now()) }

func (h *held[S]) state() metrics.ZoneState {
	s := metrics.ZoneState{Zone: h.zone, Keys: int64(h.table.Keys()), Sketch: h.table.Overflowing()}
	if exchange := h.source.Status(); exchange != nil {
		s.Syncs, s.Synced = true, exchange.Synced
	}
	return s
}

func (h *held[S]) overflowed() (decisions, bytes int64) {
	return h.table.Overflowed(), h.table.OverflowBytes()
}

func (h *held[S]) lost(raw []byte) bool {
	lost := h.source.Lost()
	return lost != 0 && ratesync.LostFor(lost, table.IDOf(raw))
}

func (h *held[S]) node() string { return h.source.Node() }

func (h *held[S]) exchange() *ratesync.ExchangeStatus { return h.source.Status() }

// limit is a table with the limit of one configuration.
type limit[S any] struct {
	table  *table.Table[S]
	limit  algorithms.Limit
	source *ratesync.Source
}

func (l *limit[S]) take(key table.Key, raw []byte, now, n int64, want algorithms.Want) table.Taken {
	return l.table.Take(l.limit, key, raw, now, n, want)
}

func (l *limit[S]) max() int64 { return l.limit.N }

func (l *limit[S]) giveBack(key table.Key, taken table.Taken, n int64) {
	l.table.Refund(l.limit, key, taken, n)
}

func (l *limit[S]) charge(key table.Key, taken table.Taken, n int64) {
	l.table.Penalize(l.limit, key, taken, n)
}

func (l *limit[S]) learn(key table.Key, raw []byte, now int64, all []algorithms.Report) {
	l.table.Import(l.limit, key, raw, now, all)
}

func (l *limit[S]) settle(ctx context.Context, key table.Key) error { return l.source.ChargeNow(ctx, key) }
func (l *limit[S]) room(key table.Key, raw []byte, now int64) (left int64, ok bool) {
	return l.table.Room(l.limit, key, raw, now)
}

func (l *limit[S]) abandon(key table.Key, taken table.Taken, now, n int64) {
	l.table.Leave(l.limit, key, taken, now, n)
}

// strictCatchUp is how often a zone with sync_rate 0 sends what it had to count by itself while Redis was lost.
const strictCatchUp = time.Second

// sharedRedis is one Redis and namespace: a client, the background exchange, and the decisions of sync_rate 0.
type sharedRedis struct {
	key        string // in the pool, "" for a borrowed client
	namespace  string
	client     redis.UniversalClient
	replicator *ratesync.Replicator
	strict     *strict.Limiter
}

// hold and release count a user more and less. A borrowed client is its configuration's own.
func (s *sharedRedis) hold() {
	if s.key != "" {
		_, _, _ = redisPool.LoadOrNew(s.key, func() (caddy.Destructor, error) { return s, nil })
	}
}

func (s *sharedRedis) release() {
	if s.key != "" {
		_, _ = redisPool.Delete(s.key)
	}
}

// close ends the loops, within what the flush of the last tables has left of its two seconds.
func (s *sharedRedis) close() {
	s.strict.CloseBy(s.replicator.FlushEnds())
	s.replicator.Close()
}

// Destruct ends the loops and closes the connections.
func (s *sharedRedis) Destruct() error {
	s.close()
	return s.client.Close()
}

// processState is what metrics show of the process.
func processState() (zones []metrics.ZoneState, stores []metrics.RedisState) {
	counterPool.Range(func(_, v any) bool {
		zones = append(zones, v.(counters).state())
		return true
	})
	add := func(s *sharedRedis) {
		st, circuits := s.replicator.Status(), s.strict.Status()
		stores = append(stores, metrics.RedisState{
			Namespace: s.namespace, Up: st.Up, Syncs: st.Exchanges, Failures: st.Failures, Keys: st.Keys, FailedKeys: st.FailedKeys,
			CircuitsOpen: int64(circuits.Open), CircuitTrips: circuits.Trips, Timeouts: circuits.Timeouts,
		})
	}
	redisPool.Range(func(_, v any) bool {
		add(v.(*sharedRedis))
		return true
	})
	running.Lock()
	defer running.Unlock()
	for _, a := range running.apps {
		if a.shared != nil && a.shared.key == "" {
			add(a.shared)
		}
	}
	return zones, stores
}
