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

// request is one that each of the examples matches.
func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://example.com/a?q=1", nil)
	r.TLS, r.RemoteAddr = &tls.ConnectionState{HandshakeComplete: true}, "192.0.2.1:1234"
	r.Header.Set("X", "a")
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, &caddyhttp.Server{})
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "192.0.2.1")
	return r
}

// An address can have a part in the answer of every matcher but those of the method and the path.
func TestWhichMatchersAnAddressMayHaveAPartIn(t *testing.T) {
	proven := map[string]bool{"method": true, "path": true, "path_regexp": true, "not": true}
	path, sets := set(t, `{"path": ["/a"]}`), map[string]caddyhttp.MatcherSet{"unknown": {unknown{}}}
	for _, module := range caddy.GetModules("http.matchers") {
		name := module.ID.Name()
		if examples[name] == "" {
			t.Errorf("there is no example of the matcher %s", name)
			continue
		}
		sets[name] = set(t, `{"`+name+`": `+examples[name]+`}`)
	}
	for name, one := range sets {
		want := 1
		if proven[name] {
			want++
		}
		if got := ProvenIn(append(one, path...)); len(got) != want {
			t.Errorf("%s beside a path: %d are proven in early data, want %d", name, len(got), want)
		}
		r := request()
		if ok, err := (caddyhttp.MatcherSets{one}).AnyMatchWithError(r); !ok || err != nil {
			t.Errorf("%s matches %v, %v, so its example says nothing", name, ok, err)
		}
	}
	for _, text := range []string{`{"path": ["/{http.vars.x}"]}`, `{"not": [{"path": ["/b"]}, {"header": {"Y": ["a"]}}]}`} {
		if got := ProvenIn(set(t, text)); len(got) != 0 {
			t.Errorf("%s is proven", text)
		}
	}
}

// A request is as it came until a handler gives it another method or path.
func TestARequestAsItCame(t *testing.T) {
	if !IsAsItCame(request()) {
		t.Error("a request that no handler has changed is not as it came")
	}
	for what, change := range map[string]func(*http.Request){
		"method": func(r *http.Request) { r.Method = http.MethodPost }, "path": func(r *http.Request) { r.URL.Path = "/b" },
		"escaped path": func(r *http.Request) { r.URL.RawPath = "/%61" },
	} {
		r := request()
		if change(r); IsAsItCame(r) {
			t.Errorf("a request with another %s is as it came", what)
		}
	}
}
