package behaviour_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// modelAnswers are what services of models answer, as their documentation has it.
var modelAnswers = map[string]struct{ contentType, body string }{
	"/chat": {"application/json", `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"{\"usage\":{\"total_tokens\":9}}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}`},
	"/chat-stream": {"text/event-stream", `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":40,"total_tokens":59}}` + "\n\ndata: [DONE]\n\n"},
	"/chat-silent": {"text/event-stream", `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"}}]}` + "\n\ndata: [DONE]\n\n"},
	"/responses":   {"application/json", `{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":36,"output_tokens":87,"total_tokens":123}}`},
	"/responses-stream": {"text/event-stream; charset=utf-8", "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":37,\"output_tokens\":11,\"total_tokens\":48}}}\n\n"},
	"/graphql": {"application/json", `{"data":{"shop":{"name":"a"}},"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46}}}`},
}

// modelBackend answers as these services do.
func modelBackend(t *testing.T, left chan<- struct{}) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := modelAnswers[r.URL.Path]
		w.Header().Set("Content-Type", a.contentType)
		switch {
		case r.URL.Path == "/endless":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"usage\":{\"total_tokens\":1}}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			left <- struct{}{}
		case strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, a.body)
			_ = z.Close()
		default:
			for i := 0; i < len(a.body); i += 7 {
				_, _ = io.WriteString(w, a.body[i:min(i+7, len(a.body))])
				w.(http.Flusher).Flush()
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// What a response's body says that it has cost is charged: with and without streaming, and at least
// response_cost_default where a client sees to it that there is no figure.
func TestModelTokens(t *testing.T) {
	left := make(chan struct{}, 1)
	address := modelBackend(t, left)
	site := fmt.Sprintf(`
	rate_limit {
		zone model-tokens {
			key all
			limit 100000/30d
			algorithm fixed_window
			cost 30
			count_responses 2xx
			response_cost json usage.total_tokens response.usage.total_tokens extensions.cost.actualQueryCost
			response_cost_default 400
		}
	}
	reverse_proxy %s {
		flush_interval -1
	}`, address)
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", site, ""))
	used := func() int64 {
		x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "GET", URL: "http://site/"})
		if err != nil {
			t.Fatal(err)
		}
		return x.Handlers[0].Zones[0].Limits[0].Used
	}
	before := used()
	for _, c := range []struct {
		path, encoding string
		costs          int64
	}{
		{"/chat", "", 29}, {"/chat-stream", "", 59}, {"/responses", "", 123}, {"/responses-stream", "", 48}, {"/graphql", "", 46},
		{"/chat-silent", "", 400}, {"/chat", "gzip", 400}, {"/chat-stream", "gzip", 400},
	} {
		if status, body, err := l.Post(c.path, "Accept-Encoding", cmp.Or(c.encoding, "identity")); err != nil || status != http.StatusOK || c.encoding == "" && body != modelAnswers[c.path].body {
			t.Fatalf("%s: %d %q %v", c.path, status, body, err)
		}
		var after int64
		redistest.Eventually(t, c.path+" is settled", func() bool { after = used(); return after == before+c.costs })
		before = after
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://site/endless", nil)
	response, err := l.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := response.Body.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if n := used(); n != before+30 {
		t.Errorf("a stream under way has spent %d, want what it reserved", n-before)
	}
	cancel()
	_ = response.Body.Close()
	<-left
	redistest.Eventually(t, "who leaves pays the default", func() bool { return used() == before+400 })
}
