// Advice is about what stands around limits: what sets the placeholders that they go by, who
// authenticates, what leads around them. Caddy exports its routes, and they are read once they are
// loaded. No request passes here and nothing depends on it, so it may be wrong without harm.

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	maphandler "github.com/caddyserver/caddy/v2/modules/caddyhttp/map"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A Limiter is a handler that there may be advice about.
type Limiter interface {
	Advised() *Advised
}

// Advised is what advice knows of a Limiter.
type Advised struct {
	Zones []AdvisedZone
	// Status is that of a denied request.
	Status int
	// Unset are warnings that hold unless a map sets their placeholder, or a response before.
	Unset []warning.Warning
	// Warn logs a warning.
	Warn func(code, text string)
}

// An AdvisedZone is what advice knows of a zone.
type AdvisedZone struct {
	*Settings
	Matchers caddyhttp.MatcherSets
	Except   caddyhttp.MatcherSets
	// User is a placeholder in the key or a limit that authentication sets, "" for none.
	User string
	// Place is where the zone stands.
	Place string
}

// Advise warns of what stands around handlers of an app that is loaded. Of a handler within one
// that keeps its routes to itself, nothing is known but itself. The app may be nil.
func Advise(app *caddyhttp.App, handlers []*Advised) {
	known := map[*Advised]bool{}
	if app != nil {
		for _, server := range app.Servers {
			adviseServer(server, known)
		}
	}
	for _, a := range handlers {
		if !known[a] {
			chain{{limits: a}}.adviseKeys()
			a.warnUnset(nil, true)
		}
	}
}

// adviseServer adds to known the handlers of a server.
func adviseServer(server *caddyhttp.Server, known map[*Advised]bool) {
	sites, failed := chainsOf(server.Routes), []chain(nil)
	if server.Errors != nil {
		failed = chainsOf(server.Errors.Routes)
	}
	all := slices.Concat(sites, failed)
	for _, route := range server.NamedRoutes {
		all = append(all, chainsOf(caddyhttp.RouteList{*route})...)
	}
	trusts := reqkey.TrustsProxies(server)
	for i, c := range all {
		c.adviseKeys()
		c.adviseMatchers(trusts)
		for j, l := range c {
			if l.limits != nil {
				known[l.limits] = true
				l.limits.warnUnset(all, i >= len(sites) || slices.ContainsFunc(c[:j], link.mayRespond))
			}
		}
	}
	for _, c := range sites {
		c.adviseSite()
	}
	for _, c := range failed {
		c.adviseFailed(false)
	}
	for _, l := range slices.Concat(all...) {
		for _, c := range l.failures() {
			c.adviseFailed(true)
		}
	}
}

// A chain is what a request to one of a server's routes comes to, in order, with what is in the
// routes within it.
type chain []link

// A link is a handler, and the matchers that select its requests.
type link struct {
	handler  caddyhttp.MiddlewareHandler
	limits   *Advised // nil where it has none
	matchers caddyhttp.MatcherSet
}

// chainsOf returns a chain for each route.
func chainsOf(routes caddyhttp.RouteList) (all []chain) {
	for i := range routes {
		all = append(all, appendLinks(nil, routes[i:i+1], nil))
	}
	return all
}

// appendLinks appends the handlers of routes that these matchers lead to.
func appendLinks(c chain, routes caddyhttp.RouteList, matchers caddyhttp.MatcherSet) chain {
	for _, route := range routes {
		to := slices.Concat(matchers, slices.Concat(route.MatcherSets...))
		for _, handler := range route.Handlers {
			if sub, ok := handler.(*caddyhttp.Subroute); ok {
				c = appendLinks(c, sub.Routes, to)
				continue
			}
			l := link{handler: handler, matchers: to}
			if limiter, ok := handler.(Limiter); ok {
				l.limits = limiter.Advised()
			}
			c = append(c, l)
		}
	}
	return c
}

// name returns the handler's name in JSON.
func (l link) name() string {
	if module, ok := l.handler.(caddy.Module); ok {
		return module.CaddyModule().ID.Name()
	}
	return ""
}

// warnUnset warns of placeholders that no map of a server sets, nor a response that there may be.
func (a *Advised) warnUnset(server []chain, mayRespond bool) {
	for _, w := range a.Unset {
		if mayRespond && reqkey.IsOfResponse(w.Unset) {
			continue
		}
		sets := func(l link) bool {
			m, ok := l.handler.(*maphandler.Handler)
			return ok && slices.ContainsFunc(m.Destinations, func(d string) bool { return strings.Trim(d, "{}") == w.Unset })
		}
		if !slices.ContainsFunc(server, func(c chain) bool { return slices.ContainsFunc(c, sets) }) {
			a.Warn(w.Code, w.Text)
		}
	}
}

// mayRespond reports whether the handlers after this one may see a response, as after forward_auth.
func (l link) mayRespond() bool { return l.name() == "reverse_proxy" }

// WarnZone logs a warning about one of the zones.
func (a *Advised) WarnZone(name, code, text string) {
	for _, z := range a.Zones {
		if z.Name == name {
			a.warnZone(z, code, text)
		}
	}
}

