package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

func init() {
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
//			match         @<name>|{ <matchers> }
//			except        @<name>|<cidr>...|private_ranges|{ <matchers> }
//			key           <template>
//			limit         <rate>...
//			limit_default <rate>...
//			concurrent    <requests>
//			algorithm     sliding_window|fixed_window|sliding_log|token_bucket|gcra|leaky_bucket
//			burst         <requests>
//			buckets       <number>
//			queue         <requests>
//			sync_rate     local|strict|<seconds>|<duration>
//			ipv4_prefix   <bits>
//			ipv6_prefix   <bits>
//			empty_key     client_ip|skip|share|deny
//			count_denied  [on|off]
//			count_responses <code>...|{ <response matcher> }
//			cost          <number>|<placeholder>|bytes [* <factor>]
//			cost_default  <number>
//			response_cost header <field>|json <path>...|bytes|<placeholder> [* <factor>]
//			response_cost_default <number>
//			on_redis_loss local|divide|allow|deny
//			early_sync    [on|off]
//			regions       [on|off]
//			bandwidth     <size>/s
//			max_keys      <number>
//			headers       draft|kong|github|off...
//			enforce       <share>|off
//			ban           <duration> [after <rate>]
//			reserve       @<name> <share>
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
//		disable_placeholders [on|off]
//
//		# the older plugin's words for sync_rate
//		distributed {
//			read_interval  <duration>
//			write_interval <duration>
//			purge_age      <duration>
//		}
//	}
//
// A rate is <number>/<window>: 100/1m, 10/s, 5/90s. In the limit of a zone the number may be a
// placeholder, and limit_default has a number for each such window. <matchers> are one a line, as
// in the definition of a named matcher. zone may stand several times, and so may match, where one
// of them must match, except, where one of them is enough, reserve, and cost and response_cost,
// whose lines add up; every other option stands once. Next to a rate on the directive's own line,
// sync_rate and headers are the handler's. A share is 25% or 0.25.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	p, err := parseHandler(d, nil, "")
	if err != nil {
		return err
	}
	// The global options are not in sight here, so sync_rate is not rejected for want of Redis.
	zones, err := p.check(globals{hasRedis: true})
	if err != nil {
		return err
	}
	if p.unnamed != nil {
		shape, err := p.unnamed.identity(nil, false)
		if err != nil {
			return err
		}
		p.handler.RateLimits = map[string]*Zone{config.HashedName(config.NameOf("", zones[0].Limits), shape): p.unnamed}
	}
	*h = *p.handler
	return nil
}

// parseDirective reads the directive in a site. There the names of unnamed limits and of other
// sites' zones are known, and so are the global options.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	alike := alikeIn(h) // before the matcher is taken out
	if !h.Next() {
		return nil, h.ArgErr()
	}
	written, err := matcherToken(h.Dispenser)
	if err != nil {
		return nil, err
	}
	matcher, err := h.ExtractMatcherSet()
	if err != nil {
		_, err = config.NamedMatcher(h.Token(), "", &h) // Caddy's own error has no line
		return nil, placeAt(h.Token(), err)
	}
	p, err := parseHandler(h.Dispenser, &h, written)
	if err != nil {
		return nil, err
	}
	app, err := globalApp(h)
	if err != nil {
		return nil, err
	}
	zones, err := p.check(app.globalsAsWritten())
	if err != nil {
		return nil, err
	}
	if p.unnamed == nil {
		return h.NewRoute(matcher, p.handler), p.register(h, zones)
	}
	name, err := nameUnnamed(h, p.unnamed, p.given["rate"], zones[0].Limits, matcher, alike)
	if err != nil {
		return nil, placeAt(p.given["rate"], err)
	}
	p.handler.RateLimits = map[string]*Zone{name: p.unnamed}
	return h.NewRoute(matcher, p.handler), nil
}

