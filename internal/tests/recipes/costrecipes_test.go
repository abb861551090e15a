package recipes_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A costRecipe is a row of docs/cost.md.
type costRecipe struct {
	name, paths string
	lines       []string
}

func costRecipes(t *testing.T) (all []costRecipe) {
	t.Helper()
	_, text, _ := strings.Cut(sitetest.ReadPage(t, "docs/cost.md"), "\n## Recipes\n")
	code := regexp.MustCompile("`([^`]+)`")
	for _, m := range regexp.MustCompile("(?m)^\\| ([^|`]+) \\| `([^`]+)` \\| (.+) \\|$").FindAllStringSubmatch(text, -1) {
		if m[1] == "upstream" {
			continue
		}
		r := costRecipe{name: m[1], paths: m[2]}
		for _, line := range code.FindAllStringSubmatch(m[3], -1) {
			r.lines = append(r.lines, "response_cost "+line[1])
		}
		all = append(all, r)
	}
	return all
}

// site is the page's site with the lines of a recipe in place of its own.
//
// no clock: the page's rate is replaced by a longer one.
func (c costRecipe) site(t *testing.T, upstream string) string {
	t.Helper()
	_, site := sitetest.SiteInPage(t, "docs/cost.md", "llm.example.com")
	for _, part := range []struct{ line, with string }{
		{"match path .*", "match path " + c.paths + "\nkey all\nalgorithm fixed_window"},
		{"response_cost json .*", strings.Join(c.lines, "\n")}, {"limit 100000/1h", "limit 10000000/30d"}, {"limit 300/1h", "limit 30000/30d"}, {"zone ", "zone " + strings.Trim(strings.Fields(c.name)[0], ",") + "-"}, {"localhost:9000", upstream},
	} {
		at := regexp.MustCompile(part.line)
		if !at.MatchString(site) {
			t.Fatalf("the site of docs/cost.md has no %s", part.line)
		}
		site = at.ReplaceAllLiteralString(site, part.with)
	}
	return site
}

// stream are events as a service sends them.
func stream(events ...string) (all string) {
	for _, data := range events {
		if name, data, ok := strings.Cut(data, "|"); ok {
			all += "event: " + name + "\n" + "data: " + data + "\n\n"
		} else {
			all += "data: " + name + "\n\n"
		}
	}
	return all
}

// A serviceAnswer is what a service answers, as its documentation has it.
type serviceAnswer struct {
	path, contentType, body string
	header                  [2]string
	costs                   int64
	// left is what it costs a client that leaves before the end of the body, and read one that
	// leaves when it has read all: 0 where it can't be known.
	left, read int64
}

const (
	estimate, dearest = 1500, 16000

	ndjson, events = "application/x-ndjson", "text/event-stream; charset=utf-8"
)

