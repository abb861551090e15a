package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds what all rate_limit handlers of a configuration share. In a Caddyfile it is the global
// option rate_limit.
type App struct {
	// Redis is where nodes sync counts. Default: none; without it every node counts for itself.
	Redis *redisconn.Options `json:"redis,omitempty"`

	// Regions are data centers with a Redis each, in place of redis. Default: none.
	Regions *Regions `json:"regions,omitempty"`

	// SyncRate is the sync_rate of all zones. Default: 1s where Redis is configured, else local.
	SyncRate *config.SyncRate `json:"sync_rate,omitempty"`

	// Namespace separates users of one Redis: nodes with the same one share counters. It may hold
	// {env.*}. Range: printable ASCII without braces. Default: caddy.
	Namespace string `json:"namespace,omitempty"`

	// StrictTimeout is how long a call of a strict zone waits for an answer, once it has a
	// connection. Range: 1ms to 1m. Default: 100ms.
	StrictTimeout caddy.Duration `json:"strict_timeout,omitempty"`

	// Persist keeps the counters of zones that don't sync, and changes at run time, over a
	// restart, in Caddy's storage or a file. It may hold {env.*}. Range: "off", "on" or "storage",
	// or a path. Default: off.
	Persist string `json:"persist,omitempty"`

	// Quiet are the codes of warnings that are not logged: any, except those of something broken.
	// Default: none.
	Quiet []string `json:"quiet,omitempty"`

	ctx        caddy.Context
	logger     *zap.Logger
	namespace  string
	redisEmpty bool
	shared     *limits.Redis // nil for none
	config     *lifecycle.Config

	mu       sync.Mutex
	warned   warning.Once
	handlers int
	registry config.Registry
	units    map[string]bool   // names of zones in which a request may cost more than one
	http     *caddyhttp.App    // nil before it has a handler
	advised  []*config.Advised // before advice is given
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "rate_limit", New: func() caddy.Module { return new(App) }}
}

// UnmarshalJSON reads the app, strictly as well.
func (a *App) UnmarshalJSON(text []byte) error {
	type app App
	return config.ExplainJSON(caddy.StrictUnmarshalJSON(text, (*app)(a)), map[reflect.Type]string{
		reflect.TypeFor[redisconn.Options](): redisShape, reflect.TypeFor[*redisconn.Options](): redisShape,
	})
}

const redisShape = `write an object, like {"url": "redis://localhost:6379/0"}`

// Provision prepares the connection to Redis and doesn't use it: caddy validate comes here as well.
func (a *App) Provision(ctx caddy.Context) error {
	a.warned.Quiet = a.Quiet
	a.ctx, a.logger, a.registry, a.units = ctx, ctx.Logger(), config.Registry{}, map[string]bool{}
	if a.StrictTimeout == 0 {
		a.StrictTimeout = caddy.Duration(100 * time.Millisecond)
	}
	if err := a.provisionRedis(ctx); err != nil {
		return err
	}
	keeper, err := lifecycle.OpenKeeper(a.Persist, ctx.Storage())
	if err != nil {
		return err
	}
	a.config = &lifecycle.Config{
		Logger: a.logger, Redis: a.shared, StrictTimeout: time.Duration(a.StrictTimeout), Keeper: keeper, Namespace: a.apart(), Once: &a.warned,
	}
	if err := a.check(a.globals()); err != nil {
		return &jsonError{inWordsOfJSON(err.Error()), err}
	}
	return metrics.Register(ctx.GetMetricsRegistry(), lifecycle.Collect)
}

// globals returns what the options mean for handlers.
func (a *App) globals() globals {
	return globals{a.SyncRate, a.shared != nil, a.Regions != nil, a.redisEmpty, a.config.Keeper != nil}
}

// globalsAsWritten returns what the options mean, as far as it shows before placeholders have
// values.
func (a *App) globalsAsWritten() globals {
	g := globals{syncRate: a.SyncRate, hasRedis: a.Regions != nil, hasRegions: a.Regions != nil}
	if a.Redis != nil {
		_, g.redisEmpty, _ = a.Redis.ResolveAsWritten() // its error is reported at the redis option
		g.hasRedis = !g.redisEmpty
	}
	return g
}

// check reports what is wrong with the global options except Redis and its namespace.
func (a *App) check(g globals) error {
	if err := g.checkInherited(a.SyncRate); err != nil {
		return err
	}
	if t := time.Duration(a.StrictTimeout); t != 0 && (t < time.Millisecond || t > time.Minute) {
		return wrongf("strict_timeout", "%s is not between 1ms and 1m; write 100ms", config.WindowText(t))
	}
	for _, code := range a.Quiet {
		if err := warning.CanBeQuiet(code); err != nil {
			return wrong("quiet", err)
		}
	}
	return nil
}

// apart is what counters go by beside their zone: nothing where they go through Redis, so that a
// reload to another namespace keeps them.
func (a *App) apart() string {
	if a.shared != nil || a.Namespace == "" {
		return ""
	}
	return a.namespace
}

