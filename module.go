// Package ratelimit is an HTTP handler for Caddy that limits the rate of requests. Every node
// decides from counters in its own memory. With a Redis, the nodes sync what they counted in the
// background, every sync_rate.
package ratelimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler limits the rate of requests. A request is checked against every zone that matches it. If
// one of them denies it, it consumes nothing in any of them.
type Handler struct {
	// RateLimits are the zones by name. Range: printable ASCII without quotes or backslashes, at
	// most 128 characters. Default: none.
	RateLimits map[string]*Zone `json:"rate_limits,omitempty"`

	// SyncRate is the sync_rate of this handler's zones. Default: the global one.
	SyncRate *config.SyncRate `json:"sync_rate,omitempty"`

	// StatusCode is the status of a denied request. Range: 400 to 599. Default: 429.
	StatusCode int `json:"status_code,omitempty"`

	// Message is the body of a denied request: plain text, or JSON if it is an object or an array.
	// Known placeholders in it are replaced. Default: problem details (RFC 9457).
	Message string `json:"message,omitempty"`

	// Headers are the sets of informational headers to send. Range: "ietf", "kong", "github",
	// several of them, or "off". Default: "ietf".
	Headers []string `json:"headers,omitempty"`

	// Jitter lengthens Retry-After at random by up to this share, so that clients don't return
	// together. Range: 0 to 1. Default: 0.
	Jitter float64 `json:"jitter,omitempty"`

	// LogKey shows keys beside their ids in log lines, lists and on the status page. A key may be
	// personal data or a secret. Default: false.
	LogKey bool `json:"log_key,omitempty"`

	// SweepInterval is how often counters that no longer matter are dropped. Range: 1ms to ten
	// years. Default: 1m.
	SweepInterval caddy.Duration `json:"sweep_interval,omitempty"`

	// DisableMetrics leaves this handler's decisions out of the metrics. Default: false.
	DisableMetrics bool `json:"disable_metrics,omitempty"`

	// Distributed is the older plugin's block: the smaller interval becomes the sync_rate of this
	// handler's zones. It needs Redis. Default: none.
	Distributed *Distributed `json:"distributed,omitempty"`

	// StorageRaw is the older plugin's, too: an error that says what to write. Default: none.
	StorageRaw json.RawMessage `json:"storage,omitempty"`

	path string // of its route, see pathInJSON
	// afterErrors is what mayFollowError has returned.
	afterErrors bool
	zones       []*limits.Zone // as Arrange sorts them
	answers     *answer.Responder
	logger      *zap.Logger
	warned      *warning.Once
	proxies     *reqkey.ProxyWatch
	advised     config.Advised
}

// Distributed is the block of that name in the older plugin's configuration.
type Distributed struct {
	// ReadInterval becomes the sync_rate if it is the smaller one. Range: 20ms to ten years.
	// Default: 5s.
	ReadInterval caddy.Duration `json:"read_interval,omitempty"`

	// WriteInterval is the same. Range: 20ms to ten years. Default: 5s.
	WriteInterval caddy.Duration `json:"write_interval,omitempty"`

	// PurgeAge has no effect. Default: none.
	PurgeAge caddy.Duration `json:"purge_age,omitempty"`
}

