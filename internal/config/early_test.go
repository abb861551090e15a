package config

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

// examples are a value of each of Caddy's matchers that the request of these tests matches.
var examples = map[string]string{
	"client_ip": `{"ranges": ["192.0.2.0/24"]}`, "remote_ip": `{"ranges": ["192.0.2.0/24"]}`, "expression": `"true"`, "file": `{"root": "/", "try_files": ["/"]}`,
	"header": `{"X": ["a"]}`, "header_regexp": `{"X": {"pattern": "a"}}`, "host": `["example.com"]`, "method": `["GET"]`, "not": `[{"path": ["/other"]}]`,
	"path": `["/a"]`, "path_regexp": `{"pattern": "^/a$"}`, "protocol": `"https"`, "query": `{"q": ["1"]}`, "tls": `{}`, "vars": `{"{http.vars.client_ip}": ["192.0.2.1"]}`,
	"vars_regexp": `{"{http.vars.client_ip}": {"pattern": "^192"}}`, "url_pattern": `{"pattern": "/a"}`,
}

// unknown is another module's matcher.
type unknown struct{}

func (unknown) Match(*http.Request) bool { return true }

// set loads matchers as a zone does.
func set(t *testing.T, text string) caddyhttp.MatcherSet {
	t.Helper()
	var holder struct {
		Raw caddy.ModuleMap `caddy:"namespace=http.matchers"`
	}
	if err := json.Unmarshal([]byte(text), &holder.Raw); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	loaded, err := ctx.LoadModule(&holder, "Raw")
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var sets caddyhttp.MatcherSets
	if err := sets.FromInterface([]map[string]any{loaded.(map[string]any)}); err != nil {
		t.Fatal(err)
	}
	return sets[0]
}

// requestFor returns a request for /a that a handler has changed, in early data or not.
func requestFor(early bool, change func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://example.com/a?q=1", nil)
	r.TLS, r.RemoteAddr = &tls.ConnectionState{HandshakeComplete: !early}, "192.0.2.1:1234"
	r.Header.Set("X", "a")
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, &caddyhttp.Server{})
	if caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1"); change != nil {
		change(r)
	}
	return r
}

// Every matcher grants what it asks for after the handshake. In early data only those do that an
// address can have no part in: of the method and the path, as the server got them.
func TestWhatGrantsInEarlyData(t *testing.T) {
	proven := map[string]bool{"method": true, "path": true, "path_regexp": true, "not": true}
	sets := map[string]caddyhttp.MatcherSet{"unknown": {unknown{}}}
	for _, module := range caddy.GetModules("http.matchers") {
		name := module.ID.Name()
		if examples[name] == "" {
			t.Errorf("there is no example of the matcher %s", name)
			continue
		}
		sets[name] = set(t, `{"`+name+`": `+examples[name]+`}`)
	}
	for name, one := range sets {
		check := func(what string, r *http.Request, matcher caddyhttp.MatcherSet, want bool) {
			t.Helper()
			if ok, err := Matches(caddyhttp.MatcherSets{matcher}, r); ok != want || err != nil {
				t.Errorf("%s, %s: grants %v, %v, want %v", name, what, ok, err, want)
			}
			if others := OtherClasses([]caddyhttp.MatcherSets{{matcher}}, r); (others == 0) != want {
				t.Errorf("%s, %s: reserved for the request: %v, want %v", name, what, others == 0, want)
			}
		}
		check("after the handshake", requestFor(false, nil), one, true)
		check("in early data", requestFor(true, nil), one, proven[name])
		check("beside a path", requestFor(true, nil), append(set(t, `{"path": ["/a"]}`), one...), proven[name])
		check("on a path that was rewritten", requestFor(true, func(r *http.Request) {
			came := *r.URL // which the server keeps apart
			came.Path = "/b"
			*r = *r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, http.Request{Method: "GET", URL: &came}))
		}), one, false)
		if MatchersAreProven([]caddyhttp.MatcherSet{one}) != proven[name] {
			t.Errorf("%s: proven is %v, want %v", name, !proven[name], proven[name])
		}
	}
	for _, text := range []string{`{"path": ["/{http.vars.x}"]}`, `{"not": [{"path": ["/b"]}, {"header": {"Y": ["a"]}}]}`} {
		if one := set(t, text); MatchersAreProven([]caddyhttp.MatcherSet{one}) {
			t.Errorf("%s is proven", text)
		}
	}
}
