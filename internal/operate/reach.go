// Reach finds zones that no request comes to, by the walk that explain does: nothing is denied
// there, so nobody would notice.

package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/fileserver"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// WarnUnreached warns of zones that none of their own URLs leads to: those of the hosts, schemes
// and paths of their matchers and of the routes around them. What else a request needs, it is taken
// to have. A zone of that name that is reached in the same site is enough, as a snippet may stand
// in several places.
func WarnUnreached(app *caddyhttp.App) {
	reached := map[string]bool{}
	var missed []*search
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		for _, s := range searchesIn(app.Servers[name]) {
			if s.isReached(cmp.Or(app.HTTPPort, caddyhttp.DefaultHTTPPort)) {
				reached[s.site] = true
			} else if s.url != "" {
				missed = append(missed, s)
			}
		}
	}
	for _, s := range missed {
		if to, ok := s.to.(config.Limiter); ok && !reached[s.site] {
			reached[s.site] = true
			to.Advised().WarnZone(s.zone.Name, warning.NotReached, s.text())
		}
	}
}

// isReached reports whether some URL leads to the zone, and warns of a zone whose denials an error
// route hides. Nothing is said where a matcher or handler can't take a request that was made up: a
// panic would end the load, with the sites of before and after it both serving.
func (s *search) isReached(httpPort int) (reached bool) {
	defer func() {
		if recover() != nil {
			reached = true
		}
	}()
	if reached = s.finds(httpPort); reached {
		s.warnHidden()
	}
	return reached
}

// A search is for URLs that lead to a zone of a handler, which stands in these routes, from the
// outside in.
type search struct {
	server *caddyhttp.Server
	routes []*caddyhttp.Route
	to     Limiter
	zone   *limits.Zone
	site   string // is the same for zones of one site that have one name
	hosts  []string
	paths  []string

	leads string // is a URL that leads to the zone

	// Of the URL that comes nearest: how many of the routes it enters, and the path that is left
	// of its own. mismatch is a matcher that does not match it, by a handler that answers before.
	deep          int
	url, path     string
	mismatch, by  string
	isPathUnknown bool   // as it was rewritten
	isOwn         bool   // all matchers match it
	put           string // before its path by rewrite
	isCut         bool   // what is put before is cut from all paths
}

// searchesIn returns one for each zone of a server, except those of error routes.
func searchesIn(server *caddyhttp.Server) (all []*search) {
	var walk func(around []*caddyhttp.Route, route *caddyhttp.Route)
	walk = func(around []*caddyhttp.Route, route *caddyhttp.Route) {
		if len(route.HandlersRaw) > 0 || len(around) > 100 {
			return // it failed to load, or goes round in circles
		}
		around = append(slices.Clip(around), route)
		for _, h := range route.Handlers {
			switch h := h.(type) {
			case Limiter:
				for _, z := range h.Zones() {
					all = append(all, newSearch(server, around, h, z))
				}
			case *caddyhttp.Subroute:
				for i := range h.Routes {
					walk(around, &h.Routes[i])
				}
			case *caddyhttp.Invoke:
				if named := server.NamedRoutes[h.Name]; named != nil {
					walk(around, named)
				}
			}
		}
	}
	for i := range server.Routes {
		walk(nil, &server.Routes[i])
	}
	return all
}

