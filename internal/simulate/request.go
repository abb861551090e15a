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

// costInLog is the variable that has Options.CostField of a request, and CostInLog its placeholder.
const (
	costInLog = "cost_in_log"
	CostInLog = "{http.vars." + costInLog + "}"
)

// unwritten is the response of all requests, which nobody writes.
var unwritten = httptest.NewRecorder()

// requestOf makes the request of a record, as a server would get it. cost is what Options.CostField
// says of it. It returns false for one that no server would have taken.
func requestOf(s *caddyhttp.Server, rec *accesslog.Record, cost string) (*http.Request, bool) {
	uri := cmp.Or(rec.URI, "/")
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, false
	}
	u.Scheme, u.Host = "", ""
	r := &http.Request{
		Method: cmp.Or(rec.Method, http.MethodGet), URL: u, RequestURI: uri, Host: rec.Host, Header: rec.Headers,
		Proto: rec.Proto, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, ContentLength: -1,
		RemoteAddr: net.JoinHostPort(cmp.Or(rec.RemoteIP, rec.ClientIP), "49152"),
	}
	if rec.Sized {
		r.ContentLength = rec.BodySize
	}
	// Nobody has read the body of a request that was denied.
	if n, err := strconv.ParseInt(rec.Headers.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.ContentLength = n
	}
	if major, minor, ok := http.ParseHTTPVersion(rec.Proto); ok {
		r.ProtoMajor, r.ProtoMinor = major, minor
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if rec.TLS {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, ServerName: rec.Host}
	}
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(reqkey.OnLoopback(r), repl, unwritten, s)
	if rec.ClientIP != "" {
		caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, rec.ClientIP)
	}
	if rec.User != "" {
		repl.Set("http.auth.user.id", rec.User)
	}
	if cost != "" {
		caddyhttp.SetVar(r.Context(), costInLog, cost)
	}
	return r, true
}
