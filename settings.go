package ratelimit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	defaultSyncRate = config.SyncRate(time.Second)
	defaultMaxKeys  = 1_000_000
	maxMaxKeys      = 1_000_000_000
	maxSubWindows   = 31
	maxConcurrent   = 1_000_000_000

	defaultDistributedInterval = caddy.Duration(5 * time.Second) // the older plugin's
)

var errStorage = errors.New("counts are synced through Redis, not through Caddy's storage; remove storage, and " + redisMend)

// globals are what the global options mean for a handler.
type globals struct {
	syncRate *config.SyncRate // nil for the default
	hasRedis bool
	// hasRegions is set where the zones count over several regions.
	hasRegions bool
	// redisEmpty is set where Redis was asked for by a value that came out empty, such as an
	// environment variable that is not set. An inherited sync_rate then falls to local, without an
	// error.
	redisEmpty bool
	// persists is set where what local zones have counted outlives the process.
	persists bool
}

// checkInherited reports what is wrong with a sync rate that zones inherit, if one is given.
func (g globals) checkInherited(s *config.SyncRate) error {
	return checkSyncRate(s, g.hasRedis || g.redisEmpty)
}

// checkSyncRate reports what is wrong with a sync rate, if one is given.
func checkSyncRate(s *config.SyncRate, hasRedis bool) error {
	if s == nil {
		return nil
	}
	if err := s.Check(); err != nil {
		return wrong("sync_rate", err)
	}
	if *s >= 0 && !hasRedis {
		return wrongf("sync_rate", "%s needs Redis, and none is configured; %s, or write `sync_rate local`", s, redisMend)
	}
	return nil
}

// settings returns the zones with everything inherited, defaulted and checked, by name, and
// warnings for the log.
func (h *Handler) settings(g globals) (all []config.Settings, found []warning.Warning, err error) {
	if err := cmp.Or(g.checkInherited(g.syncRate), h.check(g)); err != nil {
		return nil, nil, err
	}
	if len(h.RateLimits) == 0 {
		return nil, []warning.Warning{{Code: warning.NoZone, Text: strings.TrimSuffix("there is no zone, so nothing is limited; write one into rate_limits, at "+h.path, ", at ")}}, nil
	}
	found = h.messageSlips()
	for _, name := range slices.Sorted(maps.Keys(h.RateLimits)) {
		s, warned, err := h.zoneSettings(name, h.RateLimits[name], g)
		if err != nil {
			return nil, nil, err
		}
		all, found = append(all, s), append(found, warned...)
	}
	return all, found, nil
}

// zoneSettings returns those of one zone. An unnamed zone's name is "".
func (h *Handler) zoneSettings(name string, z *Zone, g globals) (config.Settings, []warning.Warning, error) {
	s, found, err := z.settings(h.inheritedSyncRate(g), g)
	if err != nil && name != "" {
		err = &zoneError{name, err}
	}
	if err != nil {
		return config.Settings{}, nil, err
	}
	s.Name = name
	place := cmp.Or(z.Source, strings.TrimPrefix(h.path+", "+zonePath(name), ", "))
	for i := range found {
		found[i].Text = fmt.Sprintf("zone %q: %s, at %s", spelling.Clip(name), found[i].Text, place)
	}
	return s, found, nil
}

// messageSlips returns warnings of placeholders in the message that clients get as they stand.
func (h *Handler) messageSlips() (found []warning.Warning) {
	var beside, place string
	for _, name := range slices.Sorted(maps.Keys(h.RateLimits)) {
		if z := h.RateLimits[name]; z != nil && place == "" && (beside == "" || z.Source != "") {
			beside, place = name, z.Source
		}
	}
	if strings.HasSuffix(h.Message, ".html") && !strings.Contains(h.Message, " ") {
		found = append(found, warning.New(warning.NotMeant, "the message beside zone %q: clients get the text %s, not the file; write the text itself, or `handle_errors 429` with a file_server, at %s", spelling.Clip(beside), spelling.Clip(h.Message), cmp.Or(place, h.path)))
	}
	for _, name := range answer.PlaceholdersIn(h.Message) {
		if slip := cmp.Or(answer.CheckPlaceholder(name), reqkey.CheckText(name)); slip != nil {
			what, mend, _ := strings.Cut(slip.Error(), "; ")
			found = append(found, warning.Warning{Code: warning.UnknownKey, Unset: name,
				Text: fmt.Sprintf("the message beside zone %q: %s, so clients get it as it stands; %s, at %s", spelling.Clip(beside), what, mend, cmp.Or(place, h.path))})
		}
	}
	return found
}