// matcherToken returns the directive's matcher as it is written, "" for none. It rejects a rate
// without its number in its place. The directive's name is the current token.
func matcherToken(d *caddyfile.Dispenser) (string, error) {
	args := d.CountRemainingArgs()
	if args == 0 {
		return "", nil
	}
	d.NextArg()
	token := d.Token()
	d.Prev()
	if err := config.NumberMissing(token.Text, args == 1); err != nil {
		return "", placeAt(token, err)
	}
	if token.Text == "*" || strings.HasPrefix(token.Text, "/") || strings.HasPrefix(token.Text, "@") {
		return token.Text, nil
	}
	return "", nil
}

// register notes the names of the zones and rejects one that is taken by another limit.
func (p *handlerParser) register(h httpcaddyfile.Helper, zones []config.Settings) error {
	names := perAdaptation[config.Registry](h, "rate_limit.zones")
	unnamed := perAdaptation[map[string]caddyfile.Token](h, "rate_limit.unnamed")
	for i, s := range zones {
		token := p.zones[i].token
		if first, taken := unnamed[s.Name]; taken {
			return placeAt(token, fmt.Errorf("zone name %q is that of the unnamed limit at %s; write another one, like login", s.Name, placeOf(first)))
		}
		if err := names.Add(s, placeOf(token)); err != nil {
			return placeAt(token, err)
		}
	}
	return nil
}

// globalApp returns the options that parseGlobalOption left, or none.
func globalApp(h httpcaddyfile.Helper) (*App, error) {
	app := new(App)
	option, ok := h.Option("rate_limit").(httpcaddyfile.App)
	if !ok {
		return app, nil
	}
	return app, json.Unmarshal(option.Value, app)
}

// handlerParser is the directive as far as it is read.
type handlerParser struct {
	parser
	site    *httpcaddyfile.Helper // nil where there is none, and so no named matchers
	handler *Handler
	unnamed *Zone        // of rates on the directive's own line; then it is the only one
	given   optionTokens // options of the handler, and of the unnamed zone
	zones   []parsedZone
}

// parsedZone is a zone, "" for the unnamed one, and where its parts stand.
type parsedZone struct {
	name  string
	zone  *Zone
	token caddyfile.Token
	given optionTokens
}

