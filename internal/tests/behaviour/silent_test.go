// no clock: configurations are only read here.

package behaviour_test

import (
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// silentFiles are Caddyfiles as operators write them. The limit of a broken one does nothing, or
// not what it is for, and loading it says so once; those that work are not warned of.
var silentFiles = map[string]struct {
	text   string
	broken bool
}{
	"WordPress":                       {"http://a.example {\nroot /srv\nrate_limit {\nzone z {\nmatch path /wp-login.php* /xmlrpc.php*\nlimit 5/30d\n}\n}\nphp_fastcgi localhost:9000\nfile_server\n}", false},
	"PHP in a route":                  {"http://a.example {\nroot /srv\nroute {\nphp_fastcgi localhost:9000\nfile_server\nrate_limit 5/30d\n}\n}", true},
	"Nextcloud":                       {"http://a.example {\nroot /srv\nredir /.well-known/carddav /remote.php/dav 301\nrate_limit {\nzone z {\nmatch path /login* /index.php/login*\nlimit 5/30d\n}\n}\nphp_fastcgi localhost:9000\nfile_server\n}", false},
	"an API by handle_path":           {"http://a.example {\nhandle_path /api/* {\nrate_limit /login* 5/30d\nreverse_proxy localhost:9000\n}\nhandle {\nfile_server\n}\n}", false},
	"an SPA":                          {"http://a.example {\nroot /srv\nhandle /api/* {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\nhandle {\ntry_files {path} /index.html\nfile_server\n}\n}", false},
	"forward_auth":                    {"http://a.example {\nroute {\nforward_auth localhost:9001 {\nuri /verify\ncopy_headers Remote-User\n}\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\n}", false},
	"a CDN":                           {"{\nservers {\ntrusted_proxies static private_ranges\ntrusted_proxies_strict\n}\n}\nhttp://a.example {\nrate_limit {\nzone z {\nexcept client_ip 192.168.1.0/24\nlimit 5/30d\n}\n}\nreverse_proxy localhost:9000\n}", false},
	"several hosts":                   {"http://a.example, http://b.example {\nrate_limit {\nzone z {\nmatch host b.example\nlimit 5/30d\n}\n}\nreverse_proxy localhost:9000\n}", false},
	"several hosts, none of it":       {"http://a.example, http://b.example {\nrate_limit {\nzone z {\nmatch host c.example\nlimit 5/30d\n}\n}\nreverse_proxy localhost:9000\n}", true},
	"a wildcard":                      {"http://*.example.com {\n@api host api.example.com\nhandle @api {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\nhandle {\nabort\n}\n}", false},
	"a wildcard, too deep":            {"http://*.example.com {\n@api host api.v1.example.com\nhandle @api {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\nhandle {\nabort\n}\n}", true},
	"a redirect to https":             {"http://a.example {\nredir https://{host}{uri}\n}\nhttp://b.example {\nrate_limit 5/30d\nrespond ok\n}", false},
	"a snippet in two blocks":         {"(limits) {\nrate_limit {\nzone login {\nmatch path /login*\nlimit 5/30d\n}\nzone api {\nmatch path /api/*\nlimit 6/30d\n}\n}\n}\nhttp://a.example {\nhandle /api/* {\nimport limits\nreverse_proxy localhost:9000\n}\nhandle {\nimport limits\nreverse_proxy localhost:9001\n}\n}", false},
	"a snippet in the wrong one":      {"(limits) {\nrate_limit {\nzone login {\nmatch path /login*\nlimit 5/30d\n}\n}\n}\nhttp://a.example {\nhandle /api/* {\nimport limits\nreverse_proxy localhost:9000\n}\nhandle {\nreverse_proxy localhost:9001\n}\n}", true},
	"a named route":                   {"&(limits) {\nrate_limit 5/30d\n}\nhttp://a.example {\nroute {\ninvoke limits\nreverse_proxy localhost:9000\n}\n}", false},
	"a named route, too late":         {"&(limits) {\nrate_limit 5/30d\n}\nhttp://a.example {\nroute {\nreverse_proxy localhost:9000\ninvoke limits\n}\n}", true},
	"an address on another site":      {"http://a.example {\n" + apiZone + "}\nhttp://b.example {\nrate_limit 50/30d\n}", true},
	"a client's key in a named route": {"&(limits) {\n" + apiZone + "}\nhttp://a.example {\nroute {\ninvoke limits\nreverse_proxy localhost:9000\n}\n}", true},
	"static files":                    {"http://a.example {\nroot /srv\nrate_limit 5/30d\nfile_server\n}", false},
	"maintenance and bots":            {"http://a.example {\n@bots header User-Agent *bot*\nroute {\nrespond @bots 403\nrespond /health ok\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\n}", false},
	"an upload by its method":         {"http://a.example {\n@up {\nmethod POST PUT\npath /upload*\n}\nroute @up {\nrate_limit 5/30d\nreverse_proxy localhost:9000\n}\nreverse_proxy localhost:9001\n}", false},
	"a unix socket":                   {"{\nservers {\ntrusted_proxies_unix\n}\n}\nhttp://a.example {\nbind unix//run/a.sock\nrate_limit /api/* 5/30d\nreverse_proxy localhost:9000\n}", false},
	"a prefix that is stripped":       {"http://a.example {\nuri strip_prefix /app\nrate_limit /login* 5/30d\nreverse_proxy localhost:9000\n}", false},
}

func TestLimitsThatDoNothingAreTold(t *testing.T) {
	for name, c := range silentFiles {
		config, err := sitetest.Adapt(c.text)
		if err != nil {
			t.Fatalf("%s: Adapt: %v", name, err)
		}
		if got := sitetest.WarnedOf(t, config); (len(got) == 1) != c.broken || len(got) > 1 {
			t.Errorf("%s: warned of\n%s\nwant broken = %t", name, strings.Join(got, "\n"), c.broken)
		}
	}
}