// check reports what is wrong with the handler's own options.
func (h *Handler) check(g globals) error {
	if len(h.StorageRaw) > 0 {
		return wrong("storage", errStorage)
	}
	for name := range h.RateLimits {
		if err := config.CheckName(name); err != nil {
			return fmt.Errorf("parsing zone name: %w", err)
		}
	}
	if h.StatusCode != 0 {
		if err := statusRange(h.StatusCode); err != nil {
			return wrong("status", err)
		}
	}
	if err := checkHeaders(h.Headers); err != nil {
		return wrong("headers", err)
	}
	if !(h.Jitter >= 0 && h.Jitter <= 1) {
		return wrongf("jitter", "%g is not between 0 and 1; write 0.1 for up to a tenth longer", h.Jitter)
	}
	if t := time.Duration(h.SweepInterval); t != 0 && (t < config.MinWindow || t > config.MaxWindow) {
		return wrongf("sweep_interval", "%s is not between 1ms and ten years; write 1m", config.WindowText(t))
	}
	if err := g.checkInherited(h.SyncRate); err != nil || h.Distributed == nil {
		return err
	}
	return wrong("distributed", h.Distributed.check(g))
}

// check reports what is wrong with the older plugin's intervals.
func (d *Distributed) check(g globals) error {
	names := []string{"read_interval", "write_interval"}
	for i, interval := range []caddy.Duration{d.ReadInterval, d.WriteInterval} {
		if t := time.Duration(interval); t != 0 && (t < config.MinSync || t > config.MaxWindow) {
			return fmt.Errorf("%s %s is not between %s and ten years; write 5s", names[i], config.WindowText(t), config.WindowText(config.MinSync))
		}
	}
	if !g.hasRedis && !g.redisEmpty {
		return fmt.Errorf("it needs Redis, and none is configured; %s, or remove distributed", redisMend)
	}
	return nil
}

// inheritedSyncRate returns that of a zone without one of its own.
func (h *Handler) inheritedSyncRate(g globals) config.SyncRate {
	switch {
	case !g.hasRedis:
		return config.Local
	case h.SyncRate != nil:
		return *h.SyncRate
	case h.Distributed != nil:
		return h.Distributed.syncRate()
	case g.syncRate != nil:
		return *g.syncRate
	}
	return defaultSyncRate
}

// syncRate returns the smaller interval.
func (d *Distributed) syncRate() config.SyncRate {
	return config.SyncRate(min(cmp.Or(d.ReadInterval, defaultDistributedInterval), cmp.Or(d.WriteInterval, defaultDistributedInterval)))
}

func statusRange(status int) error {
	if status < 400 || status > 599 {
		return fmt.Errorf("%d is not the status of an error; write 429, or another from 400 to 599", status)
	}
	return nil
}

func checkHeaders(sets []string) error {
	for _, set := range sets {
		if _, err := config.ChooseName[int](set, answer.HeaderSetNames); err != nil || set == "" {
			return cmp.Or(err, fmt.Errorf("an empty name; write one of %s", strings.Join(answer.HeaderSetNames, ", ")))
		}
	}
	_, err := answer.ParseHeaderSets(sets)
	return err
}

// settings returns the zone's, without its name. inherited is its sync rate if it has none of its
// own.
func (z *Zone) settings(inherited config.SyncRate, g globals) (s config.Settings, found []warning.Warning, err error) {
	if z == nil {
		return s, nil, errors.New("it is null; write an object with limits, like {\"limits\": [{\"max_events\": 100, \"window\": \"1m\"}]}")
	}
	c := &zoneCheck{Zone: z, s: &s, globals: g, inherited: inherited}
	for _, check := range []func() error{
		c.limits, c.concurrent, c.algorithm, c.calendar, c.shape, c.spans, c.prefixes, c.key, c.sync, c.lasts, c.regions, c.counting, c.responses,
		c.costs, c.responseCosts, c.selects, c.enforce, c.reserve, c.ban,
		func() error { return wrong("headers", checkHeaders(c.Headers)) },
	} {
		if err := check(); err != nil {
			return config.Settings{}, nil, err
		}
	}
	return s, c.found, nil
}

// A zoneCheck makes the settings of a zone, option by option: what is inherited, what the default
// is, what is wrong, and what is to be warned of.
type zoneCheck struct {
	*Zone
	s *config.Settings
	globals
	inherited config.SyncRate
	found     []warning.Warning
}

func (c *zoneCheck) warn(code, text string, values ...any) {
	c.found = append(c.found, warning.New(code, text, values...))
}

// between reports a number that is out of an option's range. mend is what to write.
func between(option string, n, least, most int64, mend string) error {
	if n < least || n > most {
		return wrongf(option, "%d is not between %d and %d; write %s", n, least, most, mend)
	}
	return nil
}

// legacy reports whether the zone is written in the older plugin's words. What it did there stays
// true.
func (z *Zone) legacy() bool { return z.MaxEvents != nil || z.Window != 0 }