func (a *Advised) warnZone(z AdvisedZone, code, text string) {
	a.Warn(code, fmt.Sprintf("zone %q: %s, at %s", z.Name, text, z.Place))
}

// zones calls visit for each zone, with the number of its handler in the chain.
func (c chain) zones(visit func(i int, z AdvisedZone, warn func(code, text string))) {
	for i, l := range c {
		if l.limits == nil {
			continue
		}
		for _, z := range l.limits.Zones {
			visit(i, z, func(code, text string) { l.limits.warnZone(z, code, text) })
		}
	}
}

// adviseKeys warns of zones that a client leaves by what it sends, where nothing before them may
// check it and nothing beside them limits the client.
func (c chain) adviseKeys() {
	bounds := false
	c.zones(func(_ int, z AdvisedZone, _ func(code, text string)) { bounds = bounds || reqkey.BoundsAll(z.Key) })
	c.zones(func(i int, z AdvisedZone, warn func(code, text string)) {
		name := reqkey.OnlyClientsIn(z.Key)
		if name == "" || bounds || slices.ContainsFunc(c[:i], link.mayCheck) {
			return
		}
		warn(warning.ClientsKey, fmt.Sprintf("its key goes by what a client sends, {%s}, so one that sends another value each time has a new count each time; "+
			"add a limit by address, like `rate_limit 1200/1m`, or put rate_limit behind what checks the value, in a block `route { … }`", name))
	})
}

// harmless are handlers that check nobody.
var harmless = []string{
	"vars", "map", "headers", "rewrite", "request_body", "encode", "tracing", "log_append", "file_server", "templates",
	"push", "metrics", "invoke", "intercept", "copy_response", "copy_response_headers", "rate_limit", "rate_limit_status",
}

// mayCheck reports whether a handler may check who a client is.
func (l link) mayCheck() bool {
	if answer, ok := l.handler.(*caddyhttp.StaticResponse); ok {
		return answer.StatusCode == "401" || answer.StatusCode == "403"
	}
	return !slices.Contains(harmless, l.name())
}

// adviseSite warns of zones that go by who a client is before anybody has asked, and of those that
// reserve a unit for each picture of a page.
func (c chain) adviseSite() {
	asked := slices.IndexFunc(c, func(l link) bool { return l.name() == "authentication" })
	c.zones(func(i int, z AdvisedZone, warn func(code, text string)) {
		guesses := z.CountResponses != nil && z.CountResponses.Match(401, nil) || z.CountResponses == nil && z.Ban.For > 0
		if guesses && z.User == "" && asked >= 0 && asked < i && c[i].isWithin(c[asked]) {
			warn(warning.NotReached, "no wrong password comes to it, as basic_auth, or what else authenticates, answers before; "+
				"write rate_limit above that in a block `route { … }`, and without a global `order` that puts it behind")
		}
		if z.User != "" && i < asked {
			warn(warning.BeforeAuth, fmt.Sprintf("{%s} is empty here, as rate_limit runs before basic_auth and whatever else authenticates; "+
				"put both into a block `route { … }` of this site, basic_auth first", z.User))
		}
		if z.CountResponses != nil && len(z.ResponseCost.Terms) == 0 && len(z.Matchers) == 0 && !slices.ContainsFunc(c[i].matchers, selects) {
			warn(warning.AllReserve, "it has no matcher, so each request of a page reserves a unit until its response begins, and a page with many pictures is denied some of them; "+
				"write `match` with all requests whose responses count, like `match path /login*`, or for basic_auth `match header Authorization *` and a limit above what a page loads at once")
		}
	})
}

// selects reports whether a matcher selects requests of a site, not the site.
func selects(matcher any) bool {
	switch matcher.(type) {
	case caddyhttp.MatchHost, *caddyhttp.MatchHost:
		return false
	}
	return true
}

// isWithin reports whether all requests of a handler are ones of another.
func (l link) isWithin(other link) bool {
	outer, err := json.Marshal(other.matchers)
	inner, also := json.Marshal(l.matchers)
	return cmp.Or(err, also) == nil && (len(other.matchers) == 0 || bytes.HasPrefix(inner, bytes.TrimSuffix(outer, []byte("]"))))
}

// adviseMatchers warns of zones whose requests a client can have pass by another spelling of their
// path, and of those that go by the address of a proxy.
func (c chain) adviseMatchers(trusts bool) {
	c.zones(func(i int, z AdvisedZone, warn func(code, text string)) {
		paths := [][]string{pathsOf(slices.Concat(z.Matchers...))}
		for _, m := range c[i].matchers {
			paths = append(paths, pathsOf([]any{m}))
		}
		if !z.Cost.IsConstant() || z.Cost.Constant() != 0 {
			advisePaths(paths, warn)
		}
		if trusts && reqkey.MatchPeers(slices.Concat(z.Matchers, z.Except, []caddyhttp.MatcherSet{c[i].matchers})) {
			warn(warning.PeerMatched, "remote_ip is the address of a proxy for all clients behind it, as the server has trusted_proxies; write `client_ip` in its place")
		}
		if trusts && strings.Contains(z.Key, "{http.request.remote.host}") {
			warn(warning.PeerMatched, "{remote_host} is the address of a proxy for all clients behind it, as the server has trusted_proxies; write {client_ip} in its place")
		}
		if field := reqkey.ClaimedIn(z.Except); field != "" {
			warn(warning.ForgeableKey, fmt.Sprintf("a client can send any %[1]s, and so be in its exception; write `except` with addresses, like `except 203.0.113.7`", field))
		}
	})
}