// Zone is one rule: which requests, grouped by what, how many.
type Zone struct {
	// MatcherSetsRaw selects the requests that count: those that one of the sets matches. Default:
	// all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// ExceptRaw selects requests that the zone neither counts nor adds headers to. Default: none.
	ExceptRaw caddyhttp.RawMatcherSets `json:"except,omitempty" caddy:"namespace=http.matchers"`

	// Key groups requests that share one count. It may hold placeholders. Default: {client_ip};
	// with events, one count for all.
	Key string `json:"key,omitempty"`

	// Limits are one or more rates, all enforced. Of two with the same window the lower one is;
	// with a placeholder they must differ. Default: none; a zone needs one, or events, concurrent
	// or bandwidth.
	Limits []Limit `json:"limits,omitempty"`

	// Concurrent is how many requests of a key may run at once, until their response or their
	// upgraded connection ends. Range: 1 to 1000000000. Default: any number.
	Concurrent *int64 `json:"concurrent,omitempty"`

	// Window is the window of one rate, in the older plugin's words. It needs events. Range: 1ms to
	// ten years. Default: none.
	Window caddy.Duration `json:"window,omitempty"`

	// MaxEvents is the number of requests in window; 0 denies all. The zone is a sliding_log,
	// unless algorithm is given. Range: 0 or more. Default: none.
	MaxEvents *int64 `json:"max_events,omitempty"`

	// Algorithm is how requests are counted. Range: sliding_window, fixed_window, sliding_log,
	// token_bucket, gcra or leaky_bucket. Default: sliding_window; in a zone with one limit, burst
	// means token_bucket, and queue leaky_bucket; with events, sliding_log; where all limits are by
	// day, week, month or year, fixed_window.
	Algorithm string `json:"algorithm,omitempty"`

	// Calendar says when days, weeks, months and years begin: zone is their time zone, from the day
	// on which months begin. Range of from: 1 to 31. Default: UTC, from 1.
	Calendar *config.Calendar `json:"calendar,omitempty"`

	// Burst is how many requests may come at once in a token_bucket or gcra. It must drain within
	// ten years. Range: 1 or more. Default: the limit.
	Burst *int64 `json:"burst,omitempty"`

	// SubWindows are the sub-windows of a sliding_window. More are more exact, and cost memory and
	// calls to Redis. Range: 1 to 31, of 1ms at least. Default: 1.
	SubWindows *int `json:"sub_windows,omitempty"`

	// Queue is how many requests of one key may wait in a leaky_bucket. It must drain within ten
	// years. Range: 0 or more. Default: none; a leaky_bucket needs it.
	Queue *int64 `json:"queue,omitempty"`

	// SyncRate is how often counts are synced: "local" or -1 is never, "strict" or 0 has Redis
	// decide on every request; otherwise an interval of 20ms to ten years, as a duration or a
	// number of seconds. Default: the handler's, else that of distributed, else the global one.
	SyncRate *config.SyncRate `json:"sync_rate,omitempty"`

	// IPv4Prefix is how many bits of IPv4 addresses in the key count; 0 is 32. Range: 0 to 32.
	// Default: 32.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// IPv6Prefix is how many bits of IPv6 addresses in the key count; 0 is 128. Range: 0 to 128.
	// Default: 64.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// Bandwidth is how many bytes a second the bodies of all responses to one key share on each
	// node: a number, or a string like "1MiB/s". Range: 1 to a tebibyte. Default: none.
	Bandwidth config.Bandwidth `json:"bandwidth,omitempty"`

	// MaxKeys is how many keys have counters of their own in memory, for each rate and node.
	// Further keys share counters. Range: 1 to 1000000000. Default: 1000000.
	MaxKeys *int `json:"max_keys,omitempty"`

	// EmptyKey is what happens to a request without a key: its address is the key, it is not
	// limited, all share one count, or it is denied. Range: client_ip, skip, share or deny.
	// Default: client_ip; with events, share.
	EmptyKey string `json:"empty_key,omitempty"`

	// CountDenied counts denied requests as well: a client that keeps trying stays denied. Default:
	// false.
	CountDenied bool `json:"count_denied,omitempty"`

	// CountResponses says which responses make a request count. Others refund, when they begin,
	// what was reserved. In JSON, 4 stands for 4xx. Not with leaky_bucket or count_denied. Default:
	// every admitted request counts.
	CountResponses *caddyhttp.ResponseMatcher `json:"count_responses,omitempty"`

	// ForgiveResponses says which responses clear what their key has spent in the zone, on all
	// nodes. It needs count_responses. Default: none.
	ForgiveResponses *caddyhttp.ResponseMatcher `json:"forgive_responses,omitempty"`

	// Cost is what a request takes of each limit, in units: the sum of its entries, rounded up.
	// Range: 0 to 2^40. Default: 1.
	Cost []config.CostTerm `json:"cost,omitempty"`

	// CostDefault is the cost of a request whose placeholder in cost has no number, or whose body
	// has no length. Range: 0 to 2^40. Default: none; required with these, and only there.
	CostDefault *int64 `json:"cost_default,omitempty"`

	// ResponseCost is where the response says what the request has cost, in units. Entries add up,
	// rounded up. Not with leaky_bucket or count_denied. Default: none.
	ResponseCost []config.ResponseTerm `json:"response_cost,omitempty"`

	// ResponseCostDefault is the least cost of a response that counts, and ends without a figure or
	// not properly. Range: 0 to 2^40. Default: 0; what was reserved stays spent. It needs
	// response_cost and count_responses.
	ResponseCostDefault *int64 `json:"response_cost_default,omitempty"`

	// OnRedisLoss is the rule while Redis is unavailable: each node enforces the whole limit, each
	// enforces its share, all requests are admitted, or all are denied. Range: local, divide, allow
	// or deny. Default: local.
	OnRedisLoss string `json:"on_redis_loss,omitempty"`

	// EarlySync syncs a key that is new or near its limit before the interval is over. Default:
	// true.
	EarlySync *bool `json:"early_sync,omitempty"`

	// Regions counts over all regions, or in this one only. Default: true.
	Regions *bool `json:"regions,omitempty"`

	// Enforce is the share of keys that the zone is enforced for, in steps of 0.0001, the same keys
	// on all nodes. Range: 0 to 1; 0 or off is shadow mode for all. Default: 1.
	Enforce *float64 `json:"enforce,omitempty"`

	// Ban denies all requests of a key for a while once it was denied too often. Default: none.
	Ban *Ban `json:"ban,omitempty"`

	// Reserve keeps shares of each limit for classes of requests, as paying clients. Not with
	// leaky_bucket or count_denied. Range: 0.9 in total. Default: none.
	Reserve []Reserve `json:"reserve,omitempty"`

	// Headers are the sets of informational headers that tell of this zone; off hides it. Range:
	// "ietf", "kong", "github", several of them, or "off". Default: the handler's.
	Headers []string `json:"headers,omitempty"`

	// Source is the file and line that a warning names, like Caddyfile:12. Default: none.
	Source string `json:"source,omitempty"`

	// size is a size that a limit or a cost is written as in a Caddyfile, like 10GiB, "" for none.
	size string

	// defaults are the values of limit_default in a Caddyfile, which setDefaults puts into Limits.
	defaults []config.Rate
}

