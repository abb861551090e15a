package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("rate_limit", parseGlobalOption)
	httpcaddyfile.RegisterDirective("rate_limit", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("rate_limit", httpcaddyfile.After, "try_files")
}

// UnmarshalCaddyfile sets the handler up from a Caddyfile. docs/configuration.md#grammar has all:
//
//	rate_limit [<matcher>] [<rate>...] {
//		<options>
//	}
//
// The tables of internal/config have the options.
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
	alike := config.AlikeIn(h) // before the matcher is taken out
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
	shape, err := p.unnamed.identity(matcher, h.IsNamedRoute())
	if err != nil {
		return nil, err
	}
	name, err := config.NameUnnamed(h, shape, p.given["rate"], zones[0].Limits, alike)
	if err != nil {
		return nil, placeAt(p.given["rate"], err)
	}
	p.handler.RateLimits = map[string]*Zone{name: p.unnamed}
	return h.NewRoute(matcher, p.handler), nil
}

// identity returns what tells limits with the same rates apart: which requests they count and by
// what. Named routes are adapted apart from sites, without knowing what names are taken there, so
// they are part of it for the case that the site is unknown.
func (z *Zone) identity(matcher caddy.ModuleMap, namedRoute bool) ([]byte, error) {
	fields := map[string]any{"matcher": matcher, "named_route": namedRoute}
	for _, o := range config.Zone.Options {
		if o.Is&config.Tells != 0 && isGiven(z, o) {
			fields["zone."+o.Name] = fieldOf(z, o.Field())
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("naming the limit: %w", err)
	}
	return text, nil
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
	names := config.PerAdaptation[config.Registry](h, "rate_limit.zones")
	unnamed := config.PerAdaptation[map[string]caddyfile.Token](h, "rate_limit.unnamed")
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
	p := &handlerParser{parser: parser{Dispenser: d, site: site}, handler: new(Handler), given: optionTokens{}}
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
	if err := p.options(p.given, p.option); err != nil {
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

// option reads one option of the directive's block. Those of a zone are right there only next to a
// rate on the directive's line.
func (p *handlerParser) option(option string) error {
	h := p.handler
	if config.Handler.Has(option) {
		return p.set(config.Handler, option, h, map[string]func() error{
			"zone": p.zone,
			"status": func() (err error) {
				if h.StatusCode, err = whole[int](p.parser); err == nil {
					err = statusRange(h.StatusCode) // here as well: 0 in a Handler is the default
				}
				return err
			},
			"distributed": func() error {
				h.Distributed = new(Distributed)
				return p.distributed(h.Distributed)
			},
		})
	}
	rate := option == "limit" || option == "window" || option == "events"
	switch {
	case option == "storage":
		return wrong(option, errStorage)
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
	err = p.options(z.given, func(option string) error { return p.zoneOption(z.zone, option, config.Zone) })
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
func (p parser) zoneOption(z *Zone, option string, block config.Block) error {
	return p.set(block, option, z, map[string]func() error{
		"match":                 func() error { return p.match(z) },
		"except":                func() error { return p.except(z) },
		"key":                   func() error { return into(&z.Key)(p.key()) },
		"limit":                 func() error { return p.limit(z) },
		"limit_default":         func() error { return into(&z.defaults)(p.rates(config.ParseRate)) },
		"count_responses":       func() error { return into(&z.CountResponses)(p.responses("count_responses 401 403", "4xx")) },
		"forgive_responses":     func() error { return into(&z.ForgiveResponses)(p.responses("forgive_responses 303", "3xx")) },
		"cost":                  func() error { return p.cost(z) },
		"response_cost":         func() error { return p.responseCost(z) },
		"cost_default":          func() error { return into(&z.CostDefault)(pointer(p.size(z))) },
		"response_cost_default": func() error { return into(&z.ResponseCostDefault)(pointer(p.size(z))) },
		"enforce":               func() error { return into(&z.Enforce)(pointer(one(p, config.ParseEnforcement))) },
		"ban":                   func() error { return into(&z.Ban)(p.ban()) },
		"calendar":              func() error { return into(&z.Calendar)(p.calendar()) },
		"reserve":               func() error { return p.reserve(z) },
		"events":                func() error { return into(&z.MaxEvents)(p.events()) },
	})
}

// limit reads the rates of a zone.
func (p parser) limit(z *Zone) error {
	all, err := p.rates(z.sized(config.ParseLimit))
	z.Limits = limitsOf(all)
	return err
}

// match adds a matcher set. One set of several must match.
func (p parser) match(z *Zone) error {
	set, err := config.ParseMatchers(p.Dispenser, p.site)
	if err == nil && len(set) == 0 {
		err = errors.New("it is empty; write matchers into it, like `path /login`, or remove it to match all requests")
	}
	z.MatcherSetsRaw = append(z.MatcherSetsRaw, set)
	return err
}

// except adds a matcher set of requests that are not limited.
func (p parser) except(z *Zone) error {
	set, err := config.ParseOrAddresses(p.Dispenser, p.site)
	if err == nil && len(set) == 0 {
		err = errors.New("it is empty; write what is not limited, like `except private_ranges`, `except 203.0.113.0/24`, `except @internal`, or matchers in a block")
	}
	z.ExceptRaw = append(z.ExceptRaw, set)
	return err
}

// reserve adds a share that is kept for what a named matcher matches.
func (p parser) reserve(z *Zone) error {
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

// responses reads responses of an option, of which example is a line, and class a class: codes and
// classes, or Caddy's block of a response matcher.
func (p parser) responses(example, class string) (*caddyhttp.ResponseMatcher, error) {
	m := new(caddyhttp.ResponseMatcher)
	option, _, _ := strings.Cut(example, " ")
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
			return nil, fmt.Errorf("%q is neither a status nor a class of them; write codes and classes like `%s` or `%s %s`, or a block with `status` and `header` in it", spelling.Clip(code), example, option, class)
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
	return pointer(config.Carried(n), err)
}

// cost adds an amount to what a request costs.
func (p parser) cost(z *Zone) error {
	values, err := p.words()
	if err != nil {
		return err
	}
	t, sized, err := config.ParseCostTerm(values)
	if z.Cost = append(z.Cost, t); sized {
		z.size = values[0]
	}
	return err
}

// responseCost adds a source to what its response says that a request has cost.
func (p parser) responseCost(z *Zone) error {
	t, err := many(p, config.ParseResponseTerm)
	z.ResponseCost = append(z.ResponseCost, t)
	return err
}

// size reads a whole number, or a size.
func (p parser) size(z *Zone) (int64, error) {
	if p.CountRemainingArgs() == 1 {
		value := p.RemainingArgs()[0]
		if n, ok := config.ParseSize(value); ok {
			z.size = value
			return config.Carried(n), nil
		}
		p.Prev()
	}
	return whole[int64](p)
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

// ban reads how long a key is banned, after how many denied requests, and up to which length that
// grows.
func (p parser) ban() (*Ban, error) {
	b, err := many(p, config.ParseBan)
	ban := &Ban{For: caddy.Duration(b.For), Growing: caddy.Duration(b.Growing)}
	if b.After.Window != 0 {
		ban.After = &BanAfter{config.Carried(b.After.Limit), caddy.Duration(b.After.Window)}
	}
	return ban, err
}

// calendar reads by which days, weeks, months and years begin.
func (p parser) calendar() (*config.Calendar, error) {
	return pointer(many(p, config.ParseCalendar))
}

// distributed reads the older plugin's block of that name.
func (p parser) distributed(d *Distributed) error {
	if p.NextArg() {
		return p.count("distributed")
	}
	return p.options(optionTokens{}, func(option string) error { return p.set(config.Distributed, option, d, nil) })
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

// parseGlobalOption reads the global option. redis stands once, in one of its forms. off is no
// Redis, and so is no value: that is an environment variable that is not set, and logged as a
// warning. persist without a value is storage, and with an empty one off, for the same reason.
// regions stand in the place of redis: the block of a region is that of redis.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	p := parser{Dispenser: d}
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
	app, options := new(App), optionTokens{}
	if err := p.options(options, func(option string) error { return p.appOption(app, option) }); err != nil {
		return nil, err
	}
	if err := app.check(app.globalsAsWritten()); err != nil {
		return nil, p.place(err, options, start)
	}
	if err := app.Regions.check(app.Redis, nil); err != nil {
		return nil, p.place(wrong("regions", err), options, start)
	}
	if err := redisconn.CheckNamespace(app.Namespace); err != nil && !strings.Contains(app.Namespace, "{") {
		return nil, p.place(wrong("namespace", err), options, start)
	}
	text, err := json.Marshal(app)
	if err != nil {
		return nil, placeAt(start, err)
	}
	return httpcaddyfile.App{Name: "rate_limit", Value: text}, nil
}

// appOption reads one of the global options.
func (p parser) appOption(app *App, option string) error {
	return p.set(config.Global, option, app, map[string]func() error{
		"redis":   func() error { return into(&app.Redis)(p.redis()) },
		"regions": func() error { return into(&app.Regions)(p.regions()) },
		"persist": func() (err error) {
			if app.Persist, err = p.wordOr(lifecycle.InStorage); err == nil {
				err = lifecycle.CheckPersist(app.Persist)
			}
			return err
		},
	})
}

// regions reads the block of that name.
func (p parser) regions() (*Regions, error) {
	r := &Regions{Redis: map[string]*redisconn.Options{}}
	return r, p.options(optionTokens{}, func(option string) error {
		if option == "region" {
			return p.region(r)
		}
		return p.set(config.Regions, option, r, nil)
	})
}

// region reads one of the regions.
func (p parser) region(r *Regions) (err error) {
	if !p.NextArg() {
		return wrong("region", p.count("region"))
	}
	name := p.Val()
	if r.Redis[name] != nil {
		return wrongf("region", "%s is given twice; keep one of them", spelling.Clip(name))
	}
	r.Redis[name], err = p.redis()
	return wrong("region "+spelling.Clip(name), err)
}

// redis reads the option in all its forms.
func (p parser) redis() (*redisconn.Options, error) {
	r, values := new(redisconn.Options), p.RemainingArgs()
	switch {
	case len(values) == 0, len(values) == 1 && slices.Contains(redisModes, values[0]):
		r.Mode = strings.Join(values, "")
		p.mayLack = true
		if err := p.options(optionTokens{}, func(option string) error { return p.set(config.Redis, option, r, nil) }); err != nil {
			return nil, err
		}
	case len(values) == 1 && values[0] == "storage":
		r.Storage = true
	case len(values) == 1 && values[0] == redisconn.Off:
		r.URL = redisconn.Off
	case len(values) > 1 && slices.Contains(values, redisconn.Off):
		return nil, errors.New("off stands alone; remove it, or the other values")
	default:
		r.URL = strings.Join(values, ",")
		if strings.Trim(r.URL, ", ") == "" {
			r.URL = ""
		} else if near := spelling.Nearest(values[0], append(redisModes, "storage", redisconn.Off)); near != "" {
			return nil, fmt.Errorf("there is no %q; did you mean %s?", spelling.Clip(values[0]), near)
		}
	}
	_, _, err := r.ResolveAsWritten()
	return r, err
}

var redisModes = []string{string(redisconn.Simple), "sentinel", string(redisconn.Failover), string(redisconn.Cluster)}

// parser reads options and their values.
type parser struct {
	*caddyfile.Dispenser
	site *httpcaddyfile.Helper // nil where there is none, and so no named matchers
	// mayLack is set where a value may come from an environment variable, so that none is an empty
	// one.
	mayLack bool
}

// optionTokens are the options of one block so far, and where they stand.
type optionTokens map[string]caddyfile.Token

// place adds the place of the option that an error is about.
func (p parser) place(err error, options optionTokens, otherwise caddyfile.Token) error {
	var about *optionError
	if errors.As(err, &about) {
		if token, ok := options[about.option]; ok {
			return placeAt(token, err)
		}
	}
	return placeAt(otherwise, err)
}

// options reads the block that opens here, if one does. It calls set at each option, and set reads
// the values. Only options that repeat may stand several times.
func (p parser) options(seen optionTokens, set func(option string) error) error {
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		option, token := p.Val(), p.Token()
		if first, twice := seen[option]; twice && !config.IsRepeatable(option) {
			return placeAt(token, fmt.Errorf("%s is given twice, first at %s; keep one of them%s", option, placeOf(first), onOneLine(option)))
		}
		if err := set(option); err != nil {
			return placeAt(token, err)
		}
		seen[option] = token
	}
	return nil
}

// set reads an option of a block into its field of a struct that JSON is read into as well: as one
// of these functions does, else by the field's type.
func (p parser) set(block config.Block, option string, of any, readers map[string]func() error) error {
	o := block.Find(option)
	switch {
	case o == nil:
		return config.UnknownOption(option, block)
	case option == "zone": // whose errors name it
		return readers[option]()
	case readers[option] != nil:
		return wrong(option, readers[option]())
	}
	return wrong(option, p.value(fieldOf(of, o.Field())))
}

// fieldOf returns a pointer to the field of a struct that has a name in JSON.
func fieldOf(of any, name string) any {
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return v.Field(i).Addr().Interface()
		}
	}
	return nil
}

// isGiven reports whether a zone has an option.
func isGiven(z *Zone, o config.Option) bool {
	return !reflect.ValueOf(fieldOf(z, o.Field())).Elem().IsZero()
}

// value reads the values of an option by the type of what they are read into.
func (p parser) value(into any) (err error) {
	lacks := p.mayLack && p.CountRemainingArgs() == 0
	switch f := into.(type) {
	case *string:
		if lacks {
			return nil
		}
		*f, err = p.word()
	case *[]string:
		if lacks {
			*f = []string{""}
			return nil
		}
		*f, err = p.words()
	case *bool:
		*f, err = p.flag()
	case **bool:
		*f, err = pointer(p.flag())
	case *int:
		*f, err = whole[int](p)
	case **int:
		*f, err = pointer(whole[int](p))
	case **int64:
		*f, err = pointer(whole[int64](p))
	case *float64:
		*f, err = one(p, config.ParseShare)
	case *caddy.Duration:
		var d time.Duration
		d, err = one(p, config.ParseWindow)
		*f = caddy.Duration(d)
	case **config.SyncRate:
		*f, err = pointer(one(p, config.ParseSyncRate))
	case *config.Bandwidth:
		*f, err = one(p, config.ParseBandwidth)
	default:
		panic(fmt.Sprintf("no way to read a %T", into))
	}
	return err
}

func onOneLine(option string) string {
	switch option {
	case "limit":
		return ", with all rates on it, like `limit 5/1m 20/1h`"
	case "headers":
		return ", with all sets on it, like `headers ietf kong`"
	}
	return ""
}

// count returns the error for too few or too many values.
func (p parser) count(option string) error {
	return fmt.Errorf("the number of values is wrong; write it like `%s`, with quotes around a value that holds spaces", config.ExampleOf(option))
}

// word reads the option's one value.
func (p parser) word() (string, error) {
	option := p.Val()
	var value string
	if !p.AllArgs(&value) {
		return "", p.count(option)
	}
	return value, nil
}

// one reads the option's one value by parse.
func one[T any](p parser, parse func(string) (T, error)) (value T, err error) {
	text, err := p.word()
	if err != nil {
		return value, err
	}
	return parse(text)
}

// words reads the option's values, at least one.
func (p parser) words() ([]string, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return nil, p.count(option)
	}
	return values, nil
}

// many reads the option's values by parse.
func many[T any](p parser, parse func([]string) (T, error)) (value T, err error) {
	values, err := p.words()
	if err != nil {
		return value, err
	}
	return parse(values)
}

// wordOr reads the option's one value, or returns what no value stands for.
func (p parser) wordOr(none string) (string, error) {
	if p.CountRemainingArgs() == 0 {
		return none, nil
	}
	return p.word()
}

// flag reads on or off, and no value as on.
func (p parser) flag() (bool, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return true, nil
	}
	if len(values) > 1 || values[0] == "" {
		return false, fmt.Errorf("it takes on or off, or nothing for on; write `%s`", option)
	}
	i, err := config.ChooseName[int](values[0], []string{"on", "off"})
	return err == nil && i == 0, err
}

// whole reads a whole number that fits into T.
func whole[T int | int64](p parser) (T, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && int64(T(n)) != n:
		return 0, fmt.Errorf("the number %s is out of range; write a smaller one", spelling.Clip(value))
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number; write digits only", spelling.Clip(value))
	}
	return T(config.Carried(n)), nil
}

// pointer returns a pointer to a value, so that 0 and nothing differ.
func pointer[T any](value T, err error) (*T, error) { return &value, err }

// into sets what a function has returned.
func into[T any](to *T) func(T, error) error {
	return func(value T, err error) error {
		*to = value
		return err
	}
}

// rates reads values as rates.
func (p parser) rates(parse func(string) (config.Rate, error)) (all []config.Rate, err error) {
	return many(p, func(values []string) ([]config.Rate, error) { return parseRates(values, parse) })
}

func parseRates(values []string, parse func(string) (config.Rate, error)) (all []config.Rate, err error) {
	for _, value := range values {
		r, err := parse(value)
		if err != nil {
			return nil, err
		}
		r.Limit = config.Carried(r.Limit)
		all = append(all, r)
	}
	return all, nil
}

// limitsOf returns rates as the limits of a zone.
func limitsOf(all []config.Rate) (limits []Limit) {
	for _, r := range all {
		limits = append(limits, Limit{MaxEvents: &config.Events{Number: r.Limit, From: r.From}, Window: config.Window(r.Window)})
	}
	return limits
}

// placed is an error whose text names its file and line.
type placed struct{ error }

func (e placed) Unwrap() error { return e.error }

// placeOf returns the token's file and line.
func placeOf(token caddyfile.Token) string { return token.File + ":" + strconv.Itoa(token.Line) }

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