// limits sets the rates that decide, by window.
func (c *zoneCheck) limits() error {
	limits, option := c.Limits, "limit"
	switch {
	case c.legacy() && len(limits) > 0:
		return wrongf("limit", "it is given together with window and events, which are a limit as well; keep one of the two")
	case c.MaxEvents != nil && c.Window == 0:
		return wrongf("events", "there is no window to go with it; add one, like `window 1m`")
	case c.Window != 0 && c.MaxEvents == nil:
		return wrongf("window", "there is no number of events to go with it; add one, like `events 100`")
	case c.legacy():
		limits, option = []Limit{{MaxEvents: &config.Events{Number: *c.MaxEvents}, Window: config.Window(c.Window)}}, "window"
	case len(limits) == 0:
		return c.withoutLimit()
	}
	for _, limit := range limits {
		r, err := limit.rate()
		if err := cmp.Or(err, r.Check()); err != nil {
			return wrong(option, err)
		}
		if r.From != "" {
			slips, err := reqkey.CheckNumber(r.From)
			if err != nil {
				return wrong(option, err)
			}
			c.found = append(c.found, slips...)
		}
		if slices.ContainsFunc(c.s.Limits, func(other config.Rate) bool {
			return other.Window == r.Window && other.From+r.From != ""
		}) {
			return wrongf(option, "two limits of %s, one of which comes with the request; keep one of them", config.WindowText(r.Window))
		}
		c.s.Limits = append(c.s.Limits, r)
		if r.From != "" && reqkey.NewNumber(r.From).IsClients() {
			c.warn(warning.ClientsLimit, "a client can send any %s, and so choose its own limit, unless a proxy replaces it; take the number from who the client is, as `map {http.auth.user.id} {plan}` does in a block `route { … }`, behind basic_auth and before rate_limit", r.From)
		}
	}
	c.s.Limits = config.Sorted(c.s.Limits)
	return nil
}

// withoutLimit reports a zone without a limit that needs one: it does nothing else, or has an
// option about a limit.
func (c *zoneCheck) withoutLimit() error {
	if c.Bandwidth == 0 && c.Concurrent == nil {
		return wrongf("limit", "there is none; add one, like `limit 100/1m`")
	}
	for _, o := range config.Zone.Options {
		if o.Is&config.OfLimit != 0 && isGiven(c.Zone, o) {
			return wrongf(o.Name, "it is about a limit, and the zone has none; add one, like `limit 100/1m`, or remove it")
		}
	}
	return nil
}

// concurrent sets how many requests may run at once.
func (c *zoneCheck) concurrent() error {
	if c.Concurrent == nil {
		return nil
	}
	c.s.Concurrent = *c.Concurrent
	return between("concurrent", c.s.Concurrent, 1, maxConcurrent, "how many requests of one key may run at once, like 4, or remove it for any number")
}

// rate returns the limit as a rate. What comes with the request has its default.
func (l Limit) rate() (config.Rate, error) {
	r := config.Rate{Limit: l.MaxEvents.Number, Window: time.Duration(l.Window), From: l.MaxEvents.From}
	switch {
	case r.From == "" && l.Default == nil:
		return r, nil
	case r.From == "":
		return r, fmt.Errorf("%s has a default, and its number doesn't come with the request; remove default, or write a placeholder for the number, like {plan}", r)
	case l.Default == nil:
		return r, fmt.Errorf("%s has no default for a request without a number; add one, like `limit_default 60/%s`, in JSON `\"default\": 60`", r, config.WindowText(r.Window))
	}
	r.Limit = *l.Default
	return r, nil
}

// setDefaults puts the rates of limit_default into the limits of their windows.
func (z *Zone) setDefaults() error {
	for _, r := range z.defaults {
		i := slices.IndexFunc(z.Limits, func(l Limit) bool {
			return time.Duration(l.Window) == r.Window && l.MaxEvents.From != ""
		})
		switch {
		case i < 0:
			return wrongf("limit_default", "there is no limit of %s that comes with the request; write one, like `limit {plan}/%[1]s`, or remove %[2]s", config.WindowText(r.Window), r)
		case z.Limits[i].Default != nil:
			return wrongf("limit_default", "%s has two defaults; keep one of them", config.WindowText(r.Window))
		}
		z.Limits[i].Default = &r.Limit
	}
	return nil
}

// algorithm sets how requests are counted. What only a bucket has implies one, where there is one
// limit: of several, each would have the burst.
func (c *zoneCheck) algorithm() (err error) {
	if c.s.Kind, err = config.ChooseName[algorithms.Kind](c.Algorithm, algorithms.KindNames()); err != nil {
		return wrong("algorithm", err)
	}
	switch oneLimit := len(c.Limits) == 1; {
	case c.Algorithm != "":
	case c.legacy():
		c.s.Kind = algorithms.SlidingLog
	case len(c.s.Limits) > 0 && !slices.ContainsFunc(c.s.Limits, isLength):
		c.s.Kind = algorithms.FixedWindow
	case oneLimit && c.Queue != nil:
		c.s.Kind = algorithms.LeakyBucket
	case oneLimit && c.Burst != nil:
		c.s.Kind = algorithms.TokenBucket
	}
	return nil
}

// isLength reports whether the window of a rate is a length, not one of a calendar.
func isLength(r config.Rate) bool {
	_, ok := calendar.Name(r.Window)
	return !ok
}

