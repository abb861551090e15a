package reqkey

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"pgregory.net/rapid"
)

// pathOf makes a key of a request for a path, as it came and as a handler before left it.
func pathOf(t testing.TB, template, path string) (string, bool) {
	t.Helper()
	r := request("http://example.com/")
	r.URL.Path, r.RequestURI = path, (&url.URL{Path: path}).RequestURI()
	r, _ = prepared(t, r, "192.0.2.1")
	came := http.Request{Method: r.Method, URL: &url.URL{Path: path}}
	r = r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, came))
	key, empty := mustKey(t, template, 32, 64).Append(nil, r, Vars(r))
	return string(key), empty
}

// However a client writes a path, its parts are those of the one spelling.
func TestPartsOfAPathHaveOneSpelling(t *testing.T) {
	for _, family := range []string{"uri", "orig_uri"} {
		for _, c := range []struct {
			n           int
			clean, want string
			others      []string
		}{
			{1, "/t/acme/f", "acme", []string{"/t/0/../acme/f", "/t/99/../acme/f", "//t/acme/f", "/t//acme/f", "/./t/acme/f", "/x/../t/acme/f", "/../t/acme/f", "/t/acme/x/../f", "/t/acme/f/"}},
			{0, "/t", "t", []string{"/t/", "//t", "/t/.", "/x/../t", "/x/y/../../t"}},
			{2, "/t/acme", "", []string{"/t/acme/", "/t/acme/.", "/t/acme/x/.."}},
			{0, "/", "", []string{"//", "/.", "/..", "/x/.."}},
		} {
			template := fmt.Sprintf("{http.request.%s.path.%d}", family, c.n)
			for _, path := range append(c.others, c.clean) {
				if key, _ := pathOf(t, template, path); key != "\x01"+string(rune(len(c.want)))+c.want {
					t.Errorf("%s of %s: key %q, want that of %q", template, path, key, c.want)
				}
			}
		}
	}
}

// Of a clean path each part is Caddy's own, so the keys of honest clients stay what they are.
func TestPartsOfACleanPathAreCaddys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.StringMatching(`(/|(/[a-z%é][a-z.]{0,3}){1,4}/?|\*)?`).Draw(rt, "path")
		n := rapid.IntRange(0, 5).Draw(rt, "part")
		r := request("http://example.com/")
		r.URL.Path = path
		r, repl := prepared(t, r, "192.0.2.1")
		want, _ := repl.GetString(fmt.Sprintf("http.request.uri.path.%d", n))
		if got := partOf(path, n); got != want {
			rt.Errorf("part %d of %q is %q, want %q", n, path, got, want)
		}
	})
}

// A part of the path is there whoever asks, so a key without its header is empty. Other names that
// begin like it are what they were.
func TestPartsOfAPathTellNobodyApart(t *testing.T) {
	for template, want := range map[string]bool{
		"{http.request.header.X-Api-Key} {http.request.uri.path.1}": true, "{http.request.header.X-Api-Key} {http.request.orig_uri.path.0}": true,
		"{http.request.header.X-Api-Key} {http.request.uri.path.file}": true, "{http.request.header.X-Api-Key} {http.request.uri.path.file.ext}": true,
		"{http.request.header.X-Api-Key} {http.request.uri.path.dir}": true, "{http.request.uri.path.1}": false, "{http.request.uri.path.7}": true,
	} {
		if _, empty := pathOf(t, template, "/a/b.c"); empty != want {
			t.Errorf("%s: empty is %v, want %v", template, empty, want)
		}
	}
	for name, want := range map[string]string{"file": "b.c", "file.base": "b", "file.ext": ".c", "dir": "/a"} {
		if key, _ := pathOf(t, "{http.request.uri.path."+name+"}", "/a/b.c"); key != "\x01"+string(rune(len(want)))+want {
			t.Errorf("{http.request.uri.path.%s}: key %q, want that of %q", name, key, want)
		}
	}
	r := request("/t/acme") // outside of a server there is none that came
	if key, empty := mustKey(t, "{http.request.orig_uri.path.1}", 32, 64).Append(nil, r, nil); !empty || string(key) != "\x01\x00" {
		t.Errorf("the original path outside of a server: %q, %v", key, empty)
	}
}

// A backend that reads a method whatever its case must not give a client more counts.
func TestMethodsHaveOneSpelling(t *testing.T) {
	k, keys := mustKey(t, "{client_ip}{http.request.method}", 32, 64), map[string]bool{}
	for _, method := range []string{"POST", "post", "pOsT"} {
		r := request("/")
		r.Method = method
		r, _ = prepared(t, r, "192.0.2.1")
		key, _ := keyOf(t, k, r)
		keys[key] = true
	}
	if len(keys) != 1 || !keys["\x04\xc0\x00\x02\x01\x01\x04POST"] {
		t.Errorf("three spellings of POST have the keys %v", keys)
	}
}
