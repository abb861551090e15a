// no clock: configurations are only read here.

package behaviour_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// An unreached site has a zone that no request comes to. Each comes with the global options, and is
// warned of with these words; mended it is not.
type unreached struct{ global, site, want, mended string }

const (
	apisZone   = "rate_limit {\nzone z {\nmatch path /api/*\nlimit 5/30d\n}\n}\n"
	loginsZone = "rate_limit {\nzone z {\nmatch path /login*\nlimit 5/30d\n}\n}\n"
)

var unreachedSites = map[string]unreached{
	"behind a proxy in a route":   {"", "route {\nreverse_proxy localhost:9000\nrate_limit 5/30d\n}", "reverse_proxy answers http://a.example/ before", "route {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}"},
	"order last":                  {"order rate_limit last", "rate_limit 5/30d\nrespond ok", "static_response answers http://a.example/ before", "route {\nrate_limit 5/30d\nrespond ok\n}"},
	"order after reverse_proxy":   {"order rate_limit after reverse_proxy", "rate_limit 5/30d\nreverse_proxy localhost:9000", "reverse_proxy answers", "route {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}"},
	"order after file_server":     {"order rate_limit after file_server", "rate_limit 5/30d\nfile_server", "file_server answers", "route {\nrate_limit 5/30d\nfile_server\n}"},
	"handle_path":                 {"", "handle_path /api/* {\n" + apisZone + "}", "its matcher path does not match http://a.example/api/x, which is /x there, as handle_path or uri has cut it; write `path /*`", "handle_path /api/* {\n" + strings.Replace(apisZone, "/api/*", "/*", 1) + "}"},
	"handle_path and more":        {"", "handle_path /api/* {\n" + strings.Replace(loginsZone, "/login", "/api/login", 1) + "}", "http://a.example/api/loginx, which is /loginx there, as handle_path or uri has cut it; write `path /login*`", "handle_path /api/* {\n" + loginsZone + "}"},
	"strip_prefix":                {"", "uri strip_prefix /api\n" + apisZone, "which is /x there, as handle_path or uri has cut it; write `path /*`", "uri strip_prefix /api\n" + strings.Replace(apisZone, "/api/*", "/*", 1)},
	"rewrite":                     {"", "rewrite * /index.php?{query}\n" + loginsZone, "which is /index.php there, as rewrite or uri has changed it", "route {\n" + loginsZone + "rewrite * /index.php?{query}\n}"},
	"no slash":                    {"", strings.Replace(apisZone, "/api", "api", 1), "http://a.example/api/x; a path begins with a slash: write `path /api/*`", apisZone},
	"host with its port":          {"", "rate_limit {\nzone z {\nmatch host a.example:8080\nlimit 5/30d\n}\n}", "its matcher host does not match http://a.example:8080/; write one that does, a host without its port", "rate_limit {\nzone z {\nmatch host a.example\nlimit 5/30d\n}\n}"},
	"another host":                {"", "rate_limit {\nzone z {\nmatch host b.example\nlimit 5/30d\n}\n}", "its matcher host does not match", "rate_limit {\nzone z {\nmatch host a.example\nlimit 5/30d\n}\n}"},
	"protocol":                    {"", "rate_limit {\nzone z {\nmatch protocol https\nlimit 5/30d\n}\n}", "its matcher protocol does not match http://a.example/; write one that does", "rate_limit {\nzone z {\nlimit 5/30d\n}\n}"},
	"in another handle":           {"", "handle /app/* {\n" + loginsZone + "}", "its matcher path does not match http://a.example/app/loginx", "handle /app/* {\n" + strings.Replace(loginsZone, "/login", "/app/login", 1) + "}"},
	"a handle in handle_path":     {"", "handle_path /api/* {\nhandle /api/login* {\nrate_limit 5/30d\n}\n}", "the matcher path of a block around it does not match http://a.example/api/loginx, which is /loginx there", "handle_path /api/* {\nhandle /login* {\nrate_limit 5/30d\n}\n}"},
	"a redirect before":           {"", "redir https://{host}{uri}\nrate_limit 5/30d", "static_response answers", "route {\nrate_limit 5/30d\nredir https://{host}{uri}\n}"},
	"behind a whole handle":       {"", "route {\nhandle {\nrespond ok\n}\nhandle /x {\nrate_limit 5/30d\n}\n}", "static_response answers http://a.example/x before", "route {\nhandle /x {\nrate_limit 5/30d\n}\nhandle {\nrespond ok\n}\n}"},
	"all excepted":                {"", "rate_limit {\nzone z {\nexcept path /*\nlimit 5/30d\n}\n}", "all of them are in its exception, like http://a.example/", "rate_limit {\nzone z {\nexcept path /health\nlimit 5/30d\n}\n}"},
	"an expression in a cut path": {"", "handle_path /api/* {\nrate_limit {\nzone z {\nmatch path_regexp ^/api/v[0-9]/login\nlimit 5/30d\n}\n}\n}", "its matcher path_regexp does not match http://a.example/api/vx, whose path is /vx there", "handle_path /api/* {\nrate_limit {\nzone z {\nmatch path_regexp ^/v[0-9]/login\nlimit 5/30d\n}\n}\n}"},
	"an expression, no slash":     {"", zoneOf("match path_regexp ^api/v[0-9]"), "its matcher path_regexp does not match http://a.example/api/vx, whose path is /api/vx there", zoneOf("match path_regexp ^/api/v[0-9]")},
	"a path with a query":         {"", zoneOf("match path /wp-login.php?action=lostpassword*"), "a path has no question mark: write `path /wp-login.php*`, and the matcher query for a query", zoneOf("match path /wp-login.php*")},
	"a query with its mark":       {"", zoneOf("match query ?action=login"), "its matcher query does not match http://a.example/; write one that does, a host without its port, a header without its colon, a query without its question mark", zoneOf("match query action=login")},
	"a header with its colon":     {"", zoneOf("match header Upgrade: *"), "its matcher header does not match", zoneOf("match header Upgrade *")},
	"behind X-Accel-Redirect":     {"", "route {\nreverse_proxy localhost:9000 {\n@accel header X-Accel-Redirect *\nhandle_response @accel {\nroot /srv\nfile_server\n}\n}\nrate_limit 5/30d\n}", "reverse_proxy answers http://a.example/ before", "route {\nrate_limit 5/30d\n" + proxy + "}"},
	"behind a changed status":     {"", "route {\nreverse_proxy localhost:9000 {\n@none status 404\nreplace_status @none 200\n}\nrate_limit 5/30d\n}", "reverse_proxy answers http://a.example/ before", "route {\nrate_limit 5/30d\n" + proxy + "}"},
	"a whole URL":                 {"", zoneOf("match path https://a.example/login*"), "a path begins with a slash: write `path /login*`", zoneOf("match path /login*")},
	"taken by a handle of a path": {"", "handle /api/* {\nrespond ok\n}\nhandle {\n" + zoneOf("match path /api/login*") + "}", "static_response answers http://a.example/api/loginx before", "route {\n" + zoneOf("match path /api/login*") + "handle /api/* {\nrespond ok\n}\nrespond ok\n}"},
	"a question mark and a star":  {"", zoneOf("match path /v?/login*"), "a path has no question mark: write `path /v*`", zoneOf("match path /v*")},
	"a rewrite of the path":       {"", "rewrite /api/* /v2{uri}\n" + apisZone, "which is /v2/api/x there, as rewrite or uri has changed it", "rewrite /api/* /v2{uri}\n" + strings.Replace(apisZone, "/api", "/v2/api", 1)},
	"methods with a comma":        {"", zoneOf("match method POST,PUT"), "its matcher method does not match", zoneOf("match method POST PUT")},
	"an unknown protocol":         {"", zoneOf("match protocol ws"), "its matcher protocol does not match", zoneOf("match protocol http")},
	"a named route":               {"", "route {\nrespond ok\ninvoke limits\n}", "static_response answers", "route {\ninvoke limits\nrespond ok\n}"},
}