// Reserve is a share of each limit of a zone that only some requests can take. Others are denied
// once the key's use by all reaches the limit less its reserves that are not for them.
type Reserve struct {
	// Share is the part of each limit, in steps of 0.0001; what it comes to is rounded up. Range:
	// more than 0, 0.9 at most. Default: none; required.
	Share float64 `json:"share"`

	// MatcherSetsRaw selects the requests that it is for: those that one of the sets matches.
	// Default: none; required.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`
}

// Limit is a number of requests in a window of time.
type Limit struct {
	// MaxEvents is the number of requests; 0 denies all. A placeholder in quotes, like "{plan}",
	// gives a whole number with each request, or unlimited. Range: 0 to 2^53. Default: none;
	// required.
	MaxEvents *config.Events `json:"max_events"`

	// Window is how long the limit looks back: 1ms to ten years, or a "day", "week", "month" or
	// "year" of the zone's calendar. Default: none; required.
	Window config.Window `json:"window"`

	// Default is the number of requests if the placeholder in max_events has no number from 0 up.
	// Range: 0 or more. Default: none; required with a placeholder, and only there.
	Default *int64 `json:"default,omitempty"`
}

// Ban is how long a key is banned, and when that begins. A ban lasts from its beginning: requests
// during it are denied, count nowhere, and don't prolong it.
type Ban struct {
	// For is how long a ban lasts. Range: 1ms to ten years. Default: none; required.
	For caddy.Duration `json:"for"`

	// After is how many denials by a spent limit begin a ban. Default: the first one.
	After *BanAfter `json:"after,omitempty"`

	// Growing makes a ban twice as long as the key's last one, up to this time, if it begins within
	// this time after that one's end. Range: more than for, at most ten years. Default: all bans
	// last as long.
	Growing caddy.Duration `json:"growing,omitempty"`
}

// BanAfter is a number of denied requests in a window of time.
type BanAfter struct {
	// MaxEvents is the number of denied requests. Range: 1 or more. Default: none; required.
	MaxEvents int64 `json:"max_events"`

	// Window is how long they are counted, aligned to the clock. Range: 1ms to ten years. Default:
	// none; required.
	Window caddy.Duration `json:"window"`
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.rate_limit", New: func() caddy.Module { return new(Handler) }}
}