// calendar sets by which days, weeks, months and years begin, where a limit goes by them.
func (c *zoneCheck) calendar() error {
	i := slices.IndexFunc(c.s.Limits, func(r config.Rate) bool { return !isLength(r) })
	switch {
	case i < 0 && c.Calendar != nil:
		return wrongf("calendar", "no limit of the zone goes by a calendar; write one by day, week, month or year, like `limit 250000/month`, or remove it")
	case i < 0:
		return nil
	case c.s.Kind != algorithms.FixedWindow && c.Algorithm == "":
		j := slices.IndexFunc(c.s.Limits, isLength)
		return wrongf("limit", "%s goes by a calendar, which only fixed_window does, and %s would be counted so as well; write `algorithm fixed_window` if that is right, or give %[2]s a zone of its own", c.s.Limits[i], c.s.Limits[j])
	case c.s.Kind != algorithms.FixedWindow:
		return wrongf("algorithm", "%s goes by a calendar, which %s doesn't; remove it, or write `algorithm fixed_window`, or a limit like %d/%s", c.s.Limits[i], c.s.Kind, c.s.Limits[i].Limit, config.WindowText(c.s.Limits[i].Window.Truncate(time.Hour)))
	}
	c.s.Calendar = or(c.Calendar, config.Calendar{Zone: "UTC"})
	c.s.Calendar.From = cmp.Or(c.s.Calendar.From, 1)
	_, err := calendar.Of(algorithms.Month, c.s.Calendar.Zone, c.s.Calendar.From)
	return wrong("calendar", err)
}

// shape sets the options that only some algorithms have.
func (c *zoneCheck) shape() error {
	c.s.SubWindows = 1
	switch {
	case c.Burst != nil && !c.s.Kind.Traits().TakesBurst:
		return wrongf("burst", "%s has no burst; remove it, or write %s", c.s.Kind, those(func(t *algorithms.Traits) bool { return t.TakesBurst }))
	case c.Burst != nil && *c.Burst < 1:
		return wrongf("burst", "%d is too small; write 1 or more, or remove it for a burst of the whole limit", *c.Burst)
	case c.SubWindows != nil && !c.s.Kind.Traits().TakesSubWindows:
		return wrongf("sub_windows", "%s has no sub-windows; remove it, or write %s", c.s.Kind, those(func(t *algorithms.Traits) bool { return t.TakesSubWindows }))
	case c.Queue != nil && !c.s.Kind.Traits().Queues:
		return wrongf("queue", "%s has no queue; remove it, or write %s", c.s.Kind, those(func(t *algorithms.Traits) bool { return t.Queues }))
	case c.Queue != nil && *c.Queue < 0:
		return wrongf("queue", "%d is negative; write how many requests of one key may wait, like 10", *c.Queue)
	case c.Queue == nil && c.s.Kind.Traits().Queues:
		return wrongf("algorithm", "%s needs a queue; add how many requests of one key may wait, like `queue 10`", c.s.Kind)
	}
	c.s.Burst, c.s.SubWindows, c.s.Queue = or(c.Burst, 0), or(c.SubWindows, 1), or(c.Queue, 0)
	return between("sub_windows", int64(c.s.SubWindows), 1, maxSubWindows, "10 for a finer window")
}

// those lists the algorithms of which something holds.
func those(holds func(*algorithms.Traits) bool) string {
	var all []string
	for k, name := range algorithms.KindNames() {
		if holds(algorithms.Kind(k).Traits()) {
			all = append(all, "`algorithm "+name+"`")
		}
	}
	return strings.Join(all, " or ")
}

// or returns what is given, or the default.
func or[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}

// spans checks the times that come of each limit and the shape.
func (c *zoneCheck) spans() error {
	for _, limit := range c.s.Limits {
		if limit.Window/time.Duration(c.s.SubWindows) < config.MinWindow {
			return wrongf("sub_windows", "%d sub-windows of a window of %s are shorter than 1ms each; write fewer", c.s.SubWindows, config.WindowText(limit.Window))
		}
		if limit.Span(c.s.Burst) > config.MaxWindow {
			return wrongf("burst", "at %s, %d take longer than ten years to come back; write a smaller burst", limit, c.s.Burst)
		}
		if limit.Span(c.s.Queue) > config.MaxWindow {
			return wrongf("queue", "at %s, the last of %d would wait longer than ten years; write a shorter queue", limit, c.s.Queue)
		}
	}
	return nil
}

// prefixes sets by what networks addresses are grouped. 0 switches that off, which is the same as
// all bits.
func (c *zoneCheck) prefixes() error {
	four, six := or(c.IPv4Prefix, 32), or(c.IPv6Prefix, 64)
	c.s.IPv4Prefix, c.s.IPv6Prefix = cmp.Or(four, 32), cmp.Or(six, 128)
	return cmp.Or(between("ipv4_prefix", int64(four), 0, 32, "32, or 0 for no grouping"), between("ipv6_prefix", int64(six), 0, 128, "64, or 0 for no grouping"))
}

