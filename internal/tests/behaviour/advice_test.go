// no clock: configurations are only read here.

package behaviour_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	bob       = "basic_auth {\nBob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}\n"
	guessZone = "rate_limit {\nzone z {\nmatch path /*\nlimit 5/30d\ncount_responses 401\n}\n}\n"
	trust     = "servers {\ntrusted_proxies static private_ranges\ntrusted_proxies_strict\n}"
	proxy     = "reverse_proxy localhost:9000\n"
)

// userZone and apiZone are zones by who asks: as somebody is known, and as he says himself.
var userZone, apiZone = zoneOf("key {http.auth.user.id}"), zoneOf("key {header.X-Api-Key}")

// zoneOf is a rate_limit with a zone with these options.
func zoneOf(options string) string {
	return "rate_limit {\nzone z {\n" + options + "\nlimit 5/30d\n}\n}\n"
}

// denied is a site with a limit and an error route.
func denied(route, handlers string) string {
	return "rate_limit 5/30d\n" + proxy + route + " {\n" + handlers + "\n}"
}

// advisedSites are warned of once with a code, and mended with none.
var advisedSites = map[string]struct{ code, global, site, mended string }{
	"of PHP":                            {warning.ExactPath, "", zoneOf("match path /wp-login.php /xmlrpc.php"), zoneOf("match path /wp-login.php* /xmlrpc.php*")},
	"a path that ends in a slash":       {warning.ExactPath, "", "rate_limit /api/ 5/30d", "@api path /api /api/*\nrate_limit @api 5/30d"},
	"a suffix of PHP":                   {warning.ExactPath, "", zoneOf("match path *.php"), zoneOf("match path *.php *.php/*")},
	"a key of the proxy":                {warning.PeerMatched, trust, zoneOf("key {remote_host}"), zoneOf("key {client_ip}")},
	"an exception of a claimed address": {warning.ForgeableKey, "", zoneOf("except header X-Real-IP 10.*"), zoneOf("except 10.0.0.0/8")},
	"an exception of what calls itself": {warning.ForgeableKey, "", zoneOf("except header User-Agent *Uptime*"), zoneOf("except 203.0.113.7")},
	"an address and the body":           {warning.ClientsKey, "", zoneOf("key \"{client_ip} {http.request.body}\""), zoneOf("key \"{client_ip} {http.request.body}\"") + "rate_limit 50/30d\n"},
	"an address and the whole URI":      {warning.ClientsKey, "", zoneOf("key \"{client_ip} {uri}\""), zoneOf("key \"{client_ip} {path}\"")},
	"an address and a program's name":   {warning.ClientsKey, "", zoneOf("key \"{client_ip} {header.User-Agent}\""), zoneOf("key \"{client_ip} {header.User-Agent}\"") + "rate_limit 50/30d\n"},
	"paths with a comma":                {warning.ExactPath, "", zoneOf("match path /login*, /register*"), zoneOf("match path /login* /register*")},
	"two stars":                         {warning.ExactPath, "", zoneOf("match path /api/**"), zoneOf("match path /api/*")},
	"a class beside a star":             {warning.ExactPath, "", zoneOf("match path /v[0-9]/login*"), zoneOf("match path_regexp ^/v[0-9]/login")},
	"a regular expression as the path":  {warning.ExactPath, "", zoneOf("match path /v\\d+/login*"), zoneOf("match path_regexp ^/v\\d+/login")},
	"of the directive":                  {warning.ExactPath, "", "rate_limit /login 5/30d", "rate_limit /login* 5/30d"},
	"of a handle":                       {warning.ExactPath, "", "handle /login {\nrate_limit 5/30d\n}", "handle /login* {\nrate_limit 5/30d\n}"},
	"within a handle with a star":       {warning.ExactPath, "", "handle /api/* {\n" + zoneOf("match path /api/login") + "}", "handle /api/* {\n" + zoneOf("match path /api/login*") + "}"},
	"order after authentication":        {warning.NotReached, "order rate_limit after basic_auth", guessZone + bob + proxy, "route {\n" + guessZone + bob + proxy + "}"},
	"a ban after authentication":        {warning.NotReached, "order rate_limit after basic_auth", zoneOf("ban 15m") + bob, "route {\n" + zoneOf("ban 15m") + bob + "}"},
	"after it in a handle":              {warning.NotReached, "order rate_limit after basic_auth", "handle /admin/* {\n" + guessZone + bob + "}", "route /admin/* {\n" + guessZone + bob + "}"},
	"by the user before":                {warning.BeforeAuth, "", zoneOf("key {http.auth.user.id}") + bob, "route {\n" + bob + zoneOf("key {http.auth.user.id}") + "}"},
	"not the proxy":                     {warning.PeerMatched, trust, zoneOf("match not remote_ip 10.0.0.0/8"), zoneOf("match not client_ip 10.0.0.0/8")},
	"the proxy by the directive":        {warning.PeerMatched, trust, "@out not remote_ip 10.0.0.0/8\nrate_limit @out 5/30d", "@out not client_ip 10.0.0.0/8\nrate_limit @out 5/30d"},
	"sync_rate in seconds":              {warning.NotMeant, "rate_limit {\nredis redis://localhost:1/0\n}", zoneOf("sync_rate 2678400"), zoneOf("sync_rate 500ms")},
	"a file as the message":             {warning.NotMeant, "", "rate_limit 5/30d {\nmessage page.html\n}", "rate_limit 5/30d {\nmessage \"Come back later.\"\n}"},
	"responses of a proxy":              {warning.LimitOnErrors, "", "reverse_proxy localhost:9000 {\n@no status 401\nhandle_response @no {\nrate_limit 5/30d\n}\n}", guessZone + proxy},
	"responses that are intercepted":    {warning.LimitOnErrors, "", "intercept {\n@no status 401 403\nhandle_response @no {\nrate_limit 5/30d\n}\n}", guessZone + proxy},
	"responses of who authenticates":    {warning.LimitOnErrors, "", "forward_auth localhost:9001 {\nuri /\n@no status 4xx\nhandle_response @no {\nrate_limit 5/30d\n}\n}", guessZone + proxy},
	"users and addresses before":        {warning.BeforeAuth, "", "route {\n" + userZone + bob + "rate_limit 50/30d\n}", "route {\n" + bob + userZone + "rate_limit 50/30d\n}"},
	"users in a route of their own":     {warning.BeforeAuth, "", "route {\nroute {\n" + userZone + "}\nroute {\n" + bob + "}\n}", "route {\nroute {\n" + bob + "}\nroute {\n" + userZone + "}\n}"},
	"users before a route":              {warning.BeforeAuth, "", "route {\nrate_limit 50/30d\n" + userZone + "route {\n" + bob + "}\n}", "route {\nroute {\nrate_limit 50/30d\n" + bob + userZone + "}\n}"},
	"a key behind an answer":            {warning.ClientsKey, "", "@bad not header X-Api-Key s*\nroute {\nrespond @bad 404\n" + apiZone + "}", "@bad not header X-Api-Key s*\nroute {\nrespond @bad 403\n" + apiZone + "}"},
	"a key before a proxy":              {warning.ClientsKey, "", apiZone + proxy, "route {\nforward_auth localhost:9001 {\nuri /\n}\n" + apiZone + proxy + "}"},
	"denials as 200":                    {warning.HiddenDenial, "", denied("handle_errors", `respond "busy" 200`), denied("handle_errors", `respond "busy"`)},
	"denials as 302":                    {warning.HiddenDenial, "", denied("handle_errors 429", "redir * /busy.html"), denied("handle_errors 429", "rewrite * /busy.html\nfile_server")},
	"denials as a file":                 {warning.HiddenDenial, "", denied("handle_errors 4xx", "rewrite * /busy.html\ntemplates\nfile_server {\nstatus 200\n}"), denied("handle_errors 4xx", "rewrite * /busy.html\ntemplates\nfile_server")},
	"denials by an expression":          {warning.HiddenDenial, "", denied("handle_errors", "@busy expression {err.status_code} == 429\nrespond @busy busy 200"), denied("handle_errors", "@busy expression {err.status_code} == 429\nrespond @busy busy {err.status_code}")},
	"denials of another status":         {warning.HiddenDenial, "", "rate_limit 5/30d {\nstatus 503\n}\nhandle_errors 503 {\nrespond busy 200\n}", "rate_limit 5/30d {\nstatus 503\n}\nhandle_errors 503 {\nrespond busy 503\n}"},
	"denials below a path":              {warning.HiddenDenial, "", "rate_limit /api/* 5/30d\n" + denied("handle_errors", "handle /api/* {\nrespond busy 200\n}"), "rate_limit /api/* 5/30d\n" + denied("handle_errors", "handle /api/* {\nrespond busy\n}")},
}