// UnmarshalJSON reads a handler, strictly as Caddy does. It says what to write in place of some
// shapes that other rate limiters have.
func (h *Handler) UnmarshalJSON(text []byte) error {
	type handler Handler // without this method
	if err := caddy.StrictUnmarshalJSON(text, (*handler)(h)); err != nil {
		return config.ExplainJSON(err, shapes)
	}
	return h.checkNumbers()
}

// checkNumbers reports a limit without its number, which would be 0 and deny everybody.
func (h *Handler) checkNumbers() error {
	isMissing := func(l Limit) bool { return l.MaxEvents == nil }
	for _, name := range slices.Sorted(maps.Keys(h.RateLimits)) {
		if zone := h.RateLimits[name]; zone != nil && slices.ContainsFunc(zone.Limits, isMissing) {
			return inJSON(&zoneError{name, wrongf("limit", "it has no max_events, so it would deny all requests; add how many, like \"max_events\": 100, or 0 if all are to be denied")})
		}
	}
	return nil
}

// shapes are what to write where the JSON of a handler has a value of another type.
var shapes = map[reflect.Type]string{
	reflect.TypeFor[map[string]*Zone]():  `write an object of zones by their names, like {"login": {"limits": [{"max_events": 5, "window": "1m"}]}}`,
	reflect.TypeFor[Zone]():              zoneShape,
	reflect.TypeFor[*Zone]():             zoneShape,
	reflect.TypeFor[Limit]():             limitShape,
	reflect.TypeFor[Ban]():               banShape,
	reflect.TypeFor[*Ban]():              banShape,
	reflect.TypeFor[[]Limit]():           "write a list; " + limitShape,
	reflect.TypeFor[config.CostTerm]():   costShape,
	reflect.TypeFor[[]config.CostTerm](): "write a list; " + costShape,

	reflect.TypeFor[config.ResponseTerm]():   responseCostShape,
	reflect.TypeFor[[]config.ResponseTerm](): "write a list; " + responseCostShape,

	reflect.TypeFor[Reserve]():   reserveShape,
	reflect.TypeFor[[]Reserve](): "write a list; " + reserveShape,

	reflect.TypeFor[float64]():                  "write a share as a number from 0 to 1, without quotes, like 0.25 for 25%, and 0 for off",
	reflect.TypeFor[[]string]():                 `write a list of names, like ["ietf"]`,
	reflect.TypeFor[caddyhttp.RawMatcherSets](): "write a list; " + matcherShape,
	reflect.TypeFor[caddy.ModuleMap]():          matcherShape,
}

const (
	zoneShape         = `write an object with the list in it, like {"limits": [{"max_events": 5, "window": "1m"}]}`
	matcherShape      = `write each set of matchers as an object, like {"path": ["/health"]} or {"client_ip": {"ranges": ["10.0.0.0/8"]}}; named matchers are known in the sites of a Caddyfile only`
	banShape          = `write an object, like {"for": "15m", "after": {"max_events": 3, "window": "10m"}}`
	responseCostShape = `write each source as an object, like {"header": "X-Cost"} or {"bytes": true}`
	costShape         = `write each amount as an object, like {"units": 200} or {"bytes": true, "factor": 0.25}`
	reserveShape      = `write each reserve as an object, like {"share": 0.2, "match": [{"header": {"X-Plan": ["paid"]}}]}`
	limitShape        = `write each rate as an object, like {"max_events": 100, "window": "1m"}`
)

// Provision compiles the zones and acquires their counters. It changes nothing of a running
// configuration.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	v, err := ctx.App("rate_limit")
	if err != nil {
		return err
	}
	app := v.(*App)
	h.path = pathInJSON(ctx)
	all, found, err := h.settings(app.globals())
	if err != nil {
		return inJSON(err)
	}
	h.warned, h.proxies = &app.warned, new(reqkey.ProxyWatch)
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	h.advised.Warn = h.warn
	for _, w := range found {
		if w.Unset == "" {
			h.warn(w.Code, w.Text)
		} else {
			h.advised.Unset = append(h.advised.Unset, w)
		}
	}
	var sets answer.HeaderSets
	mayBeShadow := false
	for _, z := range h.RateLimits {
		sets |= h.headerSetsOf(z)
		mayBeShadow = mayBeShadow || z.Enforce != nil
	}
	events, err := answer.NewEvents(ctx)
	if err != nil {
		return err
	}
	isOwn := server != nil && provisioning(server.Routes) >= 0 // other routes serve several servers
	h.advised.Status = cmp.Or(h.StatusCode, http.StatusTooManyRequests)
	h.answers = answer.NewResponder(answer.Options{
		Status: h.advised.Status, Message: h.Message, Jitter: h.Jitter,
		Headers: sets, Shadow: mayBeShadow, Events: events,
		NoErrorRoutes: isOwn && (server.Errors == nil || len(server.Errors.Routes) == 0),
	})
	h.afterErrors = mayFollowError(ctx, server)
	where := app.nextHandler()
	if h.path != "" {
		where += " in " + h.path
	}
	for i := range all {
		if err := h.addZone(ctx, app, all[i], where); err != nil {
			return err
		}
	}
	limits.Arrange(h.zones)
	app.adviseOn(ctx, &h.advised)
	h.proxies.CheckServer(h.warned, h.logger, server)
	return nil
}

