package ratelimit

import (
	"net/http"
	"net/textproto"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// warnLooseTrust warns of a server that trusts proxies, but not strictly.
func warnLooseTrust(said *warning.Once, logger *zap.Logger, server *caddyhttp.Server) {
	of := "trusted_proxies"
	if name := server.Name(); name != "" {
		of += " of apps.http.servers." + name
	}
	said.Warn(logger, warning.TrustNotStrict, of+" is not strict, so a client can choose the address it is counted by; "+
		"add trusted_proxies_strict to the servers block of the global options, in JSON `\"trusted_proxies_strict\": 1`")
}

// A proxyWatch looks among the first requests, and later among one in a thousand, for headers that proxies send, where the client's address
// is in a key. Its zero value looks at nothing.
type proxyWatch struct {
	keyed bool         // by the client's address
	first atomic.Int32 // requests that are all looked at
}

const proxyWatchFirst = 1000

// keys notes the key of a zone.
func (w *proxyWatch) keys(k *keyTemplate) {
	for i := range k.parts {
		if k.parts[i].source == fromClientIP && !w.keyed {
			w.keyed = true
			w.first.Store(proxyWatchFirst)
		}
	}
}

// due says whether to look at a request; the last bits of its time are as good as a die.
func (w *proxyWatch) due(now int64) bool {
	return w.keyed && (now&1023 == 0 || w.first.Load() > 0)
}

// look warns where the address that a request is counted by is a proxy's, or one that the client can choose.
func (w *proxyWatch) look(said *warning.Once, logger *zap.Logger, r *http.Request) {
	if w.first.Load() > 0 {
		w.first.Add(-1)
	}
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return
	}
	field := forwardedBy(r, server)
	if field == "" {
		return
	}
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	switch {
	case !trusted:
		said.Warn(logger, warning.UntrustedProxy, "requests come with a header of proxies from an address that is not in trusted_proxies; "+
			"if a proxy of yours stands there, all its clients share one count: set trusted_proxies and trusted_proxies_strict",
			zap.String("header", field), zap.String("remote_ip", remoteHost(r)))
	case server.TrustedProxiesStrict == 0:
		warnLooseTrust(said, logger, server)
	}
}

// forwardedBy is a header of the request that claims an address, "" if there is none.
func forwardedBy(r *http.Request, server *caddyhttp.Server) string {
	for _, field := range server.ClientIPHeaders {
		if field = textproto.CanonicalMIMEHeaderKey(field); len(r.Header[field]) > 0 {
			return field
		}
	}
	for _, field := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		if len(r.Header[field]) > 0 {
			return field
		}
	}
	return ""
}
