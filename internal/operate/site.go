package operate

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// An ExplainRequest is a request as it is described.
type ExplainRequest struct {
	// Method is GET where it is empty. URL has a scheme and a host.
	Method string `json:"method,omitempty"`
	URL    string `json:"url,omitempty"`
	// RemoteIP is the address that the connection comes from, 127.0.0.1 where it is empty.
	RemoteIP string `json:"remote_ip,omitempty"`
	// Headers are the values of each header: a string, or a list of them.
	Headers map[string]HeaderValues `json:"headers,omitempty"`
}

// HeaderValues are those of one header.
type HeaderValues []string

// UnmarshalJSON reads one value or a list.
func (v *HeaderValues) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*v = HeaderValues{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(v))
}

// A Limiter is a handler that has zones.
type Limiter interface {
	Zones() []*limits.Zone
}

// An ExplainedSite is what a configuration would do with a request.
type ExplainedSite struct {
	// Server is the name of the server that would get the request, ClientIP the client's address as
	// that server takes it.
	Server   string `json:"server"`
	ClientIP string `json:"client_ip"`
	// Handlers are the rate_limit handlers that the request would come to, in order.
	Handlers []Reached `json:"handlers"`
}

// Reached is a handler that a request would come to.
type Reached struct {
	// NotRun are the handlers before it that were not run: what they would do to the request, or
	// answer in place of it, is not known.
	NotRun []string `json:"not_run,omitempty"`
	Explained
}

// Explain says what the HTTP app of a configuration would do with a request.
func Explain(app *caddyhttp.App, q ExplainRequest) (site ExplainedSite, err error) {
	r, err := q.build()
	if err != nil {
		return site, err
	}
	u, _ := url.Parse(q.URL) // as build has
	name, server, err := serverOf(app, u.Host, r.TLS != nil)
	if err != nil {
		return site, err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a matcher or handler of this site can't take a request that was made up: %v; ask by zone and key instead", p)
		}
	}()
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), server)
	site = ExplainedSite{Server: name, Handlers: []Reached{}}
	err = WalkRoutes(server, &r, func(l Limiter, notRun []string) (bool, error) {
		handler, err := ExplainZones(l.Zones(), r)
		notRun = slices.DeleteFunc(slices.Clone(notRun), isSilent)
		site.Handlers = append(site.Handlers, Reached{NotRun: notRun, Explained: handler})
		return true, err
	})
	site.ClientIP, _ = caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return site, err
}

// build makes the request as a server would get it.
func (q ExplainRequest) build() (*http.Request, error) {
	u, err := url.Parse(q.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("url: %q has no scheme and host; write it in full, like https://example.com/login", spelling.Clip(q.URL))
	}
	ip, err := netip.ParseAddr(cmp.Or(q.RemoteIP, "127.0.0.1"))
	if err != nil {
		return nil, fmt.Errorf("remote_ip: %q is no address; write one like 203.0.113.9", spelling.Clip(q.RemoteIP))
	}
	method := strings.ToUpper(q.Method)
	r, err := http.NewRequest(method, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("method: %q is invalid; write one like POST", spelling.Clip(q.Method))
	}
	r.RemoteAddr, r.RequestURI = net.JoinHostPort(ip.String(), "49152"), u.RequestURI()
	r.URL.Scheme, r.URL.Host = "", "" // a server gets them apart
	for name, values := range q.Headers {
		for _, v := range values {
			r.Header.Add(name, v)
		}
	}
	if u.Scheme == "https" {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, ServerName: u.Hostname(), Version: tls.VersionTLS13}
	}
	r = reqkey.OnLoopback(r)
	if host := r.Header.Get("Host"); host != "" { // as behind a load balancer
		r.Host = host
		r.Header.Del("Host")
	}
	if length := r.Header.Get("Content-Length"); r.Header.Get("Transfer-Encoding") != "" {
		r.ContentLength = -1
	} else if length != "" {
		if r.ContentLength, err = strconv.ParseInt(length, 10, 64); err != nil || r.ContentLength < 0 {
			return nil, fmt.Errorf("headers: the Content-Length %q is no number of bytes", spelling.Clip(length))
		}
	}
	return r, nil
}

// serverOf returns the server that listens where a request to the host of a URL would go.
func serverOf(app *caddyhttp.App, host string, isTLS bool) (name string, s *caddyhttp.Server, err error) {
	port := cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)
	if isTLS {
		port = cmp.Or(app.HTTPSPort, caddyhttp.DefaultHTTPSPort)
	}
	if _, text, err := net.SplitHostPort(host); err == nil {
		if port, err = strconv.Atoi(text); err != nil {
			return "", nil, fmt.Errorf("url: %q is no port", spelling.Clip(text))
		}
	}
	var listen []string
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		for _, address := range app.Servers[name].Listen {
			if a, err := caddy.ParseNetworkAddress(address); err == nil && a.StartPort <= uint(port) && uint(port) <= a.EndPort {
				return name, app.Servers[name], nil
			}
			listen = append(listen, address)
		}
	}
	return "", nil, fmt.Errorf("no server listens at port %d; the servers listen at %s", port, strings.Join(listen, ", "))
}

// WalkRoutes takes a prepared request through the routes of a server. It calls reach with each
// rate_limit handler that the request comes to, until that returns false, and the names of the
// handlers before it that were not run. Handlers that change the request may replace it.
func WalkRoutes(server *caddyhttp.Server, r **http.Request, reach func(l Limiter, notRun []string) (bool, error)) error {
	w := routeWalk{server: server, reach: reach}
	_, err := w.routes(server.Routes, r)
	return err
}

