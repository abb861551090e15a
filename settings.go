package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	defaultSyncRate = SyncRate(time.Second)
	defaultMaxKeys  = 1_000_000
	mostMaxKeys     = 1_000_000_000
	mostBuckets     = 31

	defaultDistributedInterval = 5 * time.Second // the older plugin's

	redisMend = "add the line `redis redis://localhost:6379` to the rate_limit block of the global options at the top, or write `sync_rate local`"
)

// The texts of a configuration's choices. Each list is in the order of its constants.
var (
	kindNames      = algorithms.KindNames()
	emptyKeyNames  = []string{emptyClientIP: "client_ip", emptySkip: "skip", emptyShare: "share", emptyDeny: "deny"}
	redisLossNames = []string{lossLocal: "local", lossDivide: "divide", lossAllow: "allow", lossDeny: "deny"}
)

var errStorage = errors.New("counts are exchanged through Redis, not through Caddy's storage; remove storage, and add the line " +
	"`redis redis://localhost:6379` to the rate_limit block of the global options at the top")

// optionError is a mistake in the value of one option, by the option's name in a Caddyfile. The Caddyfile parser finds the line by it.
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

// check says what is wrong with the global options but for Redis and its namespace. redisEmpty is that Redis was asked for by a value that
// came out empty, like an environment variable that is not set: an inherited sync_rate then falls to local instead of being an error.
func (a *App) check(hasRedis, redisEmpty bool) error {
	if err := checkSyncRate(a.SyncRate, hasRedis || redisEmpty); err != nil {
		return err
	}
	if t := time.Duration(a.StrictTimeout); t != 0 && (t < time.Millisecond || t > time.Minute) {
		return wrongf("strict_timeout", "%s is not between 1ms and 1m; write 100ms", windowText(t))
	}
	return nil
}

// settings are the zones with everything inherited, defaulted and checked, by name. Warnings are for the log.
// global is the sync rate of the global options; hasRedis and redisEmpty are as there.
func (h *Handler) settings(global *SyncRate, hasRedis, redisEmpty bool) ([]settings, []warning.Warning, error) {
	if err := checkSyncRate(global, hasRedis || redisEmpty); err != nil {
		return nil, nil, err
	}
	if err := h.check(hasRedis, redisEmpty); err != nil {
		return nil, nil, err
	}
	if len(h.RateLimits) == 0 {
		return nil, []warning.Warning{{Code: warning.NoZone, Text: strings.TrimSuffix("there is no zone, so nothing is limited; write one into rate_limits, at "+h.place, ", at ")}}, nil
	}
	var all []settings
	var found []warning.Warning
	for _, name := range slices.Sorted(maps.Keys(h.RateLimits)) {
		s, warned, err := h.zoneSettings(name, h.RateLimits[name], global, hasRedis, redisEmpty)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, s)
		found = append(found, warned...)
	}
	return all, found, nil
}

// zoneSettings are those of one zone. An unnamed zone's name is "".
func (h *Handler) zoneSettings(name string, z *Zone, global *SyncRate, hasRedis, redisEmpty bool) (settings, []warning.Warning, error) {
	s, found, err := z.settings(h.inheritedSyncRate(global, hasRedis), hasRedis, redisEmpty)
	if err != nil && name != "" {
		err = &zoneError{name, err}
	}
	if err != nil {
		return settings{}, nil, err
	}
	s.name = name
	if isNumbered(name) {
		found = append(found, warning.Warning{Code: warning.SameLimit, Text: "the same limit stands in its site before, so their names tell them apart by their order only, and counts change places with them; " +
			"put each into a zone with a name of its own, or remove one"})
	}
	for i := range found {
		found[i].Text = fmt.Sprintf("zone %q: %s, at %s", clip(name), found[i].Text, h.zonePlace(name, z))
	}
	return s, found, nil
}

// zonePlace is where a zone stands: in a Caddyfile, or else in JSON.
func (h *Handler) zonePlace(name string, z *Zone) string {
	place := fmt.Sprintf("rate_limits[%q]", clip(name))
	switch {
	case z.Source != "":
		return z.Source
	case h.place != "":
		return h.place + ", " + place
	}
	return place
}