func (a *App) provisionRedis(ctx caddy.Context) error {
	repl := caddy.NewReplacer()
	namespace, err := repl.ReplaceOrErr(a.Namespace, true, true)
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	a.namespace = cmp.Or(namespace, redisconn.DefaultNamespace)
	if err = redisconn.CheckNamespace(a.namespace); err != nil || a.Redis == nil && a.Regions == nil {
		return err
	}
	if err := a.Regions.check(a.Redis, repl); err != nil {
		return fmt.Errorf("regions: %w", err)
	}
	o := limits.RedisOptions{
		Namespace: a.namespace, Timeout: redisconn.DefaultTimeout, StrictTimeout: time.Duration(a.StrictTimeout),
		Logger: caddy.Log().Named("rate_limit"),
	}
	if a.Regions != nil {
		a.shared, err = a.Regions.open(o, repl)
		return err
	}
	if a.Redis.Storage {
		client, err := redisconn.BorrowClient(ctx.Storage())
		if err != nil {
			return fmt.Errorf("redis: %w", err)
		}
		a.shared = limits.BorrowRedis(client, o)
		return nil
	}
	set, err := a.Redis.Resolve(repl)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if set == nil {
		a.redisEmpty = true
		if !a.Redis.IsOff(repl) {
			a.warned.Warn(a.logger, warning.NoRedis, "redis is configured, but its address is empty: every node counts for itself; set the variable that the address comes from, or write `redis off`, or {$REDIS_URL:off} for a variable that may be unset")
		}
		return nil
	}
	o.Timeout = set.Timeout
	a.shared, err = limits.OpenRedis(set.Key(), o, func() (redis.UniversalClient, error) { return redisconn.NewClient(set) })
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// nextHandler names a handler for messages, by the order in which they are provisioned.
func (a *App) nextHandler() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers++
	return fmt.Sprintf("rate_limit handler %d", a.handlers)
}

// use notes a zone of a handler, for Start.
func (a *App) use(z *limits.Zone, where string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.registry.Add(z.Settings, where); err != nil {
		return err
	}
	a.config.Add(z)
	if a.units[z.Name] = a.units[z.Name] || z.CountsUnits(); !a.units[z.Name] {
		return nil
	}
	for one := range a.config.Zones { // which one name may have in several handlers
		if one.Name == z.Name && one.ByDefault {
			one.HideIETF()
		}
	}
	return nil
}

// adviseOn notes a handler that there may be advice about once all others are loaded.
func (a *App) adviseOn(ctx caddy.Context, h *config.Advised) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advised = append(a.advised, h)
	if app, ok := ctx.Modules()[0].(*caddyhttp.App); ok {
		a.http = app
	}
}

// advise logs what is probably not meant, once.
func (a *App) advise() {
	a.mu.Lock()
	defer a.mu.Unlock()
	config.Advise(a.http, a.advised)
	if a.http != nil && len(a.advised) > 0 {
		operate.WarnUnreached(a.http)
	}
	a.advised = nil
}

// Start puts this configuration in line.
func (a *App) Start() error {
	a.advise()
	if a.handlers == 0 {
		a.warned.Warn(a.logger, warning.NoZone, "no site has rate_limit, so nothing is limited, whatever the global options say; write it into a site, or import the snippet that has it")
	}
	a.config.Start()
	return nil
}

// Stop ends what Start began, and gives way to the configuration that comes after.
func (a *App) Stop() error {
	a.config.Stop()
	return nil
}

// Cleanup saves what was counted last and gives up the connection. A configuration that is only
// validated never starts: its advice comes here.
func (a *App) Cleanup() error {
	a.advise()
	if a.config != nil {
		a.config.Close()
	}
	if a.shared != nil {
		a.shared.Release()
		a.shared = nil
	}
	return nil
}

// Regions are data centers with a Redis each. Nodes sync with that of their own, and one node of
// each region reads what those of the others have counted.
type Regions struct {
	// Here is the region of this node. It may hold {env.*}, so that one configuration serves all.
	// Default: none; required.
	Here string `json:"here,omitempty"`

	// Redis are the Redis of 2 to 16 regions, by their names: 1 to 16 lower-case letters, digits
	// and hyphens. Default: none; required.
	Redis map[string]*redisconn.Options `json:"redis,omitempty"`

	// SyncRate is how often what has changed in other regions is read, 100ms to 1m. Default: 100ms.
	SyncRate caddy.Duration `json:"sync_rate,omitempty"`

	// OnLoss is the rule while another region is lost: each side enforces the whole limit, or its
	// part. Range: local or divide. Default: local.
	OnLoss string `json:"on_loss,omitempty"`
}

const (
	maxRegions     = 16
	minRegionRate  = 100 * time.Millisecond
	maxRegionRate  = time.Minute
	regionTimeout  = 3 * time.Second
	defaultRegions = caddy.Duration(minRegionRate)
	divide         = "divide"
)

var regionName = regexp.MustCompile(`^[a-z0-9-]{1,16}$`)

