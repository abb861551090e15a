package behaviour_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// through is a request that came from a peer, as a server with such trusted proxies prepares it.
func through(trusted bool, strict int, name, value string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set(name, value)
		server := &caddyhttp.Server{TrustedProxiesStrict: strict, ClientIPHeaders: []string{"X-Forwarded-For"}}
		*r = *caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, server)
		caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, trusted)
	}
}

func TestForwardingHeadersAreWarnedOfOnce(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     func(*http.Request)
		key        string
		untrusted  int
		permissive int
	}{
		{"no header", through(false, 0, "Accept", "*/*"), "", 0, 0},
		{"not trusted", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "", 1, 0},
		{"another header", through(false, 0, "Forwarded", "for=9.9.9.9"), "", 1, 0},
		{"trusted, not strict", through(true, 0, "X-Forwarded-For", "9.9.9.9"), "", 0, 1},
		{"trusted and strict", through(true, 1, "X-Forwarded-For", "9.9.9.9"), "", 0, 0},
		{"no address in the key", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\n", 0, 0},
		{"an exception by address", through(false, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\nexcept private_ranges\n", 1, 0},
		{"a matcher by address", through(true, 0, "X-Forwarded-For", "9.9.9.9"), "key {http.request.header.X-Api-Key}\nmatch not client_ip 10.0.0.0/8\n", 0, 1},
	} {
		block := sitetest.ZoneBlock("proxies", c.key+"limit 1/30d") + sitetest.ZoneBlock("proxies2", c.key+"limit 2/30d")
		s := sitetest.NewSite(t, &ratelimit.App{}, block)
		logs := s.Watched()
		for range 50 {
			s.Send(behind(s, c.change))
		}
		if n, m := sitetest.Coded(logs, warning.UntrustedProxy), sitetest.Coded(logs, warning.TrustNotStrict); n != c.untrusted || m != c.permissive {
			t.Errorf("%s: warned %d times of an untrusted proxy and %d times of trust that is not strict, want %d and %d: %v", c.name, n, m, c.untrusted, c.permissive, logs.All())
		}
		s.End()
	}
}

// behind is a request whose server is the change's, not the site's.
func behind(s *sitetest.Site, change func(*http.Request)) *http.Request {
	r := s.Request("1.2.3.4")
	change(r)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "1.2.3.4")
	return r
}

// Each warning at load, with its place in the Caddyfile.
func TestWarningsAtLoad(t *testing.T) {
	sitetest.Goldens(t, "testdata/warnings/*.caddyfiletest", func(t *testing.T, input string) string {
		config, err := sitetest.Adapt(input)
		if err != nil {
			t.Fatalf("Adapt: %v", err)
		}
		return strings.Join(sitetest.WarnedOf(t, config), "\n")
	})
}

// And in JSON, where there are no lines.
func TestWarningsAtLoadOfJSON(t *testing.T) {
	sitetest.Goldens(t, "testdata/warnings/*.jsontest", func(t *testing.T, input string) string {
		return strings.Join(sitetest.WarnedOf(t, []byte(input)), "\n")
	})
}

// lineOfACaddyfile is one that an error tells to write.
var lineOfACaddyfile = regexp.MustCompile("(write|like|add|line) `[a-z_]+ [^`\"]*`")

// Errors of JSON name the field, and Caddy the handler. They say what to write in JSON.
func TestErrorsInJSONNameTheirPlace(t *testing.T) {
	sitetest.Goldens(t, "testdata/errors/*.jsontest", func(t *testing.T, input string) string {
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON([]byte(input), &c); err != nil {
			t.Fatalf("StrictUnmarshalJSON(%s): %v", input, err)
		}
		err := caddy.Validate(&c)
		if err == nil {
			t.Fatal("Validate = nil, want an error")
		}
		if line := lineOfACaddyfile.FindString(err.Error()); line != "" {
			t.Errorf("it is no Caddyfile: %s", line)
		}
		return err.Error()
	})
}
