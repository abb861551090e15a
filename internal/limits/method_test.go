package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func expression(t *testing.T, text string) caddyhttp.MatcherSet {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	m := &caddyhttp.MatchExpression{Expr: text}
	if err := m.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	return caddyhttp.MatcherSet{m}
}

// A backend may read a method whatever its case, so a zone is for a request if it is for its method
// as it came or in upper case. A negation still holds for it as it came.
func TestAMethodMatchesInEitherCase(t *testing.T) {
	post := caddyhttp.MatcherSet{&caddyhttp.MatchMethod{"POST"}}
	notGet := caddyhttp.MatcherSet{&caddyhttp.MatchNot{MatcherSets: []caddyhttp.MatcherSet{{&caddyhttp.MatchMethod{"GET"}}}}}
	for name, c := range map[string]struct {
		set    caddyhttp.MatcherSet
		method string
		want   bool
	}{
		"as it is written": {post, "POST", true}, "lower case": {post, "post", true}, "mixed case": {post, "pOsT", true}, "another method": {post, "put", false},
		"upper case, another": {post, "PUT", false}, "a negation": {notGet, "GET", false}, "a negation as it came": {notGet, "get", true},
		"an expression":                {expression(t, `method("POST")`), "post", true},
		"an expression of the value":   {expression(t, `{http.request.method} == "POST"`), "post", true},
		"an expression of another one": {expression(t, `{http.request.method} == "POST"`), "put", false},
		"written in lower case":        {caddyhttp.MatcherSet{&caddyhttp.MatchMethod{"post"}}, "post", true},
		"a custom method":              {caddyhttp.MatcherSet{&caddyhttp.MatchMethod{"Purge"}}, "Purge", true},
	} {
		z := &Zone{ZoneOptions: ZoneOptions{Matchers: caddyhttp.MatcherSets{c.set}}}
		r := httptest.NewRequest(c.method, "/", nil)
		repl := caddy.NewReplacer()
		r = caddyhttp.PrepareRequest(r, repl, nil, &caddyhttp.Server{})
		if ok, excepted, err := z.Selects(r, nil); ok != c.want || excepted || err != nil {
			t.Errorf("%s, %s: %v, %v, %v, want %v", name, c.method, ok, excepted, err, c.want)
		}
		if is, _ := repl.GetString("http.request.method"); r.Method != c.method || is != c.method {
			t.Errorf("%s: the method is %s and %s afterwards, want %s", name, r.Method, is, c.method)
		}
	}
}

// Nobody is excepted by a method that is none.
func TestAMethodOfLowerCaseIsNoException(t *testing.T) {
	z := &Zone{ZoneOptions: ZoneOptions{Except: caddyhttp.MatcherSets{{&caddyhttp.MatchMethod{"OPTIONS"}}}}}
	for method, want := range map[string]bool{http.MethodOptions: true, "options": false} {
		if ok, excepted, err := z.Selects(httptest.NewRequest(method, "/", nil), nil); !ok || excepted != want || err != nil {
			t.Errorf("%s: %v, excepted %v, %v, want %v", method, ok, excepted, err, want)
		}
	}
}
