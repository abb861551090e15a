package ratelimit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("rate_limit", parseGlobalOption)
	httpcaddyfile.RegisterDirective("rate_limit", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit", httpcaddyfile.After, "try_files")
}

// UnmarshalCaddyfile sets the handler up from a Caddyfile:
//
//	rate_limit [<matcher>] <rate>...
//
//	rate_limit [<matcher>] <rate>... {
//		<options of the limit and of the handler>
//	}
//
//	rate_limit [<matcher>] {
//		zone <name> {
//			# options of a limit
//			match {
//				<matchers>
//			}
//			key           <template>
//			limit         <rate>...
//			algorithm     sliding_window|fixed_window|sliding_log|token_bucket|gcra|leaky_bucket
//			burst         <requests>
//			buckets       <number>
//			queue         <requests>
//			sync_rate     local|strict|<seconds>|<duration>
//			ipv4_prefix   <bits>
//			ipv6_prefix   <bits>
//			empty_key     client_ip|skip|share|deny
//			count_denied  [on|off]
//			on_redis_loss local|divide|allow|deny
//			early_sync    [on|off]
//			max_keys      <number>
//
//			# the older plugin's words for limit
//			window        <duration>
//			events        <number>
//		}
//
//		# options of the handler
//		sync_rate       local|strict|<seconds>|<duration>
//		status          <code>
//		message         <text>
//		headers         draft|kong|github|off...
//		jitter          <share>
//		log_key         [on|off]
//		sweep_interval  <duration>
//		disable_metrics [on|off]
//
//		# the older plugin's words for sync_rate
//		distributed {
//			read_interval  <duration>
//			write_interval <duration>
//			purge_age      <duration>
//		}
//	}
//
// A rate is <number>/<window>: 100/1m, 10/s, 5/90s. zone may stand several times, and so may match, where one of them must match; every
// other option stands once. Next to a rate on the directive's own line, sync_rate is the handler's.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	p, err := parseHandler(d)
	if err != nil {
		return err
	}
	// The global options are not in sight here, so sync_rate gets the benefit of the doubt.
	if _, err := p.check(nil, true, false); err != nil {
		return err
	}
	if p.unnamed != nil {
		name, err := autoName(nil, *p.unnamed, false)
		if err != nil {
			return err
		}
		p.handler.RateLimits = map[string]*Zone{name: p.unnamed}
	}
	*h = *p.handler
	return nil
}

// parseDirective is the directive in a site, where names of unnamed limits, the names of other sites' zones and the global options are known.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if !h.Next() {
		return nil, h.ArgErr()
	}
	matcher, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	p, err := parseHandler(h.Dispenser)
	if err != nil {
		return nil, err
	}
	app, err := globalOptions(h)
	if err != nil {
		return nil, err
	}
	hasRedis, redisEmpty := app.redisAsWritten()
	zones, err := p.check(app.SyncRate, hasRedis, redisEmpty)
	if err != nil {
		return nil, err
	}
	if p.unnamed != nil {
		name, err := autoName(matcher, *p.unnamed, h.IsNamedRoute())
		if err != nil {
			return nil, err
		}
		name = state[ordinals](h, "rate_limit.ordinals").next(name)
		p.handler.RateLimits = map[string]*Zone{name: p.unnamed}
		return h.NewRoute(matcher, p.handler), nil
	}
	names := state[map[string]registered](h, "rate_limit.zones")
	for _, s := range zones {
		token := p.zones[s.name].token
		if err := (&registry{names}).add(s, at(token)); err != nil {
			return nil, placeAt(token, err)
		}
	}
	return h.NewRoute(matcher, p.handler), nil
}

// state is a map that lives as long as one adaptation.
func state[M ~map[string]V, V any](h httpcaddyfile.Helper, name string) M {
	m, ok := h.State[name].(M)
	if !ok {
		m = M{}
		h.State[name] = m
	}
	return m
}