func TestAdviceAndItsMend(t *testing.T) {
	for name, c := range advisedSites {
		if got := warnedOf(t, c.code, c.global, c.site); len(got) != 1 {
			t.Errorf("%s: warned of %q, want one %s", name, got, c.code)
		}
		global := c.global
		if strings.HasPrefix(global, "order") {
			global = "" // as the mend says
		}
		if got := warnedOf(t, "TIDE", global, c.mended); len(got) > 0 {
			t.Errorf("%s: mended it is warned of %q", name, got)
		}
	}
}

// Unix sockets have no addresses, and trusted_proxies doesn't hold there.
func TestAUnixSocketNeedsItsOwnTrust(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("socket", "limit 1/30d"))
		logs := s.Watched()
		from := func(address string) *http.Request {
			r := s.Request("1.2.3.4")
			r.RemoteAddr = "@"
			r.Header.Set("X-Forwarded-For", address)
			return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, &caddyhttp.Server{TrustedProxiesUnix: trusted, TrustedProxiesStrict: 1, ClientIPHeaders: []string{"X-Forwarded-For"}})
		}
		s.Send(from("9.9.9.8"))
		if got := s.Send(from("9.9.9.9")).Status; (got == http.StatusOK) != trusted {
			t.Errorf("trusted %t: another client got %d", trusted, got)
		}
		for _, code := range []string{warning.UntrustedProxy, warning.EmptyKey} {
			lines := logs.FilterField(zap.String("code", code)).All()
			if (len(lines) == 0) != trusted || len(lines) > 0 && !strings.Contains(lines[0].Message, "trusted_proxies_unix") {
				t.Errorf("trusted %t: %s is %v, want trusted_proxies_unix named where it is missing", trusted, code, lines)
			}
		}
		s.End()
	}
}

