package simulate

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// A maker makes the requests of records, as a server would get them.
type maker struct {
	server *caddyhttp.Server
	// reused is the request that stands for all, nil where each has one of its own: to make one
	// ready costs as much as all else together. replacer is what it has.
	reused   *http.Request
	replacer *caddy.Replacer
}

// newMaker returns a maker of a server. plain is Policy.isPlain.
func newMaker(s *caddyhttp.Server, plain bool) maker {
	m := maker{server: s}
	if plain {
		m.replacer = caddy.NewReplacer()
		m.reused = caddyhttp.PrepareRequest(&http.Request{URL: new(url.URL)}, m.replacer, httptest.NewRecorder(), s)
	}
	return m
}

// costInLog is the variable that has Options.CostField of a request, and CostInLog its placeholder.
const (
	costInLog = "cost_in_log"
	CostInLog = "{http.vars." + costInLog + "}"
)

// request makes the request of a record, which is valid until the next one. It returns false for
// one that no server would have taken.
func (m *maker) request(rec *accesslog.Record) (*http.Request, bool) {
	r, repl := m.reused, m.replacer
	isNew := r == nil || rec.ClientIP == ""
	if isNew {
		r, repl = new(http.Request), caddy.NewReplacer()
	}
	if !fill(r, rec) {
		return nil, false
	}
	if isNew {
		r = caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), m.server)
	} else {
		vars := reqkey.Vars(r)
		clear(vars)
		vars[caddyhttp.TrustedProxyVarKey] = false
		repl.Delete("http.auth.user.id")
	}
	if rec.ClientIP != "" {
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, rec.ClientIP)
	}
	if rec.User != "" {
		repl.Set("http.auth.user.id", rec.User)
	}
	if rec.Field != "" {
		caddyhttp.SetVar(r.Context(), costInLog, rec.Field)
	}
	return r, true
}

// fill sets all fields of a request that come from the client. It returns false where they are
// none.
func fill(r *http.Request, rec *accesslog.Record) bool {
	uri := cmp.Or(rec.URI, "/")
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return false
	}
	u.Scheme, u.Host = "", ""
	r.Method, r.URL, r.RequestURI, r.Host = cmp.Or(rec.Method, http.MethodGet), u, uri, rec.Host
	r.Header, r.Body, r.TLS = rec.Headers, http.NoBody, nil
	if r.ContentLength = -1; rec.Sized {
		r.ContentLength = rec.BodySize
	}
	// Nobody has read the body of a request that was denied.
	if n, err := strconv.ParseInt(rec.Headers.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.ContentLength = n
	}
	r.Proto, r.ProtoMajor, r.ProtoMinor = rec.Proto, 1, 1
	if major, minor, ok := http.ParseHTTPVersion(rec.Proto); ok {
		r.ProtoMajor, r.ProtoMinor = major, minor
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if rec.TLS {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, ServerName: rec.Host}
	}
	r.RemoteAddr = net.JoinHostPort(cmp.Or(rec.RemoteIP, rec.ClientIP), "49152")
	return true
}
