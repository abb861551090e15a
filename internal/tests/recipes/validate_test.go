// no clock: configurations are only read here.

package recipes_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// What can be known without traffic, caddy validate says. Each of these adapts, or is JSON.
func TestValidateFindsMistakes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TIDE_TEST_URL", "redis://localhost:port")
	t.Setenv("TIDE_TEST_NAMESPACE", "{shop}")
	t.Setenv("TIDE_TEST_MISSING", filepath.Join(dir, "missing.pem"))
	site := ":80 {\n\trate_limit 5/1m\n}\n"
	zones := func(options string) string {
		return "http://a.example {\n\trate_limit {\n\t\tzone z {\n" + options + "\n}\n}\n}\n"
	}
	for what, c := range map[string]struct{ caddyfile, want string }{
		"a Redis URL":               {"{\n\trate_limit {\n\t\tredis {env.TIDE_TEST_URL}\n\t}\n}\n" + site, "a port from 1 to 65535"},
		"a namespace":               {"{\n\trate_limit {\n\t\tnamespace {env.TIDE_TEST_NAMESPACE}\n\t}\n}\n" + site, "without braces"},
		"an unset namespace":        {"{\n\trate_limit {\n\t\tnamespace {env.TIDE_TEST_UNSET}\n\t}\n}\n" + site, "namespace"},
		"a certificate's file":      {"{\n\trate_limit {\n\t\tredis {\n\t\t\ttls_enabled\n\t\t\ttls_server_certs_path " + dir + "/missing\n\t\t}\n\t}\n}\n" + site, "tls_server_certs_path"},
		"a key's file":              {"{\n\trate_limit {\n\t\tredis {\n\t\t\ttls_enabled\n\t\t\ttls_client_cert {env.TIDE_TEST_MISSING}\n\t\t\ttls_client_key {env.TIDE_TEST_MISSING}\n\t\t}\n\t}\n}\n" + site, "missing.pem"},
		"a storage without a Redis": {"{\n\trate_limit {\n\t\tredis storage\n\t}\n}\n" + site, "doesn't lend"},
		"a matcher":                 {zones("limit 5/1m\nmatch {\nexpression `1 +`\n}"), "expression"},
		"a regular expression":      {zones("limit 5/1m\nmatch {\npath_regexp (\n}"), "path_regexp"},
	} {
		config, err := sitetest.Adapt(c.caddyfile)
		if err != nil {
			t.Errorf("%s: Adapt: %v", what, err)
			continue
		}
		var parsed caddy.Config
		if err := caddy.StrictUnmarshalJSON(config, &parsed); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&parsed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Validate = %v, want an error with %q", what, err, c.want)
		}
	}
}