// globalOptions are those that parseGlobalOption left, or none.
func globalOptions(h httpcaddyfile.Helper) (*App, error) {
	app := new(App)
	option, ok := h.Option("rate_limit").(httpcaddyfile.App)
	if !ok {
		return app, nil
	}
	return app, json.Unmarshal(option.Value, app)
}

// redisAsWritten says whether there is a Redis and whether one was asked for by an empty value, as far as it shows before placeholders have values.
func (a *App) redisAsWritten() (hasRedis, redisEmpty bool) {
	if a.Redis == nil {
		return false, false
	}
	empty, _ := a.Redis.checkWritten() // its error is reported at the redis option
	return !empty, empty
}

// checkWritten is resolve, as far as that can be said without the machine that the configuration is for: placeholders have their values
// and files are there only when it is loaded.
func (r *Redis) checkWritten() (empty bool, err error) {
	text, err := json.Marshal(r)
	if err != nil || r.Storage || bytes.Count(text, []byte("{")) > 1 {
		return false, err
	}
	c := *r
	c.TLSServerCertsPath, c.TLSClientCert, c.TLSClientKey = "", "", ""
	_, empty, err = c.resolve(caddy.NewReplacer())
	return empty, err
}

// parser is a Dispenser with the habits of all our blocks.
type parser struct{ *caddyfile.Dispenser }

// given are the options of one block so far.
type given map[string]caddyfile.Token

// placed is an error that tells its file and line.
type placed struct{ error }

func (e placed) Unwrap() error { return e.error }

// at is the token's place.
func at(token caddyfile.Token) string { return token.File + ":" + strconv.Itoa(token.Line) }

// placeAt adds file and line, unless the error has them.
func placeAt(token caddyfile.Token, err error) error {
	var already placed
	if errors.As(err, &already) || strings.Contains(err.Error(), ", at "+token.File+":") {
		return placed{err}
	}
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return placed{d.WrapErr(err)}
}

// options walks the block that opens here, if one does, and calls set at each option. set reads the option's values.
func (p parser) options(seen given, repeatable string, set func(option string) error) error {
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		option, token := p.Val(), p.Token()
		if first, twice := seen[option]; twice && option != repeatable {
			return placeAt(token, fmt.Errorf("%s is given twice, first at %s; keep one of them%s", option, at(first), onOneLine(option)))
		}
		if err := set(option); err != nil {
			return placeAt(token, err)
		}
		seen[option] = token
	}
	return nil
}

func onOneLine(option string) string {
	switch option {
	case "limit":
		return ", with all rates on it, like `limit 5/1m 20/1h`"
	case "headers":
		return ", with all sets on it, like `headers draft kong`"
	}
	return ""
}

// examples show how each option is written right.
var examples = map[string]string{
	"zone": "zone login { … }", "match": "match { … }", "key": "key {client_ip}", "limit": "limit 100/1m",
	"algorithm": "algorithm token_bucket", "burst": "burst 50", "buckets": "buckets 10", "queue": "queue 10", "sync_rate": "sync_rate 1s",
	"ipv4_prefix": "ipv4_prefix 24", "ipv6_prefix": "ipv6_prefix 64", "empty_key": "empty_key skip", "count_denied": "count_denied",
	"on_redis_loss": "on_redis_loss divide", "early_sync": "early_sync off", "max_keys": "max_keys 100000", "window": "window 1m", "events": "events 100",
	"status": "status 429", "message": `message "slow down"`, "headers": "headers draft", "jitter": "jitter 0.1", "log_key": "log_key",
	"sweep_interval": "sweep_interval 1m", "disable_metrics": "disable_metrics", "distributed": "distributed { … }",
	"read_interval": "read_interval 5s", "write_interval": "write_interval 5s", "purge_age": "purge_age 1m",
	"redis": "redis redis://localhost:6379", "namespace": "namespace shop", "strict_timeout": "strict_timeout 100ms", "persist": "persist /var/lib/caddy/rate_limit",
	"address": "address localhost:6379", "db": "db 0", "timeout": "timeout 1s", "pool_size": "pool_size 10",
}