// addZone adds a zone of a handler that messages call where.
func (h *Handler) addZone(ctx caddy.Context, app *App, s config.Settings, where string) error {
	z, err := h.provisionZone(ctx, app, s)
	if err != nil {
		return inJSON(&zoneError{s.Name, err})
	}
	h.zones = append(h.zones, z)
	h.proxies.Note(z.Template)
	h.proxies.NoteMatchers(slices.Concat(slices.Concat(z.ClassMatchers...), z.Matchers, z.Except))
	h.advised.Zones = append(h.advised.Zones, config.AdvisedZone{
		Settings: &z.Settings, Matchers: z.Matchers, Except: z.Except, User: z.FromAuthentication(), Place: cmp.Or(h.RateLimits[z.Name].Source, h.path),
	})
	if err := app.use(z, where); err != nil {
		return &jsonError{h.inWords(err.Error()), err}
	}
	return nil
}

// warn logs once what is probably not meant.
func (h *Handler) warn(code, text string) { h.warned.Warn(h.logger, code, h.inWords(text)) }

// inWords returns a text in the words of JSON, unless the zones come from a Caddyfile.
func (h *Handler) inWords(text string) string {
	for _, z := range h.RateLimits {
		if z.Source != "" {
			return text
		}
	}
	return inWordsOfJSON(text)
}

// mayFollowError reports whether a request may come to the handler that is being provisioned by an
// error route. It is false where all that is known of says no: the handler is in a route of the
// server, and nothing but routes without errors of their own is between the two.
func mayFollowError(ctx caddy.Context, server *caddyhttp.Server) bool {
	if server == nil || provisioning(server.Routes) < 0 {
		return true // in an error route, or in one that others invoke by its name
	}
	return slices.ContainsFunc(ctx.Modules(), func(m caddy.Module) bool {
		switch m := m.(type) {
		case *caddyhttp.App, *Handler:
			return false
		case *caddyhttp.Subroute:
			return m.Errors != nil
		default:
			return true
		}
	})
}

// headerSetsOf returns the sets of headers that tell of a zone. checkHeaders has checked them.
func (h *Handler) headerSetsOf(z *Zone) answer.HeaderSets {
	if len(z.Headers) > 0 {
		sets, _ := answer.ParseHeaderSets(z.Headers)
		return sets
	}
	sets, _ := answer.ParseHeaderSets(h.Headers)
	if z.countsUnits() {
		sets &^= answer.IETF // which is read as a number of requests
	}
	return sets
}

// countsUnits reports whether the zone counts something else than requests.
func (z *Zone) countsUnits() bool {
	c := config.Cost{Terms: z.Cost}
	return !c.IsConstant() || c.Constant() != 1 || len(z.ResponseCost) > 0
}

// provisionZone makes a zone ready for requests. Cleanup releases it.
func (h *Handler) provisionZone(ctx caddy.Context, app *App, s config.Settings) (*limits.Zone, error) {
	config := h.RateLimits[s.Name]
	sets := h.headerSetsOf(config)
	o := limits.ZoneOptions{
		Settings: s, Namespace: app.apart(), Redis: app.shared, Successor: lifecycle.Zone, Sweep: time.Duration(cmp.Or(h.SweepInterval, caddy.Duration(time.Minute))),
		Restored: app.config.Keeper != nil,
		Headers:  sets, ByDefault: len(config.Headers) == 0,
		Logger: h.logger, LogKeys: h.LogKey, Once: &app.warned, Metrics: !h.DisableMetrics,
		AfterErrors: h.afterErrors,
	}
	if err := loadMatchers(ctx, config, "MatcherSetsRaw", &o.Matchers); err != nil {
		return nil, wrong("match", err)
	}
	if err := loadMatchers(ctx, config, "ExceptRaw", &o.Except); err != nil {
		return nil, wrong("except", err)
	}
	for i := range config.Reserve {
		var sets caddyhttp.MatcherSets
		if err := loadMatchers(ctx, &config.Reserve[i], "MatcherSetsRaw", &sets); err != nil {
			return nil, wrong("reserve", err)
		}
		o.ClassMatchers = append(o.ClassMatchers, sets)
	}
	return limits.NewZone(o)
}

