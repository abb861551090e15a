package reqkey

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func TestReadNumber(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), &caddyhttp.Server{})
	vars := Vars(r)
	header, variable, mapped := NewNumber("{http.request.header.X-Plan}"), NewNumber("{http.vars.plan}"), NewNumber("{plan}")
	for value, want := range map[string]int64{
		"0": 0, "5": 5, "007": 7, "9007199254740992": 1 << 53, "unlimited": Unlimited,
	} {
		r.Header.Set("X-Plan", value)
		vars["plan"] = value
		repl.Set("plan", value)
		for _, p := range []*Number{header, variable, mapped} {
			if n, text, ok := p.Read(r, vars); n != want || !ok || text != "" {
				t.Errorf("%s of %q = %d, %q, %v, want %d", p.Name(), value, n, text, ok, want)
			}
		}
	}
	for _, value := range []any{7, int64(7), uint16(7)} {
		repl.Set("plan", value)
		if n, _, ok := mapped.Read(r, vars); n != 7 || !ok {
			t.Errorf("%T: %d, %v, want 7", value, n, ok)
		}
	}
	for _, value := range []any{nil, "", "9007199254740993", 1.5, -1, "-0", "1,000", []string{"5"}, true} {
		repl.Set("plan", value)
		if n, _, ok := mapped.Read(r, vars); ok {
			t.Errorf("%v was read as %d", value, n)
		}
	}
	if _, _, ok := NewNumber("{nobody.knows}").Read(httptest.NewRequest(http.MethodGet, "/", nil), nil); ok {
		t.Error("a request without a replacer brings a number")
	}
}

func FuzzWholeNumber(f *testing.F) {
	for _, seed := range []string{"", "0", "9007199254740992", "9007199254740993", "-1", "+1", "00000000000000000000000000001", "1\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := wholeNumber(s)
		want, err := strconv.ParseUint(s, 10, 64)
		wanted := err == nil && want <= 1<<53
		if ok != wanted || ok && got != int64(want) || got < 0 || got > math.MaxInt64/2 {
			t.Errorf("wholeNumber(%q) = %d, %v, want %d, %v", s, got, ok, want, wanted)
		}
	})
}

func TestWhoChoosesANumber(t *testing.T) {
	for placeholder, clients := range map[string]bool{
		"{http.request.header.X-Plan}": true, "{http.request.cookie.plan}": true, "{http.request.uri.query.plan}": true, "{http.request.uri.path.1}": true,
		"{http.request.orig_uri.query}": true, "{http.request.body}": true, "{http.vars.plan}": false, "{plan}": false, "{http.auth.user.plan}": false,
		"{http.request.tls.client.subject}": false, "{http.request.host}": false, "{env.LIMIT}": false,
	} {
		if got := NewNumber(placeholder).IsClients(); got != clients {
			t.Errorf("IsClients of %s = %v, want %v", placeholder, got, clients)
		}
	}
}