// newSearch returns a search with the hosts and paths to try: those of each pattern, those further
// inside first, and paths also below those further outside, as handle_path cuts these off.
func newSearch(server *caddyhttp.Server, around []*caddyhttp.Route, to Limiter, z *limits.Zone) *search {
	s := &search{server: server, routes: around, to: to, zone: z, paths: []string{"/", "/x"}}
	prefixes, outer := []string{""}, []string(nil)
	for i := range len(around) + 1 {
		sets := z.Matchers
		if i < len(around) {
			sets = around[i].MatcherSets
		}
		hosts, paths := patternsIn(sets)
		s.hosts = append(hosts, s.hosts...)
		if i < len(around) {
			s.site = strings.Join(s.hosts, " ") + " " + z.Name
		}
		paths = withBoth(outer, paths)
		outer = append(outer, paths...)
		var here, below []string
		for _, prefix := range prefixes {
			for _, path := range paths {
				if prefix == "" || !strings.HasPrefix(path, prefix) {
					here = append(here, prefix+path)
				}
				if before, ok := strings.CutSuffix(path, "/*"); ok && before != "" {
					below = append(below, prefix+before)
				}
			}
		}
		s.paths, prefixes = append(here, s.paths...), append(prefixes, below...)
		s.paths, prefixes, outer = s.paths[:min(len(s.paths), 100)], prefixes[:min(len(prefixes), 10)], outer[:min(len(outer), 10)]
	}
	if len(s.hosts) == 0 {
		s.hosts = []string{"localhost"}
	}
	return s
}

// withBoth returns inner patterns, and where one ends and an outer one begins with a star, or the
// other way round, what matches both.
func withBoth(outer, inner []string) []string {
	for _, path := range inner {
		for _, other := range outer {
			begin, end := other, path
			if strings.HasPrefix(other, "*") {
				begin, end = path, other
			}
			if strings.HasSuffix(begin, "*") && strings.HasPrefix(end, "*") {
				inner = append(inner, begin+end[1:])
			}
		}
	}
	return inner
}

// patternsIn returns those of host and path matchers. Of a path_regexp it is how it begins.
func patternsIn(sets caddyhttp.MatcherSets) (hosts, paths []string) {
	for _, m := range slices.Concat(sets...) {
		switch m := m.(type) {
		case *caddyhttp.MatchHost:
			hosts = append(hosts, *m...)
		case *caddyhttp.MatchPath:
			paths = append(paths, *m...)
		case *caddyhttp.MatchPathRE:
			if begin := beginOf(m.Pattern); begin != "" {
				paths = append(paths, begin+"*")
			}
		}
	}
	return hosts, paths
}

// beginOf returns the text that a regular expression has at the beginning of what it matches, ""
// where it has none.
func beginOf(pattern string) string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil || len(re.Sub) < 2 || re.Op != syntax.OpConcat || re.Sub[0].Op != syntax.OpBeginText ||
		re.Sub[1].Op != syntax.OpLiteral || re.Sub[1].Flags&syntax.FoldCase != 0 {
		return ""
	}
	return string(re.Sub[1].Rune)
}

// finds reports whether a URL leads to the zone, or none can be made.
func (s *search) finds(httpPort int) bool {
	for _, listen := range s.server.Listen {
		address, err := caddy.ParseNetworkAddress(listen)
		if err != nil {
			continue
		}
		scheme := "http"
		if len(s.server.TLSConnPolicies) > 0 && int(address.StartPort) != httpPort {
			scheme = "https"
		}
		for _, host := range s.hosts[:min(len(s.hosts), 8)] {
			if !slices.Contains([]uint{0, 80, 443}, address.StartPort) && !strings.Contains(host, ":") {
				host = fmt.Sprintf("%s:%d", host, address.StartPort)
			}
			for _, path := range s.paths {
				if s.tries(scheme + "://" + concrete(host) + concrete("/"+strings.TrimPrefix(path, "/"))) {
					return true
				}
			}
		}
	}
	if before := strings.TrimSuffix(s.put, "/"); before != "" && !s.isCut {
		s.isCut = true
		for i, path := range s.paths {
			s.paths[i] = strings.Replace(path, before, "", 1)
		}
		return s.finds(httpPort)
	}
	return false
}

// concrete returns what a pattern matches.
func concrete(pattern string) string { return strings.ReplaceAll(pattern, "*", "x") }