// key sets the template of the key, and what happens where it comes out empty.
func (c *zoneCheck) key() (err error) {
	if c.s.EmptyKey, err = config.ChooseName[config.EmptyKey](c.EmptyKey, config.EmptyKeyNames); err != nil {
		return wrong("empty_key", err)
	}
	// the word of Caddyfiles, also in JSON
	c.s.Key = strings.ReplaceAll(c.Key, "{client_ip}", reqkey.Default)
	switch {
	case c.legacy():
		c.legacyKey()
	case c.Key == "":
		c.s.Key = reqkey.Default
	}
	slips, err := reqkey.Check(c.s.Key)
	c.found = append(c.found, slips...)
	return wrong("key", err)
}

// legacyKey keeps what keys did in the older plugin: no key and an empty key are one count for all
// requests. A placeholder that was meant for the client's address is the address here. Where map or
// another module can set the placeholder, the address stands in for it only when it is empty.
func (c *zoneCheck) legacyKey() {
	var mayBeAnother bool
	c.s.Key, mayBeAnother = reqkey.ForAddress(c.s.Key)
	switch {
	case c.EmptyKey != "":
	case mayBeAnother:
		c.s.EmptyKey = config.EmptyClientIP
	default:
		c.s.EmptyKey = config.EmptyShare
	}
}

// sync sets how often counts are synced.
func (c *zoneCheck) sync() error {
	c.s.SyncRate = max(or(c.SyncRate, c.inherited), config.Local)
	if c.s.SyncRate >= 0 && c.redisEmpty {
		return wrongf("sync_rate", "%s needs Redis, and redis is off or has an empty value; give it an address, or remove sync_rate here: an inherited one falls to local without Redis", c.s.SyncRate)
	}
	rate := time.Duration(c.s.SyncRate)
	if i := slices.IndexFunc(c.s.Limits, func(r config.Rate) bool { return rate > r.Window }); i >= 0 {
		c.warn(warning.NotMeant, "sync_rate %s is longer than the window %s, so nodes hear of each other too late; write a shorter one with its unit, like `sync_rate 500ms`",
			config.WindowText(rate), config.WindowText(c.s.Limits[i].Window))
	}
	return checkSyncRate(c.SyncRate, c.hasRedis)
}

// lasts warns where what is counted by a calendar may not last until its windows end.
func (c *zoneCheck) lasts() error {
	window := config.WindowText(c.s.LongestWindow())
	switch {
	case c.s.Calendar.Zone == "":
	case c.s.Key == reqkey.Default:
		c.warn(warning.ShortLived, "each address that comes has a counter until the %s ends, and beyond max_keys newcomers share counters; write a key that tells who the client is, like {http.auth.user.id}", window)
	case c.s.SyncRate == config.Local && !c.persists:
		c.warn(warning.ShortLived, "what is counted of a %s ends with the process; write `persist` into the global option rate_limit, or redis there", window)
	}
	return nil
}

// regions sets whether the zone counts over all regions.
func (c *zoneCheck) regions() error {
	if or(c.Regions, false) && !c.hasRegions {
		return wrongf("regions", "there is one region only; write the regions into the global option rate_limit, as `regions { … }`, or remove it here")
	}
	c.s.Regions = c.hasRegions && c.s.SyncRate >= 0 && or(c.Regions, true)
	return nil
}

// enforce sets the share of keys that the zone is enforced for.
func (c *zoneCheck) enforce() error {
	share := or(c.Enforce, 1)
	if err := config.CheckShare(share); err != nil {
		return wrong("enforce", err)
	}
	c.s.Enforce = config.Enforce(share)
	if share > 0 && share < 1 && reqkey.IsConstant(c.s.Key) {
		c.warn(warning.ShareOfOneKey, "all requests have one key, and it is enforced for %s of all keys: so for this one or not at all; write `enforce off` or remove enforce, or `key {client_ip}` to enforce it for a share of the clients", c.s.Enforce)
	}
	return nil
}

// ban sets when keys are banned, and for how long.
func (c *zoneCheck) ban() error {
	if c.Ban == nil {
		return nil
	}
	if len(c.Reserve) > 0 {
		return wrongf("ban", "with reserve, requests are denied before the limit is spent, which is no reason for a ban; remove one of the two")
	}
	if len(c.s.Limits) == 0 {
		return wrongf("ban", "there is no limit whose denied requests could begin a ban; add one, like `limit 100/1m`")
	}
	c.s.Ban.For, c.s.Ban.Growing = time.Duration(c.Ban.For), time.Duration(c.Ban.Growing)
	if after := c.Ban.After; after != nil {
		c.s.Ban.After = config.Rate{Limit: after.MaxEvents, Window: time.Duration(after.Window)}
		if *after == (BanAfter{}) {
			return wrongf("ban", "after has no number and no window; write them, like {\"max_events\": 3, \"window\": \"10m\"}, or remove after for the first denied request")
		}
	}
	return wrong("ban", c.s.Ban.Check())
}