// count is the error for too few or too many values.
func (p parser) count(option string) error {
	example := examples[option]
	if example == "" {
		example = option + " <value>"
	}
	return fmt.Errorf("the number of values is wrong; write it like `%s`, with quotes around a value that holds spaces", example)
}

// word is the option's one value.
func (p parser) word() (string, error) {
	option := p.Val()
	var value string
	if !p.AllArgs(&value) {
		return "", p.count(option)
	}
	return value, nil
}

// words are the option's values, at least one.
func (p parser) words() ([]string, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return nil, p.count(option)
	}
	return values, nil
}

// secret is a value that may come from an environment variable that is not set. It takes no value for an empty one.
func (p parser) secret() (string, error) {
	if p.CountRemainingArgs() == 0 {
		return "", nil
	}
	return p.word()
}

// flag is on without a value.
func (p parser) flag() (bool, error) {
	option := p.Val()
	switch values := p.RemainingArgs(); {
	case len(values) == 0, len(values) == 1 && values[0] == "on":
		return true, nil
	case len(values) == 1 && values[0] == "off":
		return false, nil
	}
	return false, fmt.Errorf("it takes on or off, or nothing for on; write `%s`", option)
}

// number is a whole number that fits into T.
func number[T int | int64](p parser) (T, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && int64(T(n)) != n:
		return 0, fmt.Errorf("the number %s is out of range; write a smaller one", clip(value))
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number; write digits only", clip(value))
	}
	return T(carried(n)), nil
}

// pointer reads into a pointer, so that 0 and nothing differ.
func pointer[T any](value T, err error) (*T, error) { return &value, err }

// duration is any Caddy duration from the shortest to the longest window.
func (p parser) duration() (caddy.Duration, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	d, err := parseWindow(value)
	if err != nil {
		return 0, err
	}
	return caddy.Duration(d), nil
}

func (p parser) syncRate() (*SyncRate, error) {
	value, err := p.word()
	if err != nil {
		return nil, err
	}
	return pointer(parseSyncRate(value))
}

// rates are the limits of a zone.
func (p parser) rates() ([]Limit, error) {
	values, err := p.words()
	if err != nil {
		return nil, err
	}
	return parseLimits(values)
}

func parseLimits(values []string) ([]Limit, error) {
	var limits []Limit
	for _, value := range values {
		r, err := parseRate(value)
		if err != nil {
			return nil, err
		}
		limits = append(limits, Limit{MaxEvents: carried(r.n), Window: caddy.Duration(r.window)})
	}
	return limits, nil
}

// carried is n as it survives Caddy's adapter, which passes numbers through float64: above 2^53 they are rounded, and the largest ones
// come out too large to load. No client reaches either number.
func carried(n int64) int64 { return min(n, 1<<53) }

// handlerParser is the directive as far as it is read.
type handlerParser struct {
	parser
	handler *Handler
	unnamed *Zone // of rates on the directive's own line
	given   given // options of the handler, and of the unnamed zone
	names   []string
	zones   map[string]zoneGiven
}

// zoneGiven is where a zone's parts stand.
type zoneGiven struct {
	token   caddyfile.Token
	options given
}