// warnedOf returns the warnings with a code of a site.
func warnedOf(t *testing.T, code, global, site string) (all []string) {
	t.Helper()
	config, err := sitetest.Adapt("{\nauto_https off\n" + global + "\n}\n&(limits) {\nrate_limit 5/30d\n}\nhttp://a.example {\n" + site + "\n}\n")
	if err != nil {
		t.Fatalf("%s: Adapt: %v", site, err)
	}
	for _, w := range sitetest.WarnedOf(t, config) {
		if strings.HasPrefix(w, code) {
			all = append(all, w)
		}
	}
	return all
}

// The site of a host that stands in a site of a wildcard takes its requests.
func TestAHostWithASiteOfItsOwn(t *testing.T) {
	site := "http://*.a.example {\n@api host api.a.example\nhandle @api {\nrate_limit 5/30d\n}\n}\n"
	for sites, want := range map[string]int{site: 0, site + "http://api.a.example {\nrespond ok\n}": 1} {
		config, err := sitetest.Adapt("{\nauto_https off\n}\n" + sites)
		if err != nil {
			t.Fatal(err)
		}
		got := sitetest.WarnedOf(t, config)
		if len(got) != want || want > 0 && !strings.Contains(got[0], "static_response answers http://api.a.example/ before") {
			t.Errorf("%s: warned of %q, want %d", sites, got, want)
		}
	}
}

// panicking is a matcher of somebody else that can take no request which no server has received.
type panicking struct{}

func (panicking) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.panicking", New: func() caddy.Module { return new(panicking) }}
}
func (*panicking) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { d.Next(); return nil }
func (panicking) MatchWithError(*http.Request) (bool, error)       { panic("no connection") }

func init() { caddy.RegisterModule(panicking{}) }

// Where a handler asks at which address a request has come in, or a matcher can't take one that was
// made up, the load goes on, and nothing is said of how the zone is reached.
func TestNoHandlerEndsALoad(t *testing.T) {
	for _, site := range []string{
		"header X-Served-By {http.request.local.host}\nrate_limit 5/30d\nrespond ok",
		"vars at {http.request.local}\nmap {http.request.local.port} {p} {\n80 eighty\n}\nrate_limit 5/30d",
		"rewrite /at/{http.request.local.port}{uri}\nrate_limit 5/30d",
		"@a panicking\nhandle @a {\nrate_limit 5/30d\n}",
	} {
		if got := warnedOf(t, "", "", site); len(got) > 0 {
			t.Errorf("%s: warned of %q", site, got)
		}
	}
}

func TestUnreachedZonesAreToldAtLoad(t *testing.T) {
	for name, c := range unreachedSites {
		if got := warnedOf(t, warning.NotReached, c.global, c.site); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s: warned of %q, want once %q", name, got, c.want)
		}
		if got := warnedOf(t, warning.NotReached, "", c.mended); len(got) > 0 {
			t.Errorf("%s: mended it is warned of %q", name, got)
		}
	}
}