// check says what is wrong with the handler's own options.
func (h *Handler) check(hasRedis, redisEmpty bool) error {
	if len(h.StorageRaw) > 0 {
		return wrong("storage", errStorage)
	}
	for name := range h.RateLimits {
		if err := checkName(name); err != nil {
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
	if t := time.Duration(h.SweepInterval); t != 0 && (t < minWindow || t > maxWindow) {
		return wrongf("sweep_interval", "%s is not between 1ms and ten years; write 1m", windowText(t))
	}
	return h.checkSync(hasRedis || redisEmpty)
}

// checkSync says what is wrong with the handler's exchange. Zones inherit it, so an empty Redis silences it.
func (h *Handler) checkSync(hasRedis bool) error {
	if err := checkSyncRate(h.SyncRate, hasRedis); err != nil {
		return err
	}
	if h.Distributed == nil {
		return nil
	}
	for _, interval := range []struct {
		option string
		time.Duration
	}{{"read_interval", time.Duration(h.Distributed.ReadInterval)}, {"write_interval", time.Duration(h.Distributed.WriteInterval)}} {
		if d := interval.Duration; d != 0 && (d < minSyncRate || d > maxWindow) {
			return wrongf("distributed", "%s %s is not between %s and ten years; write 5s", interval.option, windowText(d), windowText(minSyncRate))
		}
	}
	if !hasRedis {
		return wrongf("distributed", "it needs Redis, and none is configured; add the line `redis redis://localhost:6379` to the rate_limit block of the global options at the top, or remove distributed")
	}
	return nil
}

// checkSyncRate says what is wrong with a sync rate, if one is given.
func checkSyncRate(s *SyncRate, hasRedis bool) error {
	if s == nil {
		return nil
	}
	if err := s.check(); err != nil {
		return wrong("sync_rate", err)
	}
	if *s >= 0 && !hasRedis {
		return wrongf("sync_rate", "%s needs Redis, and none is configured; %s", s, redisMend)
	}
	return nil
}

// inheritedSyncRate is that of a zone without one of its own.
func (h *Handler) inheritedSyncRate(global *SyncRate, hasRedis bool) SyncRate {
	switch {
	case !hasRedis:
		return syncLocal
	case h.SyncRate != nil:
		return *h.SyncRate
	case h.Distributed != nil:
		return h.Distributed.syncRate()
	case global != nil:
		return *global
	}
	return defaultSyncRate
}

// syncRate is the smaller interval.
func (d *Distributed) syncRate() SyncRate {
	read, write := time.Duration(d.ReadInterval), time.Duration(d.WriteInterval)
	if read == 0 {
		read = defaultDistributedInterval
	}
	if write == 0 {
		write = defaultDistributedInterval
	}
	return SyncRate(min(read, write))
}

func statusRange(status int) error {
	if status < 400 || status > 599 {
		return fmt.Errorf("%d is not the status of an error; write 429, or another from 400 to 599", status)
	}
	return nil
}

func checkHeaders(sets []string) error {
	for _, set := range sets {
		if _, err := choose[int](set, answer.HeaderSetNames); err != nil || set == "" {
			return cmp.Or(err, fmt.Errorf("an empty name; write one of %s", strings.Join(answer.HeaderSetNames, ", ")))
		}
	}
	_, err := answer.ParseHeaderSets(sets)
	return err
}

// checkName keeps zone names fit for header fields and log lines.
func checkName(name string) error {
	const most = 128
	switch {
	case name == "":
		return errors.New("it is empty; write one of printable ASCII, like login")
	case len(name) > most:
		return fmt.Errorf("%q is longer than %d characters; write a shorter one", clip(name), most)
	}
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%q holds a character that is not printable ASCII; write letters, digits, - and _, like login", clip(name))
		}
		if c == '"' || c == '\\' {
			return fmt.Errorf("%q holds a quote or a backslash; write letters, digits, - and _, like login", clip(name))
		}
	}
	return nil
}

// choose is the index of value in names, 0 if there is no value.
func choose[T ~int | ~uint8](value string, names []string) (T, error) {
	if value == "" {
		return 0, nil
	}
	if i := slices.Index(names, value); i >= 0 {
		return T(i), nil
	}
	near := spelling.Nearest(value, names)
	if meant := otherNames[value]; slices.Contains(names, meant) {
		near = meant
	}
	if near != "" {
		return 0, fmt.Errorf("there is no %q; did you mean %s?", clip(value), near)
	}
	return 0, fmt.Errorf("there is no %q; write one of %s", clip(value), strings.Join(names, ", "))
}

