package ratelimit

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/redisconfig"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/snapshot"
	"github.com/caddy-tide/ratelimit/internal/warning"
	"github.com/caddy-tide/ratelimit/internal/zonename"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds what all rate_limit handlers of a configuration share. In a Caddyfile it is the global
// option rate_limit.
type App struct {
	// Redis is where nodes sync counts. Default: none; every node counts for itself.
	Redis *Redis `json:"redis,omitempty"`

	// SyncRate is the sync_rate of all zones: "local" or -1 never syncs, "strict" or 0 asks Redis on
	// every request; else the interval, as a duration string or a number of seconds, 20ms to ten
	// years. Default: 1s where Redis is configured, else -1.
	SyncRate *SyncRate `json:"sync_rate,omitempty"`

	// Namespace separates users of one Redis: nodes with the same Redis and namespace share counters.
	// It is printable ASCII without braces, and may hold {env.*}. Default: caddy.
	Namespace string `json:"namespace,omitempty"`

	// StrictTimeout is how long Redis has to answer a call for a zone with sync_rate 0, from when the
	// call has a connection. A request waits for the call that it is part of. 1ms to 1m.
	// Default: 100ms.
	StrictTimeout caddy.Duration `json:"strict_timeout,omitempty"`

	// Persist keeps the counters of zones that don't sync over a restart of the process: "storage" in
	// Caddy's storage, else in the file of that path, which may hold {env.*}. Default: none.
	Persist string `json:"persist,omitempty"`

	ctx        caddy.Context
	logger     *zap.Logger
	namespace  string
	redisEmpty bool
	shared     *sharedRedis

	keeper  *snapshot.Keeper // nil for none
	unsaved bool             // it was reported at load that counters can't be saved
	ending  bool             // stopped, and no other configuration came after it
	kept    int64            // admitted by the zones that don't sync, when that was saved last

	mu       sync.Mutex
	said     warning.Once
	handlers int
	registry settings.Registry
	limits   []appLimit
	zones    []*zone
	stop     chan struct{}
	done     chan struct{}
}

// appLimit is one limit of a zone that the configuration uses.
type appLimit struct {
	counters counters
	key      string // in the pool
	settings settings.Zone
	rate     rates.Rate
	sweep    time.Duration
}

// Redis says how to reach Redis.
type Redis = redisconfig.Options

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "rate_limit", New: func() caddy.Module { return new(App) }}
}

// Provision prepares the connection to Redis and doesn't use it: caddy validate comes here as well.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.logger, a.registry = ctx, ctx.Logger(), settings.Registry{}
	if a.StrictTimeout == 0 {
		a.StrictTimeout = caddy.Duration(100 * time.Millisecond)
	}
	if err := a.provisionRedis(ctx); err != nil {
		return err
	}
	var err error
	if a.keeper, err = snapshot.Open(a.Persist, ctx.Storage()); err != nil {
		return err
	}
	a.checkKeeper()
	if err := a.check(a.globals()); err != nil {
		return err
	}
	return metrics.Register(ctx.GetMetricsRegistry(), processState)
}

// globals returns what the options mean for handlers.
func (a *App) globals() globals { return globals{a.SyncRate, a.shared != nil, a.redisEmpty} }

// check reports what is wrong with the global options except Redis and its namespace.
func (a *App) check(g globals) error {
	if err := g.checkInherited(a.SyncRate); err != nil {
		return err
	}
	if t := time.Duration(a.StrictTimeout); t != 0 && (t < time.Millisecond || t > time.Minute) {
		return wrongf("strict_timeout", "%s is not between 1ms and 1m; write 100ms", rates.WindowText(t))
	}
	return nil
}

func (a *App) provisionRedis(ctx caddy.Context) error {
	repl := caddy.NewReplacer()
	namespace, err := repl.ReplaceOrErr(a.Namespace, true, true)
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	var prefix string
	if a.Redis != nil {
		if prefix, err = repl.ReplaceOrErr(a.Redis.KeyPrefix, true, true); err != nil {
			return fmt.Errorf("redis: key_prefix: %w", err)
		}
	}
	if a.namespace, err = redisconfig.Namespace(namespace, prefix); err != nil || a.Redis == nil {
		return err
	}
	if a.Redis.Storage {
		return a.borrowRedis(ctx)
	}
	set, err := a.Redis.Resolve(repl)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if set == nil {
		a.redisEmpty = true
		if !a.Redis.IsOff(repl) {
			a.said.Warn(a.logger, warning.NoRedis, "redis is configured, but its address is empty: every node counts for itself; set the variable that the address comes from, or write `redis off`, or {$REDIS_URL:off} for a variable that may be unset")
		}
		return nil
	}
	key := set.Key() + " " + a.namespace
	v, _, err := redisPool.LoadOrNew(key, func() (caddy.Destructor, error) {
		client, err := redisconfig.NewClient(set)
		if err != nil {
			return nil, err
		}
		return a.shareRedis(key, client, set.Timeout), nil
	})
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	a.shared = v.(*sharedRedis)
	return nil
}

func (a *App) borrowRedis(ctx caddy.Context) error {
	client, err := redisconfig.BorrowClient(ctx.Storage())
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	a.shared = a.shareRedis("", client, redisconn.DefaultTimeout)
	return nil
}

func (a *App) shareRedis(key string, client redis.UniversalClient, timeout time.Duration) *sharedRedis {
	return &sharedRedis{
		key: key, namespace: a.namespace, client: client,
		replicator: ratesync.NewReplicator(client, a.namespace, timeout, clock.Now, caddy.Log().Named("rate_limit")),
		strict:     strict.New(client, a.namespace, time.Duration(a.StrictTimeout)),
	}
}