// tries reports whether a URL leads to the zone. What keeps it away is noted if it came nearer than
// the others before.
func (s *search) tries(url string) (found bool) {
	r, err := ExplainRequest{URL: url}.build()
	if err != nil {
		return false
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), s.server)
	try := *s
	try.by, try.isPathUnknown = "", false
	try.isOwn = try.selects(r) && !slices.ContainsFunc(s.routes, func(route *caddyhttp.Route) bool { return try.missing(route.MatcherSets, r) != "" })
	try.deep, try.mismatch = 0, ""
	w := routeWalk{server: s.server, search: &try}
	w.reach = func(l Limiter, _ []string) (bool, error) {
		if l == s.to {
			found = try.selects(r)
		}
		return l != s.to, nil
	}
	if _, err := w.routes(s.server.Routes, &r); err != nil {
		return true
	}
	if found {
		s.leads = url
	}
	if try.url, try.path = url, r.URL.Path; !found && (s.url == "" || try.isOwn && !s.isOwn || try.isOwn == s.isOwn && try.deep > s.deep) {
		*s = try
	}
	return found
}

// selects reports whether the zone limits a request that has come to its handler.
func (s *search) selects(r *http.Request) bool {
	s.deep = len(s.routes) + 1
	if s.mismatch = s.missing(s.zone.Matchers, r); s.mismatch == "" && s.matches(s.zone.Except, r) && len(s.zone.Except) > 0 {
		s.mismatch = Except
	}
	return s.mismatch == ""
}

// enters reports whether a request goes into a route. Where the URL doesn't decide, it goes into
// those around the zone alone.
func (s *search) enters(route *caddyhttp.Route, r *http.Request) bool {
	if !s.isAround(route) {
		return s.matches(route.MatcherSets, r)
	}
	if s.mismatch = s.missing(route.MatcherSets, r); s.mismatch != "" {
		return false
	}
	s.deep++
	return true
}

// isAround reports whether a route leads to the zone that is searched for. s is nil without one.
func (s *search) isAround(route *caddyhttp.Route) bool {
	return s != nil && slices.Contains(s.routes, route)
}

// matches reports whether some sets match all requests of a URL.
func (s *search) matches(sets caddyhttp.MatcherSets, r *http.Request) bool {
	s.path = r.URL.Path
	decided := slices.DeleteFunc(slices.Clone(sets), func(set caddyhttp.MatcherSet) bool { return slices.ContainsFunc(set, s.isOpen) })
	matched, err := decided.AnyMatchWithError(r)
	return len(sets) == 0 || len(decided) > 0 && matched && err == nil
}

// missing returns a matcher for which some sets match no request of a URL, "" if they may.
func (s *search) missing(sets caddyhttp.MatcherSets, r *http.Request) string {
	s.path = r.URL.Path
	var decided caddyhttp.MatcherSets
	for _, set := range sets {
		decided = append(decided, slices.DeleteFunc(slices.Clone(set), s.isOpen))
	}
	names, _ := mismatchOf(decided, r)
	return strings.Join(names[:min(len(names), 1)], "")
}