// loadMatchers loads the matcher sets of a field of a zone or a reserve.
func loadMatchers(ctx caddy.Context, of any, field string, sets *caddyhttp.MatcherSets) error {
	loaded, err := ctx.LoadModule(of, field)
	if err != nil {
		return err
	}
	err = sets.FromInterface(loaded)
	reqkey.GuardMatchers(*sets)
	return err
}

// ServeHTTP lets a request through, denies it, or makes it wait in a queue.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if isInclude(r) {
		return next.ServeHTTP(w, r)
	}
	now := clock.Now()
	h.proxies.Watch(h.warned, h.logger, r, now)
	e, err := limits.Evaluate(h.zones, r, now)
	if err != nil {
		return err
	}
	defer e.Free()
	if e.WouldDeny.Zone != "" {
		h.answers.WouldDeny(r, &e.WouldDeny)
	}
	if e.Denied {
		err = h.answers.Deny(w, r, &e.Denial)
		return e.MarkCounted(r, err)
	}
	if err := e.Enter(r.Context()); err != nil {
		return e.MarkCounted(r, err)
	}
	if h.answers.TellsNear() {
		h.answers.Near(r, e.Near())
	}
	h.answers.Admit(w, r, &e.Fields, e.Results(), e.Now)
	if held := e.Hold(); held != nil {
		return e.MarkCounted(r, held.Serve(w, r, next))
	}
	return e.MarkCounted(r, next.ServeHTTP(w, r))
}

// isInclude reports whether a request is one that httpInclude makes for a template, on behalf of
// one that was counted. A client can send its header, but its requests have a local address.
func isInclude(r *http.Request) bool {
	return r.RemoteAddr == "127.0.0.1:10000" && len(r.Header["Caddy-Templates-Include"]) > 0 && r.Context().Value(http.LocalAddrContextKey) == nil
}

// Zones returns the handler's zones in the order in which they are asked.
func (h *Handler) Zones() []*limits.Zone { return h.zones }

// Advised is what advice knows of the handler.
func (h *Handler) Advised() *config.Advised { return &h.advised }

// Cleanup gives up the counters. Requests that are under way still go by them.
func (h *Handler) Cleanup() error {
	for _, z := range h.zones {
		z.Release()
	}
	return nil
}

// zonePath returns the path of a zone in its handler.
func zonePath(zone string) string { return fmt.Sprintf("rate_limits[%q]", spelling.Clip(zone)) }

// pathInJSON returns the path of the route that is being provisioned, such as
// apps.http.servers.srv0.routes[2], or of as much of it as is known, "" for nothing. Handlers in
// routes within that one have the same path.
func pathInJSON(ctx caddy.Context) string {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return ""
	}
	path := "apps.http.servers." + server.Name()
	if i := provisioning(server.Routes); i >= 0 {
		return fmt.Sprintf("%s.routes[%d]", path, i)
	}
	if server.Errors != nil {
		if i := provisioning(server.Errors.Routes); i >= 0 {
			return fmt.Sprintf("%s.errors.routes[%d]", path, i)
		}
	}
	return path
}

// provisioning returns the route whose handlers are being loaded, -1 for none: Caddy loads them in
// order, and clears their JSON when it has them, as LoadModule of caddy.Context documents. With a
// Caddy that does otherwise, messages name no route or another one, and TestWarningsAtLoadOfJSON
// fails.
func provisioning(routes caddyhttp.RouteList) int {
	return slices.IndexFunc(routes, func(r caddyhttp.Route) bool { return len(r.HandlersRaw) > 0 })
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ operate.Limiter             = (*Handler)(nil)
	_ config.Limiter              = (*Handler)(nil)
)