// nextHandler names a handler for messages, by the order in which they are provisioned.
func (a *App) nextHandler() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers++
	return fmt.Sprintf("rate_limit handler %d", a.handlers)
}

// use notes a zone and its counters, for Start.
func (a *App) use(z *zone, where string, sweep time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.registry.Add(z.Zone, where); err != nil {
		return err
	}
	a.zones = append(a.zones, z)
	for i, r := range z.Limits {
		a.limits = append(a.limits, appLimit{z.counters[i], counterKey(a.namespace, &z.Zone, r), z.Zone, r, sweep})
	}
	return nil
}

// running are the configurations that have started and not ended, oldest first. The first one has its way.
var running struct {
	sync.Mutex
	apps []*App
}

// inForce is the one that has its way, nil for none. Requests look here: a reload that holds the lock above may be waiting for Redis.
var inForce atomic.Pointer[App]

// Start puts this configuration in line. It has its way at once if it is the first one, and otherwise when the one before stops: until then another
// app may still fail to start, and then nothing must have changed.
func (a *App) Start() error {
	running.Lock()
	defer running.Unlock()
	running.apps = append(running.apps, a)
	if len(running.apps) == 1 {
		inForce.Store(a)
		a.apply()
		if a.keeper != nil {
			a.restore()
		}
	}
	clock.CatchUp()
	a.stop, a.done = make(chan struct{}), make(chan struct{})
	go a.summaries()
	return nil
}

// takeOver brings counters along that go by another name now, and logs which zones of the configuration before go on without.
func (a *App) takeOver(before *App) {
	had, now := before.byZone(), a.byZone()
	for name, limits := range now {
		old := had[name]
		if old == nil {
			old = renamed(name, had, now)
			for key, l := range limits {
				if from := old[key]; from != nil {
					l.counters.resume(&l.settings, l.rate, from.counters.save())
				}
			}
			continue
		}
		for key, l := range limits {
			from, same := old[key]
			strict := l.settings.SyncRate == rates.Strict
			if same && from.counters != l.counters {
				l.counters.resume(&l.settings, l.rate, from.counters.save()) // the namespace has changed
			}
			switch {
			case !same:
				a.logger.Info("a zone's algorithm, window or buckets have changed: this limit counts anew",
					zap.String("zone", name), zap.Stringer("algorithm", l.settings.Kind), zap.Stringer("limit", l.rate))
			case strict != (from.settings.SyncRate == rates.Strict) && !l.settings.Kind.Windowed():
				a.logger.Info("a zone's sync_rate has changed from or to 0: with this algorithm redis and the nodes keep separate counts, so this limit counts anew",
					zap.String("zone", name), zap.Stringer("algorithm", l.settings.Kind), zap.Stringer("limit", l.rate))
			}
		}
	}
}

// byZone gives the limits by zone and by window.
func (a *App) byZone() map[string]map[string]*appLimit {
	zones := make(map[string]map[string]*appLimit)
	for i := range a.limits {
		l := &a.limits[i]
		if zones[l.settings.Name] == nil {
			zones[l.settings.Name] = make(map[string]*appLimit)
		}
		zones[l.settings.Name][spec(&l.settings, l.rate).Name()] = l
	}
	return zones
}

// renamed finds what an unnamed zone was called before its numbers changed, if there is no doubt.
func renamed(name string, had, now map[string]map[string]*appLimit) (old map[string]*appLimit) {
	shape := zonename.Shape(name)
	if shape == "" {
		return nil
	}
	for other := range now {
		if other != name && had[other] == nil && zonename.Shape(other) == shape {
			return nil
		}
	}
	for other, limits := range had {
		if now[other] == nil && zonename.Shape(other) == shape {
			if old != nil {
				return nil
			}
			old = limits
		}
	}
	return old
}

func (a *App) apply() {
	if a.shared != nil {
		a.shared.replicator.Start()
		a.shared.strict.SetTimeout(time.Duration(a.StrictTimeout))
	}
	for i := range a.limits {
		l := &a.limits[i]
		l.counters.configure(&l.settings, l.rate, l.sweep, a.shared)
	}
}

// summaries writes what the logs of the zones hold back, once a minute, and looks each second whether the machine was asleep.
func (a *App) summaries() {
	defer close(a.done)
	minute, second := time.NewTicker(time.Minute), time.NewTicker(time.Second)
	defer minute.Stop()
	defer second.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-second.C:
			clock.CatchUp()
		case <-minute.C:
			for _, z := range a.zones {
				z.log.Tick(clock.Now())
			}
		}
	}
}

// Stop ends what Start began, and gives way to the configuration that comes after.
func (a *App) Stop() error {
	running.Lock()
	defer running.Unlock()
	i := slices.Index(running.apps, a)
	if i < 0 {
		return nil
	}
	running.apps = slices.Delete(running.apps, i, i+1)
	if i == 0 {
		inForce.Store(nil)
		if len(running.apps) > 0 {
			inForce.Store(running.apps[0])
		}
	}
	close(a.stop)
	<-a.done
	switch {
	case len(running.apps) == 0 && a.keeper != nil:
		a.ending = true
		a.save()
	case i == 0 && len(running.apps) > 0:
		next := running.apps[0]
		next.takeOver(a)
		next.apply()
	}
	if a.shared != nil && a.shared.key == "" {
		for i := range a.limits {
			a.limits[i].counters.leave(a.shared)
		}
		a.shared.close()
	}
	return nil
}

// Cleanup lets go of the connection.
func (a *App) Cleanup() error {
	if a.ending {
		a.saveLast()
	}
	if a.shared != nil {
		a.shared.release()
		a.shared = nil
	}
	return nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