// parseHandler reads the directive from its name on. What one option contradicts in another is left to check.
func parseHandler(d *caddyfile.Dispenser) (*handlerParser, error) {
	p := &handlerParser{parser: parser{d}, handler: new(Handler), given: given{}, zones: map[string]zoneGiven{}}
	if !p.Next() {
		return nil, p.ArgErr()
	}
	start := p.Token()
	if rates := p.RemainingArgs(); len(rates) > 0 {
		limits, err := parseLimits(rates)
		if err != nil {
			return nil, placeAt(p.Token(), fmt.Errorf("parsing rate: %w", err))
		}
		p.unnamed = &Zone{Limits: limits}
		p.given["rate"] = p.Token()
	}
	if err := p.options(p.given, "zone", p.option); err != nil {
		return nil, err
	}
	if p.unnamed == nil && len(p.names) == 0 {
		return nil, placeAt(start, errors.New("there is no limit; write a rate like `rate_limit 100/1m`, or a block with `zone login` in it, and in the zone's own block `limit 5/1m`"))
	}
	return p, nil
}

// option reads one option of the directive's block.
func (p *handlerParser) option(option string) (err error) {
	h := p.handler
	switch option {
	case "zone":
		return p.zone()
	case "sync_rate":
		h.SyncRate, err = p.syncRate()
	case "status":
		h.StatusCode, err = p.status()
	case "message":
		h.Message, err = p.word()
	case "headers":
		h.Headers, err = p.words()
	case "jitter":
		h.Jitter, err = p.share()
	case "log_key":
		h.LogKey, err = p.flag()
	case "sweep_interval":
		h.SweepInterval, err = p.duration()
	case "disable_metrics":
		h.DisableMetrics, err = p.flag()
	case "distributed":
		h.Distributed = new(Distributed)
		err = p.distributed(h.Distributed)
	case "storage":
		err = errStorage
	default:
		return p.limitOption(option)
	}
	return wrong(option, err)
}

var handlerOptions = []string{"zone", "sync_rate", "status", "message", "headers", "jitter", "log_key", "sweep_interval", "disable_metrics", "distributed"}

// limitOption reads an option of a zone in the directive's block, where it is right only next to a rate on the directive's line.
func (p *handlerParser) limitOption(option string) error {
	rate := option == "limit" || option == "window" || option == "events"
	switch {
	case p.unnamed != nil && rate:
		return fmt.Errorf("%s is given next to a rate after rate_limit; write every rate after rate_limit, like `rate_limit 10/s 1000/1h`", option)
	case p.unnamed != nil:
		return p.zoneOption(p.unnamed, option, slices.Concat(handlerOptions[1:], zoneOptions))
	case slices.Contains(zoneOptions, option):
		return fmt.Errorf("%s is an option of a zone; move it into the block of a zone, like `zone login`, or write a rate after rate_limit", option)
	}
	return unknownOption(option, handlerOptions)
}

// zone reads a zone block.
func (p *handlerParser) zone() error {
	token := p.Token()
	if p.unnamed != nil {
		return errors.New("zone is given next to a rate after rate_limit; move that rate into a zone of its own, as `limit 100/1m` in the block of `zone all`")
	}
	name, err := p.word()
	if err != nil {
		return wrong("zone", err)
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("parsing zone name: %w", err)
	}
	if first, twice := p.zones[name]; twice {
		return fmt.Errorf("zone %q is given twice, first at %s; give one of them another name", name, at(first.token))
	}
	zone, options := new(Zone), given{}
	err = p.options(options, "match", func(option string) error { return p.zoneOption(zone, option, zoneOptions) })
	if err != nil {
		return fmt.Errorf("zone %q: %w", name, err)
	}
	if p.handler.RateLimits == nil {
		p.handler.RateLimits = map[string]*Zone{}
	}
	p.handler.RateLimits[name] = zone
	p.names = append(p.names, name)
	p.zones[name] = zoneGiven{token, options}
	return nil
}

var zoneOptions = []string{
	"match", "key", "limit", "algorithm", "burst", "buckets", "queue", "sync_rate", "ipv4_prefix", "ipv6_prefix", "empty_key",
	"count_denied", "on_redis_loss", "early_sync", "max_keys", "window", "events",
}