// A snippet that no site imports limits nothing.
func TestGlobalOptionsAloneLimitNothing(t *testing.T) {
	for site, want := range map[string]int{"respond ok": 1, "import limits": 0} {
		log := filepath.Join(t.TempDir(), "log")
		config, err := sitetest.Adapt("{\nadmin off\nlog default {\noutput file " + log + "\n}\nrate_limit {\nsync_rate local\n}\n}\n" +
			"(limits) {\nrate_limit 5/30d\n}\nhttp:// {\nbind tidetest/alone\n" + site + "\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(caddy.Load(config, true), caddy.Stop()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(log)
		if got := strings.Count(string(text), warning.NoZone); got != want || err != nil {
			t.Errorf("%s: %d warnings, %v, want %d: %s", site, got, err, want, text)
		}
	}
}

// What works is not warned of.
var fineSites = map[string]struct{ global, site string }{
	"the root":                        {"", "rate_limit / 5/30d"},
	"responses of one path":           {"", "rate_limit /login* 5/30d {\ncount_responses 401\n}"},
	"responses in a block of a path":  {"", "handle /login* {\nrate_limit 5/30d {\ncount_responses 401\n}\n}"},
	"the path and what is below":      {"", "@login path /login /login/*\nrate_limit @login 5/30d"},
	"an exact path that costs none":   {"", "handle /usage {\n" + zoneOf("cost 0") + "}"},
	"remote_ip without proxies":       {"", zoneOf("except remote_ip 10.0.0.0/8")},
	"users without authentication":    {"", userZone},
	"addresses before authentication": {"", "route {\nrate_limit 5/30d\n" + bob + "}"},
	"a map on the error route":        {"", "rate_limit {\nzone z {\nlimit {plan.of.team}/30d\nlimit_default 1/30d\n}\n}\nhandle_errors {\nmap {path} {plan.of.team} {\ndefault 2\n}\n}"},
	"responses of some requests":      {"", "@post method POST\nroute @post {\n" + zoneOf("count_responses 401") + "}"},
	"all errors":                      {"", "handle_errors {\nrate_limit 5/30d\n}"},
	"one of all errors":               {"", "rate_limit 5/30d\nhandle_errors 401 {\nrespond no\n}"},
	"users after authentication":      {"", "route {\n" + bob + zoneOf("key {http.auth.user.id}\nban 15m") + "}"},
	"authentication of other paths":   {"", "route {\nbasic_auth /admin/* {\nBob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}\n" + guessZone + "}"},
	"a suffix below a path":           {"", "handle /wp-admin/* {\n" + zoneOf("match path *.php *.php/*") + "}"},
	"a suffix in a cut path":          {"", "handle_path /blog* {\n" + zoneOf("match path *.php *.php/*") + "}"},
	"a path below a suffix":           {"", "@php path *.php *.php/*\nhandle @php {\n" + zoneOf("match path /wp-admin/*") + "}"},
	"an expression below a suffix":    {"", "@php path *.php *.php/*\nhandle @php {\n" + zoneOf("match path_regexp ^/wp-(admin|login)") + "}"},
	"an expression below a path":      {"", "handle /api/* {\n" + zoneOf("match path_regexp ^/api/v[0-9]+/login\nmatch path_regexp (?i)/LOGIN$") + "}"},
	"an expression of no slash":       {"", "handle_path /api/* {\n" + zoneOf("match path_regexp ^/?login") + "}"},
	"responses that go on":            {"", "route {\nreverse_proxy localhost:9000 {\n@in status 2xx\nhandle_response @in {\nrequest_header X-User {rp.header.X-User}\n}\n@none status 404\nreplace_status @none 200\n}\n" + zoneOf("") + "}"},
	"both with and without a slash":   {"", zoneOf("match path /up /up/") + "handle /static/* {\n" + zoneOf("match path *.php") + "}"},
	"a key of the peer, no proxies":   {"", zoneOf("key {remote_host}")},
	"exceptions of more":              {"", zoneOf("except {\nheader User-Agent kube-probe*\npath /healthz\n}\nexcept header X-Monitor-Token s3cret")},
	"an address and a path":           {"", zoneOf("key \"{client_ip} {path}\"")},
	"an address and a secret":         {"", zoneOf("key \"{client_ip} {header.X-Api-Key}\"")},
	"an address and a user":           {"", "route {\n" + bob + zoneOf("key \"{client_ip} {http.auth.user.id}\"") + "}"},
	"an address and a map of keys":    {"", "map {header.X-Api-Key} {plan} {\ndefault free\n}\n" + zoneOf("key \"{client_ip} {plan}\"")},
	"a path that rewrite lengthens":   {"", "rewrite * /wordpress{uri}\n" + zoneOf("match path /wordpress/wp-login.php*")},
	"one of a cut path":               {"", "handle_path /shop/* {\nrewrite * /index.php{uri}\n" + zoneOf("match path /index.php/login*") + "}"},
	"a question mark for a letter":    {"", zoneOf("match path /v?/*/login*")},
	"wildcards":                       {"", zoneOf("match path /v[0-9]/*/login* /a/*/b* */feed/* /.well-known/* /.*")},
	"gRPC and HTTP/2":                 {"", zoneOf("match protocol grpc\nmatch protocol http/2+")},
	"methods":                         {"", zoneOf("match method PURGE post")},
	"good responses":                  {"", "reverse_proxy localhost:9000 {\n@ok status 2xx\nhandle_response @ok {\nrate_limit 5/30d\ncopy_response\n}\n}"},
	"an answer that keeps the status": {"", denied("handle_errors", `respond "busy"`)},
	"a file that keeps the status":    {"", denied("handle_errors", "try_files /busy.html\nfile_server")},
	"errors of other statuses":        {"", denied("handle_errors 404 5xx", "respond busy 200")},
	"errors of a status in between":   {"", denied("handle_errors", "@gone expression {err.status_code} < 429\nrespond @gone busy 200")},
	"errors of another path":          {"", "handle /api/* {\nrate_limit 5/30d\n}\nhandle_errors {\nrespond /app/* busy 200\n}"},
	"errors of a zone by its name":    {"", denied("handle_errors 429", "@z vars {http.rate_limit.exceeded.name} z\nrespond @z busy 200")},
	"errors of some clients":          {"", denied("handle_errors", "@in client_ip 127.0.0.1\nrespond @in busy 200\nrespond busy")},
	"errors that some keep":           {"", denied("handle_errors", "@in client_ip 10.0.0.0/8\nrespond @in busy\nrespond busy 200")},
	"errors of some methods":          {"", denied("handle_errors", "@get expression {method} == 'GET'\nrespond @get busy 200")},
	"errors after a rewrite":          {"", denied("handle_errors", "rewrite * /x\nrespond / busy 200")},
	"errors of an upstream":           {"", denied("handle_errors", proxy)},
	"errors that are routed before":   {"", denied("handle_errors 429", "respond busy") + "\nhandle_errors {\nrespond busy 200\n}"},
	"a zone that only slows":          {"", "rate_limit {\nzone z {\nbandwidth 1MB/s\n}\n}\nhandle_errors {\nrespond busy 200\n}"},
}

func TestNoAdviceWhereAllIsFine(t *testing.T) {
	for name, c := range fineSites {
		if got := warnedOf(t, "TIDE", c.global, c.site); len(got) > 0 {
			t.Errorf("%s: warned of %q", name, got)
		}
	}
}