// parseHandler reads the directive from its name on, in a site unless that is nil. Its matcher was
// taken out. What one option contradicts in another is left to check.
func parseHandler(d *caddyfile.Dispenser, site *httpcaddyfile.Helper, matcher string) (*handlerParser, error) {
	p := &handlerParser{parser: parser{d}, site: site, handler: new(Handler), given: optionTokens{}}
	if !p.Next() {
		return nil, p.ArgErr()
	}
	start := p.Token()
	if args := p.RemainingArgs(); len(args) > 0 {
		unnamed := new(Zone)
		limits, err := parseRates(args, unnamed.sized(config.ParseRate))
		if misplaced := config.NoRateFirst(matcher, args); misplaced != nil {
			err = misplaced
		}
		if err != nil {
			return nil, placeAt(p.Token(), fmt.Errorf("parsing rate: %w", err))
		}
		unnamed.Limits = limitsOf(limits)
		p.unnamed = unnamed
		p.given["rate"] = p.Token()
		p.zones = []parsedZone{{"", p.unnamed, p.Token(), p.given}}
	}
	if err := p.options(p.given, p.option, "zone", "match", "except", "reserve", "cost", "response_cost"); err != nil {
		return nil, err
	}
	if z := p.unnamed; z != nil && z.countsUnits() && len(z.Headers) == 0 {
		z.Headers = p.handler.Headers // which stand in the limit's own block
	}
	if len(p.zones) == 0 {
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
		if h.StatusCode, err = whole[int](p.parser); err == nil {
			err = statusRange(h.StatusCode) // here as well: 0 in a Handler is the default
		}
	case "message":
		h.Message, err = p.word()
	case "headers":
		h.Headers, err = p.words()
	case "jitter":
		h.Jitter, err = one(p.parser, config.ParseShare)
	case "log_key":
		h.LogKey, err = p.flag()
	case "sweep_interval":
		h.SweepInterval, err = p.duration()
	case "disable_metrics":
		h.DisableMetrics, err = p.flag()
	case "disable_placeholders":
		h.DisablePlaceholders, err = p.flag()
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

// limitOption reads an option of a zone in the directive's block, where it is right only next to a
// rate on the directive's line.
func (p *handlerParser) limitOption(option string) error {
	rate := option == "limit" || option == "window" || option == "events"
	switch {
	case p.unnamed != nil && option == "limit_default":
		return errors.New("limit_default is given next to a rate after rate_limit; a limit that comes with the request needs a zone, like `zone plan`, with `limit {plan}/1m` in its block")
	case p.unnamed != nil && rate:
		return fmt.Errorf("%s is given next to a rate after rate_limit; write every rate after rate_limit, like `rate_limit 10/s 1000/1h`", option)
	case p.unnamed != nil:
		return p.zoneOption(p.unnamed, option, config.Unnamed)
	case config.Zone.Has(option):
		return fmt.Errorf("%s is an option of a zone; move it into the block of a zone, like `zone login`, or write a rate after rate_limit", option)
	}
	return config.UnknownOption(option, config.Handler)
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
	if err := config.CheckName(name); err != nil {
		return fmt.Errorf("parsing zone name: %w", err)
	}
	if i := slices.IndexFunc(p.zones, func(z parsedZone) bool { return z.name == name }); i >= 0 {
		return fmt.Errorf("zone %q is given twice, first at %s; give one of them another name", name, placeOf(p.zones[i].token))
	}
	z := parsedZone{name, new(Zone), token, optionTokens{}}
	err = p.options(z.given, func(option string) error { return p.zoneOption(z.zone, option, config.Zone) }, "match", "except", "reserve", "cost", "response_cost")
	if err == nil {
		if err = z.zone.setDefaults(); err != nil {
			err = p.place(err, z.given, token)
		}
	}
	if err != nil {
		return fmt.Errorf("zone %q: %w", name, err)
	}
	if p.handler.RateLimits == nil {
		p.handler.RateLimits = map[string]*Zone{}
	}
	p.handler.RateLimits[name] = z.zone
	p.zones = append(p.zones, z)
	return nil
}

// zoneOption reads one option of a zone, in this block.
func (p *handlerParser) zoneOption(z *Zone, option string, block config.Block) (err error) {
	if known, err := p.plainOption(z, option); known {
		return wrong(option, err)
	}
	switch option {
	case "match":
		err = p.match(z)
	case "except":
		err = p.except(z)
	case "key":
		z.Key, err = p.key()
	case "limit":
		var all []config.Rate
		all, err = p.rates(z.sized(config.ParseLimit))
		z.Limits = limitsOf(all)
	case "limit_default":
		z.defaults, err = p.rates(config.ParseRate)
	case "sync_rate":
		z.SyncRate, err = p.syncRate()
	case "count_denied":
		z.CountDenied, err = p.flag()
	case "count_responses":
		z.CountResponses, err = p.responses()
	case "cost", "response_cost":
		err = p.cost(z, option)
	case "cost_default":
		z.CostDefault, err = pointer(p.size(z))
	case "response_cost_default":
		z.ResponseCostDefault, err = pointer(p.size(z))
	case "bandwidth":
		z.Bandwidth, err = one(p.parser, config.ParseBandwidth)
	case "headers":
		z.Headers, err = p.words()
	case "enforce":
		z.Enforce, err = pointer(one(p.parser, config.ParseEnforcement))
	case "ban":
		z.Ban, err = p.ban()
	case "reserve":
		err = p.reserve(z)
	case "window":
		z.Window, err = p.duration()
	case "events":
		z.MaxEvents, err = p.events()
	default:
		return config.UnknownOption(option, block)
	}
	return wrong(option, err)
}

// plainOption reads an option of a zone that is one word, number or flag. known is false for
// others.
func (p *handlerParser) plainOption(z *Zone, option string) (known bool, err error) {
	words := map[string]*string{"algorithm": &z.Algorithm, "empty_key": &z.EmptyKey, "on_redis_loss": &z.OnRedisLoss}
	requests := map[string]**int64{"concurrent": &z.Concurrent, "burst": &z.Burst, "queue": &z.Queue}
	numbers := map[string]**int{"buckets": &z.Buckets, "ipv4_prefix": &z.IPv4Prefix, "ipv6_prefix": &z.IPv6Prefix, "max_keys": &z.MaxKeys}
	flags := map[string]**bool{"early_sync": &z.EarlySync, "regions": &z.Regions}
	switch {
	case words[option] != nil:
		*words[option], err = p.word()
	case requests[option] != nil:
		*requests[option], err = pointer(whole[int64](p.parser))
	case numbers[option] != nil:
		*numbers[option], err = pointer(whole[int](p.parser))
	case flags[option] != nil:
		*flags[option], err = pointer(p.flag())
	default:
		return false, nil
	}
	return true, err
}

// match adds a matcher set. One set of several must match.
func (p *handlerParser) match(z *Zone) error {
	set, err := config.ParseMatchers(p.Dispenser, p.site)
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return errors.New("it is empty; write matchers into it, like `path /login`, or remove it to match all requests")
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return nil
}

// except adds a matcher set of requests that are not limited.
func (p *handlerParser) except(z *Zone) error {
	set, err := config.ParseOrAddresses(p.Dispenser, p.site)
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return errors.New("it is empty; write what is not limited, like `except private_ranges`, `except 203.0.113.0/24`, `except @internal`, or matchers in a block")
	}
	z.ExceptRaw = append(z.ExceptRaw, set)
	return nil
}

// reserve adds a share that is kept for what a named matcher matches.
func (p *handlerParser) reserve(z *Zone) error {
	if p.CountRemainingArgs() != 2 {
		return p.count("reserve")
	}
	p.NextArg()
	of := p.Token()
	if !strings.HasPrefix(of.Text, "@") {
		return fmt.Errorf("%s is no named matcher; write for which requests it is, and how much, like `reserve @paying 20%%`", spelling.Clip(of.Text))
	}
	p.NextArg()
	share, err := config.ParseShare(p.Val())
	if err != nil {
		return err
	}
	set, err := config.NamedMatcher(of, "reserve", p.site)
	if err != nil {
		return err
	}
	z.Reserve = append(z.Reserve, Reserve{Share: share, MatcherSetsRaw: caddyhttp.RawMatcherSets{set}})
	return nil
}

// mistypedClass matches classes of statuses that lack an x, or have large ones.
var mistypedClass = regexp.MustCompile(`(?i)^([1-5])xx?$`)

// responses reads which responses count: codes and classes, or Caddy's block of a response matcher.
func (p parser) responses() (*caddyhttp.ResponseMatcher, error) {
	m := new(caddyhttp.ResponseMatcher)
	codes := p.RemainingArgs()
	for _, code := range codes {
		digits := code
		if len(code) == 3 && strings.HasSuffix(code, "xx") {
			digits = code[:1]
		}
		status, err := strconv.Atoi(digits)
		if m := mistypedClass.FindStringSubmatch(code); err != nil && m != nil {
			return nil, fmt.Errorf("there is no %q; did you mean %sxx?", code, m[1])
		}
		if err != nil || len(code) != 3 {
			return nil, fmt.Errorf("%q is neither a status nor a class of them; write codes and classes like `count_responses 401 403` or `count_responses 4xx`, or a block with `status` and `header` in it", spelling.Clip(code))
		}
		m.StatusCode = append(m.StatusCode, status)
	}
	if len(codes) > 0 {
		return m, nil
	}
	named := map[string]caddyhttp.ResponseMatcher{}
	if err := caddyhttp.ParseNamedResponseMatcher(p.NewFromNextSegment(), named); err != nil {
		return nil, err
	}
	for _, only := range named {
		*m = only
	}
	return m, nil
}

func (p parser) events() (*int64, error) {
	n, err := one(p, config.ParseCount)
	return pointer(carried(n), err)
}

// cost adds an amount to what a request costs, or a source to what its response says that it has
// cost.
func (p *handlerParser) cost(z *Zone, option string) error {
	values, err := p.words()
	if err != nil {
		return err
	}
	if option == "response_cost" {
		t, err := config.ParseResponseTerm(values)
		z.ResponseCost = append(z.ResponseCost, t)
		return err
	}
	t, sized, err := config.ParseCostTerm(values)
	if z.Cost = append(z.Cost, t); sized {
		z.size = values[0]
	}
	return err
}

// size reads a whole number, or a size.
func (p *handlerParser) size(z *Zone) (int64, error) {
	if p.CountRemainingArgs() == 1 {
		value := p.RemainingArgs()[0]
		if n, ok := config.ParseSize(value); ok {
			z.size = value
			return carried(n), nil
		}
		p.Prev()
	}
	return whole[int64](p.parser)
}

// sized returns a function that reads rates, of which the number may be a size.
func (z *Zone) sized(parse func(string) (config.Rate, error)) func(string) (config.Rate, error) {
	return func(s string) (config.Rate, error) {
		text, size := config.SizeOf(s)
		if size != "" {
			z.size = size
		}
		return parse(text)
	}
}

// key reads a template.
func (p parser) key() (string, error) {
	value, err := p.word()
	if err == nil && strings.TrimSpace(value) == "" {
		err = errors.New("it is empty; write `key {client_ip}`")
	}
	return value, err
}

// ban reads how long a key is banned, and after how many denied requests.
func (p parser) ban() (*Ban, error) {
	values, err := p.words()
	if err != nil {
		return nil, err
	}
	b, err := config.ParseBan(values)
	ban := &Ban{For: caddy.Duration(b.For)}
	if b.After.Window != 0 {
		ban.After = &BanAfter{carried(b.After.Limit), caddy.Duration(b.After.Window)}
	}
	return ban, err
}

// distributed reads the older plugin's block of that name.
func (p parser) distributed(d *Distributed) error {
	if p.NextArg() {
		return p.count("distributed")
	}
	return p.options(optionTokens{}, func(option string) (err error) {
		switch option {
		case "read_interval":
			d.ReadInterval, err = p.duration()
		case "write_interval":
			d.WriteInterval, err = p.duration()
		case "purge_age":
			d.PurgeAge, err = p.duration()
		default:
			return config.UnknownOption(option, config.Distributed)
		}
		return wrong(option, err)
	})
}

// check does what Handler.settings does, with file and line in its errors. The settings are in the
// order of p.zones.
func (p *handlerParser) check(g globals) (all []config.Settings, err error) {
	if err := p.handler.check(g); err != nil {
		return nil, p.place(err, p.given, caddyfile.Token{})
	}
	for _, z := range p.zones {
		s, _, err := p.handler.zoneSettings(z.name, z.zone, g)
		if err != nil {
			return nil, p.place(err, z.given, z.token)
		}
		z.zone.Source = z.place()
		all = append(all, s)
	}
	return all, nil
}

// place returns where a zone stands, for warnings: most are about keys.
func (z parsedZone) place() string {
	if key, ok := z.given["key"]; ok {
		return placeOf(key)
	}
	return placeOf(z.token)
}

// Interface guard.
var _ caddyfile.Unmarshaler = (*Handler)(nil)