// reserve sets the shares that are kept for classes of requests.
func (c *zoneCheck) reserve() (err error) {
	if len(c.Reserve) == 0 {
		return nil
	}
	var shares []float64
	for _, r := range c.Reserve {
		if len(r.MatcherSetsRaw) == 0 || slices.ContainsFunc(r.MatcherSetsRaw, func(set caddy.ModuleMap) bool { return len(set) == 0 }) {
			return wrongf("reserve", "it is for all requests, so it keeps nothing back; write for which ones it is, like `reserve @paying 20%%`, in JSON `{\"share\": 0.2, \"match\": [{\"header\": {\"X-Plan\": [\"paid\"]}}]}`")
		}
		for _, set := range r.MatcherSetsRaw {
			if err := config.CheckMatchers(set); err != nil {
				return wrong("reserve", err)
			}
		}
		shares = append(shares, r.Share)
	}
	switch {
	case c.s.Kind.Traits().Queues:
		return wrongf("reserve", "the requests of a %s wait in one queue, in the order in which they come, so none can go first; choose another algorithm, or queue only those who don't pay, with `match` in the zone", c.s.Kind)
	case c.CountDenied:
		return wrongf("reserve", "with count_denied, requests that are denied take what is reserved for others; remove one of the two")
	}
	if c.s.Reserve, err = config.Reserves(shares); err != nil {
		return wrong("reserve", err)
	}
	return nil
}

// selects reports matchers that match every request or none.
func (c *zoneCheck) selects() error {
	for _, set := range c.MatcherSetsRaw {
		if err := config.CheckMatchers(set); err != nil {
			return wrong("match", err)
		}
	}
	for _, set := range c.ExceptRaw {
		if len(set) == 0 {
			return wrongf("except", "an empty set matches every request, so nothing would be limited; write matchers into it, or remove it")
		}
		if err := config.CheckMatchers(set); err != nil {
			return wrong("except", err)
		}
	}
	return nil
}

// responses sets which responses count.
func (c *zoneCheck) responses() error {
	m, forgives := c.CountResponses, c.ForgiveResponses
	c.s.CountResponses, c.s.ForgiveResponses = m, forgives
	const option, forgiving = "count_responses", "forgive_responses"
	switch {
	case forgives != nil && m == nil:
		return wrongf(forgiving, "every response counts, so there is no wrong login that a right one could forgive; add the responses that count, like `count_responses 401 403`, or remove it")
	case forgives != nil && len(forgives.StatusCode)+len(forgives.Headers) == 0:
		return wrongf(forgiving, "it is empty, so every response would forgive, and nothing would be limited; write those of a right login, like `forgive_responses 303`, or remove it")
	case m == nil:
		return nil
	case len(m.StatusCode)+len(m.Headers) == 0:
		return wrongf(option, "it is empty, so every response would count, as without it; write the responses that count, like `count_responses 401 403`, or remove it")
	case c.s.Kind.Traits().Queues:
		return wrongf(option, "%s is a queue, in which a request keeps its place whatever its response; remove one of the two, or write `algorithm token_bucket`", c.s.Kind)
	case c.s.CountDenied:
		return wrongf(option, "count_denied counts requests that get no response from behind rate_limit, so that nothing says whether these count; keep one of the two")
	}
	isNone := func(status int) bool {
		class := status < 10
		return class && (status < 2 || status > 5) || !class && status != http.StatusSwitchingProtocols && (status < 200 || status > 599)
	}
	if i := slices.IndexFunc(m.StatusCode, isNone); i >= 0 {
		return wrongf(option, "%d is not the status of a response; write codes and classes like `count_responses 401 403` or `count_responses 4xx`", m.StatusCode[i])
	}
	if forgives == nil {
		return nil
	}
	if i := slices.IndexFunc(forgives.StatusCode, isNone); i >= 0 {
		return wrongf(forgiving, "%d is not the status of a response; write codes and classes like `forgive_responses 200 303` or `forgive_responses 3xx`", forgives.StatusCode[i])
	}
	if reqkey.IsAddress(c.s.Key) {
		c.warn(warning.ForgivesGuesser, "its key is an address alone, so one who guesses passwords of others clears the count by a login of an account of his own; "+
			"write a key with the user's name, like `key {http.request.uri.query.user}`, and limit the address in a zone of its own, without forgive_responses")
	}
	return nil
}