// settings are the zone's, without its name. inherited is its sync rate if it has none of its own.
func (z *Zone) settings(inherited SyncRate, hasRedis, redisEmpty bool) (settings, []warning.Warning, error) {
	if z == nil {
		return settings{}, nil, errors.New("it is null; write an object with limits, like {\"limits\": [{\"max_events\": 100, \"window\": \"1m\"}]}")
	}
	var s settings
	var found []warning.Warning
	steps := []func() error{
		func() error { return z.limits(&s) },
		func() error { return z.algorithm(&s) },
		func() error { return z.shape(&s) },
		func() error { return z.spans(&s) },
		func() (err error) { found, err = z.grouping(&s); return err },
		func() error { return z.exchange(&s, inherited, hasRedis, redisEmpty) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return settings{}, nil, err
		}
	}
	return s, found, nil
}

// legacy says that the zone is written in the older plugin's words, and what it did there stays true.
func (z *Zone) legacy() bool { return z.MaxEvents != nil || z.Window != 0 }

// limits are sorted by window. Of equal windows the lowest number decides.
func (z *Zone) limits(s *settings) error {
	limits := z.Limits
	switch {
	case z.legacy() && len(limits) > 0:
		return wrongf("limit", "it is given together with window and events, which are a limit as well; keep one of the two")
	case z.MaxEvents != nil && z.Window == 0:
		return wrongf("events", "there is no window to go with it; add one, like `window 1m`")
	case z.Window != 0 && z.MaxEvents == nil:
		return wrongf("window", "there is no number of events to go with it; add one, like `events 100`")
	case z.legacy():
		if err := (rate{*z.MaxEvents, time.Duration(z.Window)}).check(); err != nil {
			return wrong("window", err)
		}
		limits = []Limit{{MaxEvents: *z.MaxEvents, Window: z.Window}}
	case len(limits) == 0:
		return wrongf("limit", "there is none; add one, like `limit 100/1m`")
	}
	lowest := map[time.Duration]int64{}
	for _, limit := range limits {
		r := rate{limit.MaxEvents, time.Duration(limit.Window)}
		if err := r.check(); err != nil {
			return wrong("limit", err)
		}
		if n, seen := lowest[r.window]; !seen || r.n < n {
			lowest[r.window] = r.n
		}
	}
	for _, window := range slices.Sorted(maps.Keys(lowest)) {
		s.limits = append(s.limits, rate{lowest[window], window})
	}
	return nil
}

func (z *Zone) algorithm(s *settings) (err error) {
	if s.kind, err = choose[kind](z.Algorithm, kindNames); err != nil {
		return wrong("algorithm", err)
	}
	if z.Algorithm == "" && z.legacy() {
		s.kind = slidingLog
	}
	return nil
}

// shape reads the options that only some algorithms have.
func (z *Zone) shape(s *settings) error {
	s.buckets = 1
	bucket := s.kind == tokenBucket || s.kind == gcra
	switch {
	case z.Burst != nil && !bucket:
		return wrongf("burst", "%s has no burst; remove it, or write `algorithm token_bucket` or `algorithm gcra`", s.kind)
	case z.Burst != nil && *z.Burst < 1:
		return wrongf("burst", "%d is too small; write 1 or more, or remove it for a burst of the whole limit", *z.Burst)
	case z.Buckets != nil && s.kind != slidingWindow:
		return wrongf("buckets", "%s has no buckets; remove it, or write `algorithm sliding_window`", s.kind)
	case z.Buckets != nil && (*z.Buckets < 1 || *z.Buckets > mostBuckets):
		return wrongf("buckets", "%d is not between 1 and %d; write 10 for a finer window", *z.Buckets, mostBuckets)
	case z.Queue != nil && s.kind != leakyBucket:
		return wrongf("queue", "%s has no queue; remove it, or write `algorithm leaky_bucket`", s.kind)
	case z.Queue != nil && *z.Queue < 0:
		return wrongf("queue", "%d is negative; write how many requests of one key may wait, like 10", *z.Queue)
	case z.Queue == nil && s.kind == leakyBucket:
		return wrongf("algorithm", "leaky_bucket needs a queue; add how many requests of one key may wait, like `queue 10`")
	}
	if z.Burst != nil {
		s.burst = *z.Burst
	}
	if z.Buckets != nil {
		s.buckets = *z.Buckets
	}
	if z.Queue != nil {
		s.queue = *z.Queue
	}
	return nil
}