// check reports what is wrong with the regions. Where repl is nil, placeholders have no value yet.
func (r *Regions) check(one *redisconn.Options, repl *caddy.Replacer) error {
	if r == nil {
		return nil
	}
	if one != nil {
		return errors.New("redis is given beside them; remove it: each region has its own Redis, as `region eu redis://redis.eu.example.com:6379`")
	}
	if len(r.Redis) < 2 || len(r.Redis) > maxRegions {
		return fmt.Errorf("there are %d; write 2 to %d, each as `region eu redis://redis.eu.example.com:6379`", len(r.Redis), maxRegions)
	}
	all := make(map[string]*redisconn.Settings, len(r.Redis))
	for _, name := range slices.Sorted(maps.Keys(r.Redis)) {
		set, err := checkRegion(name, r.Redis[name])
		if err != nil {
			return err
		}
		all[name] = set
	}
	if err := checkApart(all); err != nil {
		return err
	}
	if d := time.Duration(r.SyncRate); d != 0 && (d < minRegionRate || d > maxRegionRate) {
		return fmt.Errorf("sync_rate %s is not between 100ms and 1m; write 100ms", config.WindowText(d))
	}
	if _, err := config.ChooseName[int](r.OnLoss, []string{"local", divide}); err != nil {
		return fmt.Errorf("on_loss: %w", err)
	}
	here := r.Here
	if repl == nil && strings.Contains(here, "{") {
		return nil
	}
	if repl != nil {
		var err error
		if here, err = repl.ReplaceOrErr(here, true, true); err != nil {
			return fmt.Errorf("here: %w", err)
		}
	}
	if r.Redis[here] == nil {
		return fmt.Errorf("here: unknown region %q; write one of %s", spelling.Clip(here), strings.Join(slices.Sorted(maps.Keys(r.Redis)), ", "))
	}
	return nil
}

// checkRegion reports what is wrong with one of the regions, and returns its Redis, nil where that
// is not known yet.
func checkRegion(name string, o *redisconn.Options) (*redisconn.Settings, error) {
	switch {
	case !regionName.MatchString(name):
		return nil, fmt.Errorf("region %q: write lower-case letters, digits and hyphens, 16 at most, like eu", spelling.Clip(name))
	case o == nil:
		return nil, fmt.Errorf("region %s: it has no address; write a URL, like redis://redis.%s.example.com:6379", name, name)
	case o.Storage:
		return nil, fmt.Errorf("region %s: storage is the Redis of one region; write a URL, like redis://redis.%s.example.com:6379", name, name)
	}
	set, empty, err := o.ResolveAsWritten()
	if err != nil || empty {
		return nil, fmt.Errorf("region %s: %w", name, cmp.Or(err, errNoAddress))
	}
	return set, nil
}

// checkApart reports two regions with one Redis: what one counts would pass for the other's, and
// count twice.
func checkApart(all map[string]*redisconn.Settings) error {
	of := make(map[string]string, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] == nil {
			continue
		}
		redis := all[name].String()
		if other := of[redis]; other != "" {
			return fmt.Errorf("regions %s and %s have the same Redis, %s; write that of each region", other, name, redis)
		}
		of[redis] = name
	}
	return nil
}

var errNoAddress = errors.New("its address is empty; write a URL, like redis://redis.eu.example.com:6379, or set the variable that it comes from")

// open returns the Redis of this region, with the ways to the others. It does no network I/O.
func (r *Regions) open(o limits.RedisOptions, repl *caddy.Replacer) (*limits.Redis, error) {
	here := repl.ReplaceAll(r.Here, "")
	all := make(map[string]*redisconn.Settings, len(r.Redis))
	var key strings.Builder
	fmt.Fprintf(&key, " %s %s %s", here, time.Duration(r.SyncRate), r.OnLoss)
	for _, name := range slices.Sorted(maps.Keys(r.Redis)) {
		set, err := r.Redis[name].Resolve(repl)
		if err != nil || set == nil {
			return nil, fmt.Errorf("regions: region %s: %w", name, cmp.Or(err, errNoAddress))
		}
		if name != here && set.Timeout == redisconn.DefaultTimeout {
			set.Timeout = regionTimeout
		}
		all[name] = set
		fmt.Fprintf(&key, " %s %s", name, set.Key())
	}
	if err := checkApart(all); err != nil {
		return nil, fmt.Errorf("regions: %w", err)
	}
	o.Timeout, o.RegionsKey = all[here].Timeout, key.String()
	o.Regions = func() (ratesync.Regions, error) {
		regions := ratesync.Regions{Here: here, Interval: time.Duration(cmp.Or(r.SyncRate, defaultRegions)), Divides: r.OnLoss == divide, Others: map[string]redis.UniversalClient{}}
		for name, set := range all {
			if name == here {
				continue
			}
			client, err := redisconn.NewClient(set)
			if err != nil {
				return regions, fmt.Errorf("regions: region %s: %w", name, err)
			}
			regions.Others[name] = client
		}
		return regions, nil
	}
	shared, err := limits.OpenRedis(all[here].Key(), o, func() (redis.UniversalClient, error) { return redisconn.NewClient(all[here]) })
	if err != nil {
		return nil, fmt.Errorf("regions: region %s: %w", here, err)
	}
	return shared, nil
}

// Interface guards
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
