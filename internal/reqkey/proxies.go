package reqkey

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A ProxyWatch warns where the address that requests are counted or matched by is a proxy's, or one
// that a client can choose. It looks for headers that proxies send among the first requests, and
// later among one in a thousand. The zero value looks at nothing. It is safe for concurrent use
// once all templates and matchers are noted.
type ProxyWatch struct {
	addresses bool         // in a template's keys or a matcher
	first     atomic.Int32 // requests that are all looked at
}

const watchedFirst = 1000

// Note notes a template: where it counts by the client's address, there is something to watch.
func (w *ProxyWatch) Note(t *Template) { w.note(t.countsAddresses()) }

// NoteMatchers notes what a zone matches or excepts, which may depend on the client's address.
func (w *ProxyWatch) NoteMatchers(sets caddyhttp.MatcherSets) { w.note(matchBy(sets, isClientIP)) }

func (w *ProxyWatch) note(addresses bool) {
	if addresses {
		w.addresses = true
		w.first.Store(watchedFirst)
	}
}

// matchBy reports whether one of the matchers is such a one, also within not.
func matchBy(sets []caddyhttp.MatcherSet, is func(m any) bool) bool {
	return slices.ContainsFunc(slices.Concat(sets...), func(m any) bool {
		not, ok := m.(*caddyhttp.MatchNot)
		return is(m) || ok && matchBy(not.MatcherSets, is)
	})
}

func isClientIP(m any) bool {
	_, guarded := m.(clientIPMatcher)
	_, ok := m.(*caddyhttp.MatchClientIP)
	return guarded || ok
}

// MatchPeers reports whether one of the matchers is of the peer's address, which may be a proxy's.
func MatchPeers(sets []caddyhttp.MatcherSet) bool {
	return matchBy(sets, func(m any) bool {
		_, guarded := m.(remoteIPMatcher)
		_, ok := m.(*caddyhttp.MatchRemoteIP)
		return guarded || ok
	})
}

// ClaimedIn returns a header by which alone a client is matched, although it can send any: one that
// claims an address, or what it calls itself. "" is none.
func ClaimedIn(sets []caddyhttp.MatcherSet) string {
	for _, set := range sets {
		fields, ok := set[0].(*caddyhttp.MatchHeader)
		if !ok || len(set) > 1 || len(*fields) > 1 {
			continue
		}
		for field := range *fields {
			if claimsAddress(headerPrefix+field) || field == "User-Agent" {
				return field
			}
		}
	}
	return ""
}

// CheckServer warns of a server that trusts proxies without trusted_proxies_strict, or everybody
// with it. One that trusts others than TrustsProxies finds is warned of with the first request that
// shows it.
func (w *ProxyWatch) CheckServer(once *warning.Once, logger *zap.Logger, server *caddyhttp.Server) {
	switch {
	case !w.addresses || server == nil:
	case server.TrustedProxiesStrict == 0 && TrustsProxies(server):
		warnNotStrict(once, logger, server)
	case trusts(server, "8.8.8.8:1") && trusts(server, "193.0.6.139:1"):
		once.Warn(logger, warning.TrustNotStrict, "trusted_proxies trusts every address, so trusted_proxies_strict finds no client behind a proxy, and all have the proxy's address and share one count; "+
			"write the addresses of your proxies only")
	}
}

// TrustsProxies reports whether a server trusts proxies. Caddy tells whom it trusts by a request
// alone, so it is asked about some of private addresses. One that is strict trusts some.
func TrustsProxies(server *caddyhttp.Server) bool {
	peers := []string{"10.0.0.1:1", "172.16.0.1:1", "192.168.0.1:1", "127.0.0.1:1", "[::1]:1", "[fd00::1]:1"}
	return server.TrustedProxiesStrict != 0 || slices.ContainsFunc(peers, func(peer string) bool { return trusts(server, peer) })
}

// trusts reports whether a server takes an address for that of a proxy.
func trusts(server *caddyhttp.Server, peer string) bool {
	return isTrusted(caddyhttp.PrepareRequest(&http.Request{RemoteAddr: peer, URL: new(url.URL)}, caddy.NewReplacer(), nil, server))
}

// isTrusted reports whether a request comes from a proxy that its server trusts.
func isTrusted(r *http.Request) bool {
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	return trusted
}

func warnNotStrict(once *warning.Once, logger *zap.Logger, server *caddyhttp.Server) {
	of := "trusted_proxies"
	if name := server.Name(); name != "" {
		of += " of apps.http.servers." + name
	}
	once.Warn(logger, warning.TrustNotStrict, of+" is not strict, so a client can choose the address it is counted by; "+
		"add trusted_proxies_strict to the servers block of the global options, in JSON `\"trusted_proxies_strict\": 1`")
}

// Watch looks at a request if it is one of those that are looked at. A request in early data says
// nothing: its address is not proven.
func (w *ProxyWatch) Watch(once *warning.Once, logger *zap.Logger, r *http.Request, now int64) {
	if w.due(now) && !IsEarly(r) {
		w.look(once, logger, r)
	}
}

// due reports whether to look. The last bits of a request's time are as good as a die.
func (w *ProxyWatch) due(now int64) bool {
	return w.addresses && (now&1023 == 0 || w.first.Load() > 0)
}

// look warns of what a request's headers and address show.
func (w *ProxyWatch) look(once *warning.Once, logger *zap.Logger, r *http.Request) {
	if w.first.Load() > 0 {
		w.first.Add(-1)
	}
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return
	}
	field := ForwardingHeader(r, server)
	if field == "" {
		return
	}
	switch {
	case isTrusted(r) && server.TrustedProxiesStrict == 0:
		warnNotStrict(once, logger, server)
	case !isTrusted(r):
		once.Warn(logger, warning.UntrustedProxy, "requests come with a header of proxies from an address that is not in trusted_proxies; "+
			"if a proxy of yours stands there, all its clients have one address, and share one count and its exceptions: set trusted_proxies and trusted_proxies_strict, for one on a unix socket trusted_proxies_unix",
			zap.String("header", field), zap.String("remote_ip", RemoteHost(r)))
	}
}

// forwarding are the headers by which proxies tell of a client's address.
var forwarding = []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip"}

// ForwardingHeader returns a header of the request that claims an address, "" if there is none. An
// empty one counts: a proxy may leave what a client has sent, and write its own line below it. The
// server may be nil.
func ForwardingHeader(r *http.Request, server *caddyhttp.Server) string {
	if server != nil {
		for _, field := range server.ClientIPHeaders {
			if field = textproto.CanonicalMIMEHeaderKey(field); len(r.Header[field]) > 0 {
				return field
			}
		}
	}
	for _, field := range forwarding {
		if len(r.Header[field]) > 0 {
			return field
		}
	}
	return ""
}