// isOpen reports whether the URL does not decide what a matcher says.
func (s *search) isOpen(m any) bool {
	switch m := m.(type) {
	case *caddyhttp.MatchPath:
		return s.isPathUnknown || slices.ContainsFunc(*m, func(path string) bool { return strings.ContainsAny(path, `{?[\`) && !hasQuery(path) })
	case *caddyhttp.MatchPathRE:
		return s.isPathUnknown || strings.HasPrefix(s.path, beginOf(m.Pattern))
	case *caddyhttp.MatchHeader:
		return !hasKey(*m, func(field string) bool { return strings.HasSuffix(field, ":") })
	case *caddyhttp.MatchQuery:
		return !hasKey(*m, func(name string) bool { return strings.HasPrefix(name, "?") })
	case *caddyhttp.MatchHost:
		return strings.Contains(strings.Join(*m, ""), "{")
	case *caddyhttp.MatchProtocol:
		return *m == "grpc" || strings.HasPrefix(string(*m), "http/")
	case *caddyhttp.MatchMethod:
		return slices.ContainsFunc(*m, func(method string) bool { return !strings.Contains(method, ",") })
	case *caddyhttp.MatchNot:
		return slices.ContainsFunc(slices.Concat(m.MatcherSets...), s.isOpen)
	}
	return true
}

// hasQuery reports whether a pattern has a question mark that no path has: that of a query, or one
// that is taken literally, as beside a single star that begins or ends it.
func hasQuery(path string) bool {
	isLiteral := strings.Count(path, "*") == 1 && strings.Trim(path, "*") != path
	return strings.Contains(path, "?") && (isLiteral || strings.Contains(path, "="))
}

// hasKey reports whether a matcher's fields have such a name, which no request has.
func hasKey(fields map[string][]string, is func(name string) bool) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(fields)), is)
}

// passes notes a handler that the request comes to.
func (s *search) passes(h caddyhttp.MiddlewareHandler, name string) {
	if rw, ok := h.(*rewrite.Rewrite); ok {
		if before, _, found := strings.Cut(rw.URI, "{http.request.uri"); found {
			s.put = before
		}
		text, _ := json.Marshal(h)
		known := strings.NewReplacer("{http.request.uri", "", "{http.request.orig_uri", "").Replace(string(text))
		s.isPathUnknown = s.isPathUnknown || strings.Contains(known, "{http.")
	}
	if neverPasses(h, name) {
		s.by = name
	}
}

// neverPasses reports whether a handler hands no request on.
func neverPasses(h caddyhttp.MiddlewareHandler, name string) bool {
	files, ok := h.(*fileserver.FileServer)
	return ok && !files.PassThru || slices.Contains(Ending, name)
}

// text says what keeps requests from the zone, and what to write.
func (s *search) text() string {
	matcher := "its matcher " + s.mismatch
	if s.deep <= len(s.routes) {
		matcher = "the matcher " + s.mismatch + " of a block around it"
	}
	switch {
	case s.mismatch == Except:
		return fmt.Sprintf("it limits no request, as all of them are in its exception, like %s; narrow or remove except", s.url)
	case s.mismatch != "":
		return fmt.Sprintf("no request comes to it, as %s does not match %s%s", matcher, s.url, s.mend())
	case s.by != "":
		return fmt.Sprintf("no request comes to it, as %s answers %s before; write rate_limit above that in a block `route { … }`, and without a global `order` that puts it behind", s.by, s.url)
	}
	return fmt.Sprintf("no request comes to it, as a block before its own takes %s; write rate_limit into that one", s.url)
}

// mend says what to write in place of the matcher that does not match.
func (s *search) mend() string {
	_, rest, _ := strings.Cut(s.url, "://")
	path := rest[strings.Index(rest, "/"):]
	for _, pattern := range s.paths {
		cut := len(path) - len(s.path)
		switch {
		case s.mismatch == "path_regexp":
			return fmt.Sprintf(", whose path is %s there; write one that matches it, like `^/`", s.path)
		case s.mismatch != "path":
			return "; write one that does, a host without its port, a header without its colon, a query without its question mark, several without commas, or remove it"
		case hasQuery(pattern):
			before, _, _ := strings.Cut(pattern, "?")
			return fmt.Sprintf("; a path has no question mark: write `path %s*`, and the matcher query for a query", before)
		case !strings.HasPrefix(pattern, "/") && !strings.HasPrefix(pattern, "*"):
			if u, err := url.Parse(pattern); err == nil && u.Host != "" {
				pattern = u.Path
			}
			return fmt.Sprintf("; a path begins with a slash: write `path /%s`", strings.TrimLeft(pattern, "^/"))
		case cut > 0 && concrete(pattern) == path && path[cut:] == s.path:
			return fmt.Sprintf(", which is %s there, as handle_path or uri has cut it; write `path %s`", s.path, pattern[cut:])
		}
	}
	if s.path != path {
		return fmt.Sprintf(", which is %s there, as rewrite or uri has changed it; write it as it is there", s.path)
	}
	return "; write a path below that of the block around it"
}