// costs sets what a request takes.
func (c *zoneCheck) costs() (err error) {
	if len(c.Cost) == 0 {
		switch {
		case c.CostDefault != nil:
			return wrongf("cost_default", "there is no cost that could lack a number; add one, like `cost {units}`, or remove it")
		case c.size != "" && len(c.ResponseCost) == 0:
			return wrongf("limit", "%s is a size, and the zone counts requests; add `cost bytes`, or write how many requests, like `limit 100/1m`", c.size)
		}
		return nil
	}
	c.s.Cost = config.Cost{Terms: c.Cost, Default: or(c.CostDefault, 0)}
	for i := range c.Cost {
		if err := c.costTerm(&c.Cost[i], "each costs 1 at least; take the cost from what is asked for, as `map {path} {units}` does"); err != nil {
			return wrong("cost", err)
		}
		if units := c.Cost[i].Units; units != nil && units.From != "" {
			slips, _ := reqkey.CheckNumber(units.From) // costTerm has returned the error
			c.found = append(c.found, slips...)
		}
	}
	constant := c.s.Cost.IsConstant()
	switch {
	case constant && c.fraction() != nil:
		return c.fraction()
	case constant && c.CostDefault != nil:
		return wrongf("cost_default", "the cost is the same for all requests; remove it, or write a cost that comes with the request, like `cost {units}`")
	case !constant && c.CostDefault == nil:
		return wrongf("cost", "a request may come without it; add what it costs then, like `cost_default 10`")
	case c.s.Cost.Default < 0 || c.s.Cost.Default > config.MaxCost:
		return wrongf("cost_default", "%d is not between 0 and 2^40; write what such a request costs, like 10", c.s.Cost.Default)
	case c.size != "" && len(c.ResponseCost) == 0 && !c.s.Cost.IsBytes():
		return wrongf("cost", "%s is a size, and the zone doesn't count bytes alone; write `cost bytes`, or numbers without a unit", c.size)
	case c.s.CountDenied:
		return wrongf("count_denied", "with cost, a denied request would take what it costs, so that a few large ones lock a client out for long; remove one of the two")
	case constant && len(c.ResponseCost) == 0:
		err = admits(c.s)
	case constant && c.s.Cost.Constant() == 0:
		return wrongf("cost", "0 reserves nothing, so that response_cost could correct nothing; write an estimate near the mean, like `cost 500`")
	}
	return err
}

// fraction reports a cost that is a number with a fraction. Requests would take another one.
func (c *zoneCheck) fraction() error {
	sum, times, whole := c.s.Cost.Fraction()
	if sum == 0 {
		return nil
	}
	what, limits, like := fmt.Sprintf("%.10g is not a whole number, and a request would take %d", sum, c.s.Cost.Constant()), "limits", ""
	if whole == 0 || len(c.ResponseCost) > 0 {
		return wrongf("cost", "%s; write `cost %d`, or another whole number", what, c.s.Cost.Constant())
	}
	if c.s.Burst > 0 {
		limits += " and burst"
	}
	if c.s.Queue > 0 {
		limits += " and queue"
	}
	if len(c.s.Limits) > 0 && c.s.Limits[0].From == "" && c.s.Limits[0].Limit < 1<<50 {
		r := c.s.Limits[0]
		r.Limit *= times
		like = ", like " + r.String()
	}
	return wrongf("cost", "%s; write `cost %d`, with %s %d times as high%s", what, whole, limits, times, like)
}

// responseCosts sets what a response says that it has cost.
func (c *zoneCheck) responseCosts() error {
	const option = "response_cost"
	if c.s.ResponseCost = (config.ResponseCost{Terms: c.ResponseCost, Default: or(c.ResponseCostDefault, 0)}); len(c.ResponseCost) == 0 {
		if c.ResponseCostDefault != nil {
			return wrongf("response_cost_default", "there is no response_cost that could be missing; add one, like `response_cost header X-Cost`, or remove it")
		}
		return nil
	}
	for i := range c.ResponseCost {
		t := &c.ResponseCost[i]
		if err := t.Check(); err != nil {
			return wrong(option, err)
		}
		if t.Units == "" {
			continue
		}
		if err := c.costTerm(&config.CostTerm{Units: &config.Amount{From: t.Units}}, "take it from the response, as `response_cost header X-Cost` does"); err != nil {
			return wrong(option, err)
		}
	}
	switch {
	case c.s.Kind.Traits().Queues:
		return wrongf(option, "%s is a queue, in which a request keeps its place whatever its response; remove one of the two, or write `algorithm token_bucket`", c.s.Kind)
	case c.s.CountDenied:
		return wrongf(option, "count_denied counts requests that get no response from behind rate_limit, so that nothing says what these cost; keep one of the two")
	case c.ResponseCostDefault != nil && c.CountResponses == nil:
		return wrongf("response_cost_default", "it is charged where a response that counts has no figure, and nothing says which ones count; add `count_responses 2xx`")
	case c.s.ResponseCost.Default < 0 || c.s.ResponseCost.Default > config.MaxCost:
		return wrongf("response_cost_default", "%d is not between 0 and 2^40; write what the largest answer costs, like 4000", c.s.ResponseCost.Default)
	case c.size != "" && !c.s.ResponseCost.IsBytes():
		return wrongf(option, "%s is a size, and the zone doesn't count bytes alone; write `response_cost bytes`, or numbers without a unit", c.size)
	}
	return nil
}

// admits reports a cost that a limit never admits.
func admits(s *config.Settings) error {
	n := s.Cost.Constant()
	for _, r := range s.Limits {
		if size := s.Params(r).Compile().Size; r.From == "" && r.Limit > 0 && n > max(1, size) {
			return wrongf("cost", "%d is more than %s ever admits at once, so nobody would be admitted; write at most %d", n, r, size)
		}
	}
	return nil
}

// costTerm checks one amount, in place of which there may be a better one.
func (c *zoneCheck) costTerm(t *config.CostTerm, better string) error {
	if err := t.Check(); err != nil || t.Units == nil || t.Units.From == "" {
		return err
	}
	if _, err := reqkey.Check(t.Units.From); err != nil { // its warnings are about keys
		return err
	}
	if reqkey.NewNumber(t.Units.From).IsClients() {
		c.warn(warning.ClientsLimit, "a client can send any %s, and so choose what its requests cost, unless a proxy replaces it; %s", t.Units.From, better)
	}
	return nil
}

