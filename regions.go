package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/hostport"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Regions are data centers with a Redis each. Nodes sync with that of their own, and one node of
// each region reads what those of the others have counted.
type Regions struct {
	// Here is the name of the region that this node is in. It may hold {env.*}, so that one
	// configuration serves all. Default: none; required.
	Here string `json:"here,omitempty"`

	// Redis are the Redis of all regions, by their names: lower-case letters, digits and hyphens, 1
	// to 16 of them. There are 2 to 16 regions. Default: none; required.
	Redis map[string]*redisconn.Options `json:"redis,omitempty"`

	// SyncRate is how often what has changed in other regions is read, 100ms to 1m. Default: 100ms.
	SyncRate caddy.Duration `json:"sync_rate,omitempty"`

	// OnLoss is the rule while another region is lost: each side enforces the whole limit, or its
	// part, as one of 2 of 6 regions a third. Range: local or divide. Default: local.
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
	case o.KeyPrefix != "":
		return nil, fmt.Errorf("region %s: all regions have one namespace; remove key_prefix, and write `namespace %s` beside regions", name, spelling.Clip(o.KeyPrefix))
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

// isOpen reports whether a Redis is reached without TLS, and not on this machine.
func isOpen(s *redisconn.Settings) bool {
	return !s.TLS.Enabled && slices.ContainsFunc(s.Addresses, func(address string) bool {
		host := hostport.Host(address)
		ip, _ := netip.ParseAddr(host)
		return !ip.IsLoopback() && host != "localhost" && !strings.HasPrefix(host, "/")
	})
}

// open returns the Redis of this region, with the ways to the others. It does no network I/O.
func (r *Regions) open(o limits.RedisOptions, repl *caddy.Replacer, warn func(code, text string)) (*limits.Redis, error) {
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
		if name != here && isOpen(set) {
			warn(warning.RegionWithoutTLS, fmt.Sprintf("regions: the redis of region %s is reached without TLS; write rediss:// in its URL, or tls_enabled", name))
		}
		all[name] = set
		fmt.Fprintf(&key, " %s %s", name, set.Key())
	}
	if err := checkApart(all); err != nil {
		return nil, fmt.Errorf("regions: %w", err)
	}
	o.Timeout, o.RegionsKey = all[here].Timeout, key.String()
	o.Regions = func() (ratesync.Regions, error) {
		regions := ratesync.Regions{Here: here, Rate: time.Duration(cmp.Or(r.SyncRate, defaultRegions)), Divides: r.OnLoss == divide, Others: map[string]redis.UniversalClient{}}
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