// zoneOption reads one option of a zone. others are the names that may stand there.
func (p parser) zoneOption(z *Zone, option string, others []string) (err error) {
	switch option {
	case "match":
		err = p.match(z)
	case "key":
		z.Key, err = p.key()
	case "limit":
		z.Limits, err = p.rates()
	case "algorithm":
		z.Algorithm, err = p.word()
	case "burst":
		z.Burst, err = pointer(number[int64](p))
	case "buckets":
		z.Buckets, err = pointer(number[int](p))
	case "queue":
		z.Queue, err = pointer(number[int64](p))
	case "sync_rate":
		z.SyncRate, err = p.syncRate()
	case "ipv4_prefix":
		z.IPv4Prefix, err = pointer(number[int](p))
	case "ipv6_prefix":
		z.IPv6Prefix, err = pointer(number[int](p))
	case "empty_key":
		z.EmptyKey, err = p.word()
	case "count_denied":
		z.CountDenied, err = p.flag()
	case "on_redis_loss":
		z.OnRedisLoss, err = p.word()
	case "early_sync":
		z.EarlySync, err = pointer(p.flag())
	case "max_keys":
		z.MaxKeys, err = pointer(number[int](p))
	case "window":
		z.Window, err = p.duration()
	case "events":
		z.MaxEvents, err = p.events()
	default:
		return unknownOption(option, others)
	}
	return wrong(option, err)
}

// unknownOption says which options there are, or which one it looks like.
func unknownOption(option string, others []string) error {
	if near := nearestOf(option, others); near != "" {
		return fmt.Errorf("there is no option %q here; did you mean %s?", clip(option), near)
	}
	switch {
	case option == "{":
		return errors.New("a block opens after an option that takes none; remove the braces, or write each option on its own line")
	case slices.Contains(handlerOptions, option):
		return fmt.Errorf("%s is not an option of a zone; move it out of the zone's braces, beside the zone", option)
	}
	return fmt.Errorf("there is no option %q here; the options are %s", clip(option), strings.Join(others, ", "))
}

// match adds a matcher set. One set of several must match.
func (p parser) match(z *Zone) error {
	segment := p.NextSegment()
	if err := checkMatchers(caddyfile.NewDispenser(slices.Clone(segment))); err != nil {
		return err
	}
	d := caddyfile.NewDispenser(segment)
	d.Next()
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return errors.New("it is empty; write matchers into it, like `path /login`, or remove it to match all requests")
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return nil
}

// checkMatchers looks for matchers that don't exist, for Caddy gives neither their line nor the mend.
func checkMatchers(d *caddyfile.Dispenser) error {
	const namespace = "http.matchers."
	d.Next()
	for nesting := d.Nesting(); d.NextArg() || d.NextBlock(nesting); {
		token := d.Token()
		if token.Quoted() {
			continue // an expression
		}
		d.NextSegment()
		if _, err := caddy.GetModule(namespace + token.Text); err == nil {
			continue
		}
		var known []string
		for _, module := range caddy.GetModules(strings.TrimSuffix(namespace, ".")) {
			known = append(known, module.ID.Name())
		}
		_, err := choose[int](cmp.Or(token.Text, "?"), known)
		return placeAt(token, err)
	}
	return nil
}

func (p parser) key() (string, error) {
	key, err := p.word()
	if err == nil && strings.TrimSpace(key) == "" {
		return "", errors.New("it is empty; write `key {client_ip}`")
	}
	return key, err
}

func (p parser) events() (*int64, error) {
	value, err := p.word()
	if err != nil {
		return nil, err
	}
	n, err := parseCount(value)
	return pointer(carried(n), err)
}

// status is checked here as well, since 0 in a Handler is the default.
func (p parser) status() (int, error) {
	status, err := number[int](p)
	if err != nil {
		return 0, err
	}
	return status, statusRange(status)
}