var serviceAnswers = map[string][]serviceAnswer{
	"OpenAI": {
		{path: "/v1/chat/completions", contentType: "application/json", body: `{"id":"chatcmpl-B9","object":"chat.completion","created":1741569952,"model":"gpt-5","choices":[{"index":0,"message":{"role":"assistant","content":"{\"usage\":{\"total_tokens\":90000}}","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"service_tier":"default"}`, costs: 29, left: dearest},
		{path: "/v1/chat/completions/stream", contentType: events, body: stream(
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":null}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":1900,"completion_tokens":210,"total_tokens":2110}}`, `[DONE]`), costs: 2110, left: dearest, read: 2110},
		{path: "/v1/chat/completions/silent", contentType: events, body: stream(`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}`, `[DONE]`), costs: dearest, left: dearest, read: dearest},
		{path: "/v1/responses", contentType: "application/json", body: `{"id":"resp_67","object":"response","created_at":1741476777,"status":"completed","error":null,"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]}],"usage":{"input_tokens":328,"input_tokens_details":{"cached_tokens":0},"output_tokens":52,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":380},"user":null,"metadata":{}}`, costs: 380, left: dearest},
		{path: "/v1/responses/stream", contentType: events, body: stream(
			`response.created|{"type":"response.created","response":{"id":"resp_67","object":"response","status":"in_progress","usage":null}}`,
			`response.output_text.delta|{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi"}`,
			`response.completed|{"type":"response.completed","response":{"id":"resp_67","object":"response","status":"completed","usage":{"input_tokens":37,"output_tokens":11,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":48}}}`), costs: 48, left: dearest, read: 48},
	},
	"Anthropic": {
		{path: "/v1/messages", contentType: "application/json", body: `{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Good day."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":2095,"output_tokens":503,"cache_creation_input_tokens":40,"cache_read_input_tokens":7}}`, costs: 2095 + 503 + 40 + 7, left: dearest},
		{path: "/v1/messages/stream", contentType: events, body: stream(
			`message_start|{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude-opus-4-1","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":30,"cache_read_input_tokens":600,"output_tokens":1}}}`,
			`content_block_start|{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `ping|{"type":"ping"}`,
			`content_block_delta|{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`, `content_block_stop|{"type":"content_block_stop","index":0}`,
			`message_delta|{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}`, `message_stop|{"type":"message_stop"}`), costs: 25 + 30 + 600 + 15, left: dearest, read: 25 + 30 + 600 + 15},
	},
	"Ollama": {
		{path: "/api/chat", contentType: "application/json; charset=utf-8", body: `{"model":"llama3.2","created_at":"2023-12-12T14:13:43.416799Z","message":{"role":"assistant","content":"Hello!"},"done":true,"done_reason":"stop","total_duration":5191566416,"load_duration":2154458,"prompt_eval_count":26,"prompt_eval_duration":383809000,"eval_count":298,"eval_duration":4799921000}`, costs: 26 + 298, left: dearest},
		{path: "/api/generate", contentType: ndjson, body: `{"model":"llama3.2","created_at":"2023-08-04T08:52:19.385406455-07:00","response":"The","done":false}` + "\n" + `{"model":"llama3.2","created_at":"2023-08-04T19:22:45.499127Z","response":"","done":true,"context":[1,2,3],"total_duration":10706818083,"load_duration":6338219291,"eval_count":259,"eval_duration":4232710000}` + "\n", costs: 259, left: dearest, read: dearest},
	},
	"LiteLLM, in millionths of a dollar": {
		{path: "/v1/chat/completions", contentType: "application/json", header: [2]string{"X-Litellm-Response-Cost", "0.000123"}, body: `{"choices":[]}`, costs: 123, left: 123, read: 123},
		{path: "/v1/chat/completions", contentType: "application/json", header: [2]string{"X-Litellm-Response-Cost", "2.85e-05"}, body: `{"choices":[]}`, costs: 29, left: 29, read: 29},
		{path: "/v1/chat/completions", contentType: events, body: stream(`{"choices":[]}`, `[DONE]`), costs: dearest, left: dearest, read: dearest},
	},
	"downloads, in bytes": {
		{path: "/files/a", contentType: "application/zip", body: strings.Repeat("x", 5000), costs: 5000, left: 2500, read: 5000},
		{path: "/files/b", contentType: events, header: [2]string{"Content-Encoding", "gzip"}, body: strings.Repeat("x", 70), costs: 70, left: 35, read: 70},
	},
	"GraphQL": {{path: "/graphql", contentType: "application/json", header: [2]string{"X-Query-Cost", "17"}, body: `{"data":{}}`, costs: 17, left: 17, read: 17}},
	"Shopify": {{path: "/admin/api/2025-10/graphql.json", contentType: "application/json; charset=utf-8", body: `{"data":{"shop":{"name":"a"}},"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46,"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":954,"restoreRate":50.0}}}}`, costs: 46, left: dearest}},
}

// A service answers with one of them at a time: in pieces, with gzip where it is asked for that,
// and without the end of the body, or of the response, where the client is to leave.
type service struct {
	*httptest.Server
	answers atomic.Pointer[serviceAnswer]
	stops   atomic.Int64 // after so many bytes, 0 for none
	gone    chan struct{}
}

func newService(t *testing.T) *service {
	s := &service{gone: make(chan struct{}, 1)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, stops := s.answers.Load(), int(s.stops.Load())
		w.Header().Set("Content-Type", x.contentType)
		if x.header[0] != "" {
			w.Header().Set(x.header[0], x.header[1])
		}
		body, flush := x.body, w.(http.Flusher).Flush
		to := io.Writer(w)
		if stops > 0 {
			body = body[:stops]
		}
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			to, flush = z, func() { _ = z.Flush(); w.(http.Flusher).Flush() }
		} else if stops == 0 && x.contentType != events && x.contentType != ndjson {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		for piece := range slices.Chunk([]byte(body), 41) {
			_, _ = to.Write(piece)
			flush()
		}
		if stops > 0 {
			<-r.Context().Done()
			s.gone <- struct{}{}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// leave asks for its answer, reads so many bytes of the answer and leaves.
func (s *service) leave(t *testing.T, l *sitetest.Lifetime, after int) {
	t.Helper()
	s.stops.Store(int64(after))
	defer s.stops.Store(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://site"+s.answers.Load().path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := l.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.CopyN(io.Discard, response.Body, int64(after)); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-s.gone
}

// Each recipe of the page charges what its service says, with and without streaming, and whatever a
// client does to have it free: it leaves early, asks for no usage, or for a compressed answer.
func TestRecipesOfCosts(t *testing.T) {
	s, tried := newService(t), 0
	for _, recipe := range costRecipes(t) {
		l := sitetest.NewLifetime(t)
		l.Load(l.Config("", recipe.site(t, s.Listener.Addr().String()), ""))
		used := func() int64 {
			x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "POST", URL: "http://site" + serviceAnswers[recipe.name][0].path})
			if err != nil {
				t.Fatal(err)
			}
			for _, z := range x.Handlers[0].Zones {
				if strings.HasSuffix(z.Zone, "-tokens") {
					return z.Limits[0].Used
				}
			}
			t.Fatalf("%s: %+v", recipe.name, x)
			return 0
		}
		before := used()
		costs := func(what string, n int64) {
			t.Helper()
			redistest.Eventually(t, fmt.Sprintf("%s: %s costs %d", recipe.name, what, n), func() bool { return used() == before+n })
			before += n
		}
		for i := range serviceAnswers[recipe.name] {
			x := &serviceAnswers[recipe.name][i]
			s.answers.Store(x)
			for _, encoding := range []string{"identity", "gzip"} {
				status, body, err := l.Post(x.path, "Accept-Encoding", encoding)
				if err != nil || status != http.StatusOK || body != x.body {
					t.Fatalf("%s: %d %q %v", x.path, status, body, err)
				}
				costs(x.path+" as "+encoding, x.costs)
			}
			s.leave(t, l, len(x.body)/2)
			costs(x.path+" that is left", x.left)
			if x.read > 0 {
				s.leave(t, l, len(x.body))
				costs(x.path+" that is read and left", x.read)
			}
			tried++
		}
	}
	if want := 16; tried != want {
		t.Errorf("%d answers were tried, want %d: the page and this test don't have the same services", tried, want)
	}
}