// counting sets what is counted, and what happens while Redis is unavailable.
func (c *zoneCheck) counting() (err error) {
	c.s.MaxKeys = or(c.MaxKeys, defaultMaxKeys)
	if err := between("max_keys", int64(c.s.MaxKeys), 1, maxMaxKeys, "a number, or remove it for 1000000; there is no way to have no bound"); err != nil {
		return err
	}
	if c.s.Bandwidth = c.Bandwidth; c.s.Bandwidth != 0 {
		if err := c.s.Bandwidth.Check(); err != nil {
			return wrong("bandwidth", err)
		}
	}
	c.s.OnRedisLoss, err = config.ChooseName[config.OnRedisLoss](c.OnRedisLoss, config.OnRedisLossNames)
	c.s.CountDenied, c.s.EarlySync = c.CountDenied, or(c.EarlySync, true)
	return wrong("on_redis_loss", err)
}

// optionError is a mistake in the value of one option, by the option's name in a Caddyfile. The
// Caddyfile parser finds the line by it, and inJSON the field.
type optionError struct {
	option string
	err    error
}

func (e *optionError) Error() string { return "parsing " + e.option + ": " + e.err.Error() }
func (e *optionError) Unwrap() error { return e.err }

func wrong(option string, err error) error {
	if err == nil {
		return nil
	}
	return &optionError{option, err}
}

func wrongf(option, format string, args ...any) error {
	return &optionError{option, fmt.Errorf(format, args...)}
}

// zoneError is a mistake in a zone.
type zoneError struct {
	zone string
	err  error
}

func (e *zoneError) Error() string { return fmt.Sprintf("zone %q: %s", spelling.Clip(e.zone), e.err) }
func (e *zoneError) Unwrap() error { return e.err }

// redisMend is how Redis is configured, as a part of a sentence.
const redisMend = "add the line `redis redis://localhost:6379` to the rate_limit block of the global options at the top"

var (
	// bothWays is a line of a Caddyfile with what it is in JSON.
	bothWays = regexp.MustCompile("`[^`]*`, in JSON ")
	oneLine  = regexp.MustCompile("`[a-z_0-9]+ [^`]+`")
	lengths  = regexp.MustCompile(`"(window|for)": (\d+)`)
)

// inWordsOfJSON returns the text of a message about JSON: where it says what to write as a line of
// a zone in a Caddyfile, that is what the parser makes of the line. Other lines stay.
func inWordsOfJSON(text string) string {
	text = strings.ReplaceAll(text, redisMend, "add `\"redis\": {\"url\": \"redis://localhost:6379\"}` to apps.rate_limit")
	text = bothWays.ReplaceAllString(text, "")
	return oneLine.ReplaceAllStringFunc(text, func(line string) string {
		z, line := new(Zone), strings.Trim(line, "`")
		read := func(text string) error {
			tokens, err := caddyfile.Tokenize([]byte(text), "")
			if err != nil {
				return err
			}
			p := parser{Dispenser: caddyfile.NewDispenser(tokens)}
			p.Next()
			return p.zoneOption(z, p.Val(), config.Zone)
		}
		fields, err := []byte(nil), read(line)
		if err == nil {
			fields, err = json.Marshal(z)
		} else if err = read("match " + line); err == nil {
			fields, err = json.Marshal(z.MatcherSetsRaw[0])
		}
		if err != nil || len(fields) < 3 {
			return "`" + line + "`"
		}
		spaced := strings.NewReplacer(`":`, `": `, `,"`, `, "`).Replace(string(fields[1 : len(fields)-1]))
		return "`" + lengths.ReplaceAllStringFunc(spaced, func(length string) string {
			m := lengths.FindStringSubmatch(length)
			n, _ := strconv.ParseInt(m[2], 10, 64)
			return fmt.Sprintf(`"%s": "%s"`, m[1], config.WindowText(time.Duration(n)))
		}) + "`"
	})
}

// jsonError is an error in the words of JSON.
type jsonError struct {
	text string
	err  error
}

func (e *jsonError) Error() string { return e.text }
func (e *jsonError) Unwrap() error { return e.err }

// inJSON says an error about a handler in the words of JSON, and adds the field that it is about.
// Caddy adds the handler's own path.
func inJSON(err error) error {
	var path []string
	text := inWordsOfJSON(err.Error())
	var zone *zoneError
	if errors.As(err, &zone) {
		path = append(path, zonePath(zone.zone))
	}
	var about *optionError
	if errors.As(err, &about) {
		field := config.FieldOf(about.option)
		text = strings.Replace(text, "parsing "+about.option+":", "parsing "+field+":", 1)
		path = append(path, field)
	}
	if len(path) > 0 {
		text += ", at " + strings.Join(path, ".")
	}
	return &jsonError{text, err}
}