// EachRoute calls visit with each route of a server, whatever requests it is for: those within
// others, of errors, and with names are among them.
func EachRoute(s *caddyhttp.Server, visit func(caddyhttp.Route)) {
	var walk func(caddyhttp.RouteList, *caddyhttp.HTTPErrorConfig)
	walk = func(routes caddyhttp.RouteList, errors *caddyhttp.HTTPErrorConfig) {
		if errors != nil {
			routes = slices.Concat(routes, errors.Routes)
		}
		for _, route := range routes {
			visit(route)
			for _, h := range route.Handlers {
				if sub, ok := h.(*caddyhttp.Subroute); ok {
					walk(sub.Routes, sub.Errors)
				}
			}
		}
	}
	walk(s.Routes, s.Errors)
	for _, route := range s.NamedRoutes {
		walk(caddyhttp.RouteList{*route}, nil)
	}
}

// A routeWalk is a request's way through the routes of a server.
type routeWalk struct {
	server  *caddyhttp.Server
	reach   func(l Limiter, notRun []string) (bool, error)
	groups  []string // in which a route has matched
	notRun  []string
	last    caddyhttp.MiddlewareHandler // of those that were not run
	depth   int
	*search // for a zone, nil for the way of a request of which all is known
	// ofErrors is set for the way of a denied request through error routes.
	ofErrors bool
}

// routes goes through routes as Caddy does. ends is set where the request goes no further.
func (w *routeWalk) routes(routes caddyhttp.RouteList, r **http.Request) (ends bool, err error) {
	for i := range routes {
		if ends, err := w.route(&routes[i], r); ends || err != nil {
			return true, err
		}
	}
	return false, nil
}

// route goes through one route.
func (w *routeWalk) route(route *caddyhttp.Route, r **http.Request) (ends bool, err error) {
	if w.depth++; w.depth > 100 {
		return true, errors.New("the routes go round in circles")
	}
	defer func() { w.depth-- }()
	if route.Group != "" && slices.Contains(w.groups, route.Group) {
		return w.isAround(route), nil
	}
	ok, err := w.goesInto(route, *r)
	if !ok || err != nil {
		return err != nil || w.isAround(route), err
	}
	if route.Group != "" {
		w.groups = append(w.groups, route.Group)
	}
	for _, h := range route.Handlers {
		if ends, err := w.handler(h, r); ends || err != nil {
			return true, err
		}
	}
	return route.Terminal, nil
}

// goesInto reports whether a request goes into a route.
func (w *routeWalk) goesInto(route *caddyhttp.Route, r *http.Request) (bool, error) {
	switch {
	case w.search != nil:
		return w.enters(route, r), nil
	case w.ofErrors:
		return decides(route.MatcherSets, r)
	}
	return route.MatcherSets.AnyMatchWithError(r)
}

// Changing are the handlers that do nothing but to change the request: they are run. Ending are
// those that hand no request on; a reverse_proxy with handle_response may.
var (
	Changing = []string{"vars", "map", "rewrite", "headers"}
	Ending   = []string{"static_response", "error", "reverse_proxy"}
)

// handler goes through one handler.
func (w *routeWalk) handler(h caddyhttp.MiddlewareHandler, r **http.Request) (ends bool, err error) {
	name := nameOf(h)
	switch h := h.(type) {
	case Limiter:
		goOn, err := w.reach(h, w.notRun)
		return !goOn, err
	case *caddyhttp.Subroute:
		return w.routes(h.Routes, r)
	case *reverseproxy.Handler:
		if slices.ContainsFunc(h.HandleResponse, handsOn) { // which is how forward_auth is adapted
			w.notRun = append(w.notRun, "forward_auth")
			return false, nil
		}
	case *caddyhttp.Invoke:
		if route := w.server.NamedRoutes[h.Name]; route != nil {
			return w.route(route, r)
		}
	}
	if w.search != nil {
		w.passes(h, name)
	}
	if slices.Contains(Changing, name) {
		return false, h.ServeHTTP(httptest.NewRecorder(), *r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, next *http.Request) error {
			*r = next
			return nil
		}))
	}
	w.notRun, w.last = append(w.notRun, name), h
	return neverPasses(h, name), nil
}

// handsOn reports whether a request may go on after such a response.
func handsOn(h caddyhttp.ResponseHandler) bool {
	return h.StatusCode == "" && !slices.ContainsFunc(h.Routes, answersAll)
}

// answersAll reports whether a route of responses hands no request on.
func answersAll(route caddyhttp.Route) bool {
	return len(route.MatcherSets) == 0 && slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
		sub, ok := h.(*caddyhttp.Subroute)
		return ok && slices.ContainsFunc(sub.Routes, answersAll) || neverPasses(h, nameOf(h)) || nameOf(h) == "copy_response"
	})
}

// nameOf returns the name of a module, as configurations have it.
func nameOf(module any) string {
	if m, ok := module.(caddy.Module); ok {
		return m.CaddyModule().ID.Name()
	}
	return fmt.Sprintf("%T", module)
}

// mismatchOf returns of each matcher set the first matcher that does not match; nothing where one
// set matches, or there is none.
func mismatchOf(sets caddyhttp.MatcherSets, r *http.Request) (names []string, err error) {
sets:
	for _, set := range sets {
		for _, m := range set {
			ok, err := caddyhttp.MatcherSet{m}.MatchWithError(r)
			if err != nil {
				return nil, err
			}
			if !ok {
				names = append(names, nameOf(m))
				continue sets
			}
		}
		return nil, nil
	}
	return names, nil
}