// share is a number with a fraction; its range is Handler.check's business.
func (p parser) share() (float64, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	share, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsInf(share, 0) || math.IsNaN(share) {
		return 0, fmt.Errorf("%q is not a number; write 0.1 for up to a tenth longer", clip(value))
	}
	return share, nil
}

// distributed reads the older plugin's block of that name.
func (p parser) distributed(d *Distributed) error {
	if p.NextArg() {
		return p.count("distributed")
	}
	others := []string{"read_interval", "write_interval", "purge_age"}
	return p.options(given{}, "", func(option string) (err error) {
		switch option {
		case "read_interval":
			d.ReadInterval, err = p.duration()
		case "write_interval":
			d.WriteInterval, err = p.duration()
		case "purge_age":
			d.PurgeAge, err = p.duration()
		default:
			return unknownOption(option, others)
		}
		return wrong(option, err)
	})
}

// check is Handler.settings, with file and line in its errors. The unnamed zone is the only one then, and has no name.
func (p *handlerParser) check(global *SyncRate, hasRedis, redisEmpty bool) ([]settings, error) {
	if err := p.handler.check(hasRedis, redisEmpty); err != nil {
		return nil, p.place(err, p.given, caddyfile.Token{})
	}
	if p.unnamed != nil {
		s, _, err := p.handler.zoneSettings("", p.unnamed, global, hasRedis, redisEmpty)
		if err != nil {
			return nil, p.place(err, p.given, p.given["rate"])
		}
		return []settings{s}, nil
	}
	var all []settings
	for _, name := range p.names {
		s, _, err := p.handler.zoneSettings(name, p.handler.RateLimits[name], global, hasRedis, redisEmpty)
		if err != nil {
			return nil, p.place(err, p.zones[name].options, p.zones[name].token)
		}
		all = append(all, s)
	}
	return all, nil
}

// place finds the line of the option that an error is about.
func (p parser) place(err error, options given, otherwise caddyfile.Token) error {
	var about *optionError
	if errors.As(err, &about) {
		if token, ok := options[about.option]; ok {
			return placeAt(token, err)
		}
	}
	return placeAt(otherwise, err)
}

// parseGlobalOption reads the global option:
//
//	rate_limit {
//		redis          <url>...
//		redis          storage
//		redis [simple|failover|cluster] {
//			address               <host:port>...
//			username              <name>
//			password              <secret>
//			db                    <number>
//			timeout               <duration>
//			key_prefix            <namespace>
//			master_name           <name>
//			sentinel_username     <name>
//			sentinel_password     <secret>
//			tls_enabled           [on|off]
//			tls_insecure          [on|off]
//			tls_server_certs_pem  <pem>
//			tls_server_certs_path <directory>
//			tls_client_cert       <file>
//			tls_client_key        <file>
//			tls_server_name       <name>
//			pool_size             <number>
//		}
//		sync_rate      local|strict|<seconds>|<duration>
//		namespace      <name>
//		strict_timeout <duration>
//		persist        <file>
//	}
//
// redis stands once, in one of its forms. Without a value it is no Redis: that is an environment variable that is not set.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	p := parser{d}
	if !p.Next() {
		return nil, p.ArgErr()
	}
	start := p.Token()
	if existing != nil {
		return nil, placeAt(start, errors.New("the global option rate_limit is given twice; put all options into one of them"))
	}
	if p.NextArg() {
		return nil, placeAt(start, errors.New("the global option rate_limit takes a block; a rate belongs into a site, and Redis into the block: `redis redis://localhost:6379`"))
	}
	app, options := new(App), given{}
	if err := p.options(options, "", func(option string) error { return p.appOption(app, option) }); err != nil {
		return nil, err
	}
	if err := app.check(app.redisAsWritten()); err != nil {
		return nil, p.place(err, options, start)
	}
	if err := app.checkNamespace(); err != nil {
		return nil, p.place(wrong("namespace", err), options, options["redis"])
	}
	text, err := json.Marshal(app)
	if err != nil {
		return nil, placeAt(start, err)
	}
	return httpcaddyfile.App{Name: "rate_limit", Value: text}, nil
}