// spans checks each limit's times with the shape in place.
func (z *Zone) spans(s *settings) error {
	for _, limit := range s.limits {
		if limit.window/time.Duration(s.buckets) < minWindow {
			return wrongf("buckets", "%d buckets of a window of %s are shorter than 1ms each; write fewer", s.buckets, windowText(limit.window))
		}
		if overlong(s.burst, limit) {
			return wrongf("burst", "at %s, %d take longer than ten years to come back; write a smaller burst", limit, s.burst)
		}
		if overlong(s.queue, limit) {
			return wrongf("queue", "at %s, the last of %d would wait longer than ten years; write a shorter queue", limit, s.queue)
		}
	}
	return nil
}

// overlong says that n requests at that rate take longer than the longest window.
func overlong(n int64, at rate) bool {
	if at.n == 0 {
		return false
	}
	hi, lo := bits.Mul64(uint64(n), uint64(at.window))
	if hi >= uint64(at.n) {
		return true
	}
	span, _ := bits.Div64(hi, lo, uint64(at.n))
	return span > uint64(maxWindow)
}

// grouping is which requests share a count.
func (z *Zone) grouping(s *settings) (found []warning.Warning, err error) {
	if s.ipv4Prefix, err = prefix(z.IPv4Prefix, 32, 32); err != nil {
		return nil, wrong("ipv4_prefix", err)
	}
	if s.ipv6Prefix, err = prefix(z.IPv6Prefix, 64, 128); err != nil {
		return nil, wrong("ipv6_prefix", err)
	}
	if s.emptyKey, err = choose[emptyKey](z.EmptyKey, emptyKeyNames); err != nil {
		return nil, wrong("empty_key", err)
	}
	s.keyTemplate = strings.ReplaceAll(z.Key, "{client_ip}", reqkey.Default) // the word of Caddyfiles, also in JSON
	switch {
	case z.legacy():
		found = z.legacyKey(s)
	case z.Key == "":
		s.keyTemplate = reqkey.Default
	}
	slips, err := reqkey.Check(s.keyTemplate)
	return append(found, slips...), wrong("key", err)
}

// legacyKey keeps what keys did in the older plugin: no key and an empty key are one count for all
// requests. A placeholder that was meant for the client's address is the address here. Where map or
// another module can set the placeholder, the address stands in for it only when it is empty.
func (z *Zone) legacyKey(s *settings) (found []warning.Warning) {
	if z.EmptyKey == "" {
		s.emptyKey = emptyShare
	}
	if z.Key == "" {
		return []warning.Warning{{Code: warning.OneKey, Text: "it has no key, so all requests share one count; write `key {client_ip}` for one count a client"}}
	}
	var unsure bool
	s.keyTemplate, found, unsure = reqkey.ForAddress(s.keyTemplate)
	if unsure && z.EmptyKey == "" {
		s.emptyKey = emptyClientIP
	}
	return found
}

// prefix is a number of bits. 0 switches grouping off, which is the same as all of them.
func prefix(given *int, otherwise, all int) (int, error) {
	switch {
	case given == nil:
		return otherwise, nil
	case *given < 0 || *given > all:
		return 0, fmt.Errorf("%d is not between 0 and %d; write %d, or 0 for no grouping", *given, all, otherwise)
	case *given == 0:
		return all, nil
	}
	return *given, nil
}

// exchange is what has to do with the other nodes, and what counts.
func (z *Zone) exchange(s *settings, inherited SyncRate, hasRedis, redisEmpty bool) (err error) {
	s.syncRate = inherited
	if z.SyncRate != nil {
		s.syncRate = max(*z.SyncRate, syncLocal)
	}
	if s.syncRate >= 0 && redisEmpty {
		return wrongf("sync_rate", "%s needs Redis, and redis is off or has an empty value; give it an address, or remove sync_rate here: an inherited one falls to local without Redis", s.syncRate)
	}
	if err := checkSyncRate(z.SyncRate, hasRedis); err != nil {
		return err
	}
	s.maxKeys = defaultMaxKeys
	if z.MaxKeys != nil {
		s.maxKeys = *z.MaxKeys
	}
	if s.maxKeys == 0 {
		return wrongf("max_keys", "0 would be no bound, and there is none here; write a number up to %d, or remove it for %d", mostMaxKeys, defaultMaxKeys)
	}
	if s.maxKeys < 1 || s.maxKeys > mostMaxKeys {
		return wrongf("max_keys", "%d is not between 1 and %d; write %d", s.maxKeys, mostMaxKeys, defaultMaxKeys)
	}
	if s.onLoss, err = choose[redisLoss](z.OnRedisLoss, redisLossNames); err != nil {
		return wrong("on_redis_loss", err)
	}
	s.countDenied = z.CountDenied
	s.earlySync = z.EarlySync == nil || *z.EarlySync
	return nil
}