// advisePaths warns of the paths of a zone's matchers, and of each around it, that others lead
// around.
func advisePaths(paths [][]string, warn func(code, text string)) {
	if own := paths[0]; len(slices.Concat(paths[1:]...)) == 0 && slices.Contains(own, "*.php") && !slices.Contains(own, "*.php/*") {
		warn(warning.ExactPath, "the path *.php ends there, and PHP may take more for the same, like /index.php/x, which passes uncounted; write `path *.php *.php/*`")
	}
	if all := slices.Concat(paths...); slices.ContainsFunc(all, isSlip) {
		path := all[slices.IndexFunc(all, isSlip)]
		warn(warning.ExactPath, fmt.Sprintf("Caddy reads the path %s in another way, so requests that are meant pass uncounted; write several with spaces between, like `path /login* /register*`, one star at the end for all below, and a regular expression in path_regexp", spelling.Clip(path)))
		return
	}
	for _, any := range paths {
		path := exactOf(any)
		if path == "" {
			continue
		}
		if before, ok := strings.CutSuffix(path, "/"); ok {
			warn(warning.ExactPath, fmt.Sprintf("the path %[1]s is exact, so what is below it passes uncounted, like %[1]sx; write `path %[2]s %[1]s*`", spelling.Clip(path), spelling.Clip(before)))
			return
		}
		warn(warning.ExactPath, fmt.Sprintf("the path %[1]s is exact, and many backends take others for the same, like %[1]s/, PHP %[1]s/x, and try_files maybe %[1]s.html, which pass uncounted; "+
			"write `path %[1]s*`", spelling.Clip(path)))
		return
	}
}

// isSlip reports whether a pattern of paths has a comma at its end, two stars, or what is only
// something in regular expressions.
func isSlip(path string) bool {
	isLiteral := strings.Count(path, "*") == 1 && strings.HasSuffix(path, "*")
	return strings.HasSuffix(path, ",") || strings.HasPrefix(path, "/") && strings.HasSuffix(path, "**") || strings.HasPrefix(path, "^") ||
		strings.Contains(path, `\d`) || strings.Contains(path, `\w`) || isLiteral && slices.ContainsFunc(strings.Split(path, "[")[1:], func(class string) bool { return strings.HasPrefix(class[min(1, len(class)):], "-") })
}

// pathsOf returns the patterns of path matchers.
func pathsOf(matchers []any) (all []string) {
	for _, m := range matchers {
		if paths, ok := m.(*caddyhttp.MatchPath); ok {
			all = append(all, *paths...)
		}
	}
	return all
}

// exactOf returns the first of some paths that others lead around, "" for none.
func exactOf(all []string) string {
	for _, path := range all {
		isCovered := func(other string) bool {
			before, isPrefix := strings.CutSuffix(other, "*")
			return other == path+"/" || other == strings.TrimSuffix(path, "/") && other != path || isPrefix && strings.HasPrefix(strings.TrimSuffix(path, "/")+"/", before)
		}
		if path != "/" && !strings.ContainsAny(path, "*{%") && !slices.ContainsFunc(all, isCovered) {
			return path
		}
	}
	return ""
}

// failures returns the chains of what a handler does with responses to logins that failed.
func (l link) failures() (all []chain) {
	var responses []caddyhttp.ResponseHandler
	switch h := l.handler.(type) {
	case *reverseproxy.Handler:
		responses = h.HandleResponse
	case *intercept.Intercept:
		responses = h.HandleResponse
	}
	for _, r := range responses {
		if r.Match != nil && !r.Match.Match(200, nil) && (r.Match.Match(401, nil) || r.Match.Match(403, nil)) {
			all = append(all, chainsOf(r.Routes)...)
		}
	}
	return all
}

// adviseFailed warns of zones on routes of logins that failed, where they limit nobody: error
// routes that go by the status, and responses that are known to be such.
func (c chain) adviseFailed(known bool) {
	c.zones(func(i int, z AdvisedZone, warn func(code, text string)) {
		by, err := json.Marshal(append(slices.Concat(z.Matchers...), c[i].matchers...))
		goesBy := func(status string) bool { return strings.Contains(string(by), status) }
		if err != nil || z.CountResponses != nil || !known && (!goesBy("{http.error.status_code}") || !goesBy("401") && !goesBy("403") && !goesBy("400")) {
			return
		}
		warn(warning.LimitOnErrors, "it is in a route of errors or responses, where it sees only requests that have failed, and holds back no next try; "+
			"write it before the handler instead, with `count_responses 401 403` and a matcher, like `match path /login*`, or for basic_auth `match header Authorization *`")
	})
}
