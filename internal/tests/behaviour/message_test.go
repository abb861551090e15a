package behaviour_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A message is sent as it is written, except placeholders that are known. One that is JSON is sent
// as JSON, whatever their values are.
func TestMessageThroughCaddy(t *testing.T) {
	const text, object = "text/plain; charset=utf-8", "application/json"
	for message, want := range map[string][2]string{
		`slow down`:               {text, `slow down`},
		`{"message":"slow down"}`: {object, `{"message":"slow down"}`},
		`{"error":{"code":429,"of":["a",{"b":1}]}}`: {object, `{"error":{"code":429,"of":["a",{"b":1}]}}`},
		`[{"code": 429}]`: {object, `[{"code": 429}]`},
		`{"zone":"{http.rate_limit.exceeded.name}","limit":{http.rate_limit.said.limit},"x":"{http.request.header.X}","y":{http.request.header.X}}`: {
			object, `{"zone":"said","limit":0,"x":"a\"}\\{env.HOME}","y":"a\"}\\{env.HOME}"}`,
		},
		`{"unknown":"{nothing.there}"}`:                               {object, `{"unknown":"{nothing.there}"}`},
		`{"broken": }`:                                                {text, `{"broken": }`},
		`{nothing.there} and {}`:                                      {text, `{nothing.there} and {}`},
		`{ {http.rate_limit.exceeded.name} }`:                         {text, `{ said }`},
		`{http.rate_limit.exceeded.name}, X: {http.request.header.X}`: {text, `said, X: a"}\{env.HOME}`},
		`\{http.rate_limit.exceeded.name\}`:                           {text, `{http.rate_limit.exceeded.name}`},
		`{http.rate_limit.said.limit}`:                                {text, `0`},
		`{http.request.header.None}`:                                  {text, ``},
		`a } b { c`:                                                   {text, `a } b { c`},
		`<style>p { color: red }</style>`:                             {text, `<style>p { color: red }</style>`},
	} {
		s := sitetest.StartCaddy(t, "", fmt.Sprintf("rate_limit {\nmessage `%s`\n%s}\nrespond ok", message, sitetest.ZoneBlock("said", "limit 0/30d")))
		a, err := s.Get(t.Context(), "HTTP/1.1", sitetest.Header("X", `a"}\{env.HOME}`))
		if err != nil || a.Status != http.StatusTooManyRequests {
			t.Fatalf("%d, %v", a.Status, err)
		}
		if got := a.Header.Get("Content-Type"); got != want[0] || a.Body != want[1] {
			t.Errorf("message %s: %s of type %q, want %s of type %q", message, a.Body, got, want[1], want[0])
		}
	}
}