// checkNamespace checks it and its other name, unless they hold placeholders.
func (a *App) checkNamespace() error {
	var prefix string
	if a.Redis != nil {
		prefix = a.Redis.KeyPrefix
	}
	if strings.Contains(a.Namespace+prefix, "{") {
		return nil
	}
	return (&App{namespace: a.Namespace}).nameNamespace(prefix)
}

// appOption reads one of the global options.
func (p parser) appOption(app *App, option string) (err error) {
	switch option {
	case "redis":
		app.Redis, err = p.redis()
	case "sync_rate":
		app.SyncRate, err = p.syncRate()
	case "namespace":
		app.Namespace, err = p.word()
	case "strict_timeout":
		app.StrictTimeout, err = p.duration()
	case "persist":
		app.Persist, err = p.word()
	default:
		return unknownOption(option, []string{"redis", "sync_rate", "namespace", "strict_timeout", "persist"})
	}
	return wrong(option, err)
}

// redis reads the option in all its forms.
func (p parser) redis() (*Redis, error) {
	r := new(Redis)
	values := p.RemainingArgs()
	switch {
	case len(values) == 1 && values[0] == "storage":
		r.Storage = true
	case len(values) == 1 && slices.Contains(redisModes, values[0]):
		r.Mode = values[0]
		return r, p.redisBlock(r)
	case len(values) == 0:
		return r, p.redisBlock(r)
	default:
		r.URL = strings.Join(values, ",")
		if strings.Trim(r.URL, ", ") == "" {
			r.URL = ""
		} else if near := nearestOf(values[0], []string{"simple", "failover", "cluster", "storage"}); near != "" {
			return nil, fmt.Errorf("there is no %q; did you mean %s?", clip(values[0]), near)
		}
	}
	_, err := r.checkWritten()
	return r, err
}

var redisModes = []string{"simple", "failover", "cluster"}

// redisBlock reads the block form.
func (p parser) redisBlock(r *Redis) error {
	err := p.options(given{}, "", func(option string) error { return p.redisOption(r, option) })
	if err != nil {
		return err
	}
	_, err = r.checkWritten()
	return err
}

// redisOption reads one option of the redis block. Where a value may come from an environment variable, none is an empty one.
func (p parser) redisOption(r *Redis, option string) (err error) {
	texts := map[string]*string{
		"username": &r.Username, "password": &r.Password, "key_prefix": &r.KeyPrefix, "master_name": &r.MasterName,
		"sentinel_username": &r.SentinelUsername, "sentinel_password": &r.SentinelPassword,
		"tls_server_certs_pem": &r.TLSServerCertsPEM, "tls_server_certs_path": &r.TLSServerCertsPath,
		"tls_client_cert": &r.TLSClientCert, "tls_client_key": &r.TLSClientKey, "tls_server_name": &r.TLSServerName,
	}
	if text, ok := texts[option]; ok {
		*text, err = p.secret()
		return wrong(option, err)
	}
	switch option {
	case "address":
		if r.Address = p.RemainingArgs(); len(r.Address) == 0 {
			r.Address = []string{""}
		}
	case "db":
		r.DB, err = number[int](p)
	case "timeout":
		r.Timeout, err = p.duration()
	case "tls_enabled":
		r.TLSEnabled, err = p.flag()
	case "tls_insecure":
		r.TLSInsecure, err = p.flag()
	case "pool_size":
		r.PoolSize, err = number[int](p)
	default:
		others := append(slices.Sorted(maps.Keys(texts)), "address", "db", "timeout", "tls_enabled", "tls_insecure", "pool_size")
		return unknownOption(option, others)
	}
	return wrong(option, err)
}

// Interface guard.
var _ caddyfile.Unmarshaler = (*Handler)(nil)
