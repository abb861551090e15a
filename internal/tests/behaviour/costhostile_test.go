package behaviour_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// sayingBackend answers with the costs and the body that the query of a request says.
func sayingBackend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // a gRPC client goes on sending
		w.Header()["X-Cost"] = r.URL.Query()["cost"]
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, r.URL.Query().Get("body"))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

const hostileZones = `
zone hostile-before {
	key {http.request.uri.path}
	limit 1000/30d
	algorithm fixed_window
	cost {http.request.header.Units}
	cost_default 10
}
zone hostile-header {
	key {http.request.uri.path}
	limit 4000000000000000/30d
	algorithm fixed_window
	cost 40
	response_cost header X-Cost
}
zone hostile-placeholder {
	key {http.request.uri.path}
	limit 4000000000000000/30d
	algorithm fixed_window
	cost 40
	response_cost {http.reverse_proxy.header.X-Cost}
}
zone hostile-json {
	key {http.request.uri.path}
	limit 4000000000000000/30d
	algorithm fixed_window
	cost 40
	response_cost json usage
}
`

// hostileUse is how much a path has used in each of hostileZones.
func hostileUse(t *testing.T, s *sitetest.Served, path string) map[string]int64 {
	t.Helper()
	x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "GET", URL: fmt.Sprintf("https://localhost:%d%s", s.Port, path)})
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]int64)
	for _, z := range x.Handlers[0].Zones {
		used[strings.TrimPrefix(z.Zone, "hostile-")] = z.Limits[0].Used
	}
	return used
}

// Each number that a request or a response can come with, from each source and by each protocol.
// What is no number costs the default, or what was reserved; nobody else pays for it.
func TestHostileCosts(t *testing.T) {
	const most, large = 1 << 40, -1
	digits := strings.Repeat("9", 3000)
	s := sitetest.StartCaddy(t, "servers {\nprotocols h1 h2 h3\n}", "route {\nrate_limit {\n"+hostileZones+"}\nreverse_proxy "+sayingBackend(t)+"\n}")
	for i, c := range []struct {
		says                []string
		before, header, obj int64
		json                string // of the value, where it is another one
	}{
		{[]string{"5"}, 5, 5, 5, ""}, {[]string{"1e2"}, 100, 100, 100, ""}, {[]string{"4.2"}, 5, 5, 5, ""}, {[]string{"1e-9"}, 1, 1, 1, ""},
		{[]string{"0"}, 1, 0, 0, ""}, {[]string{"1000"}, 1000, 1000, 1000, ""}, {[]string{"1001"}, large, 1001, 1001, ""},
		{[]string{""}, 10, 40, 40, ""}, {nil, 10, 40, 40, "null"}, {[]string{"word"}, 10, 40, 40, `"5"`}, {[]string{"nan"}, 10, 40, 40, ""},
		{[]string{"-1"}, 10, 40, 40, ""}, {[]string{"0x10"}, 10, 40, 40, `{"a":5}`}, {[]string{"1e999"}, large, most, most, ""}, {[]string{digits}, large, most, most, ""},
		{[]string{"1,2"}, 10, 40, 1, "1,2"}, {[]string{"3", "7"}, 10, 40, 7, `3,"usage":7`}, {[]string{"Infinity"}, 10, 40, 2, "[1,2]"},
	} {
		value := c.json
		if value == "" && len(c.says) > 0 {
			value = c.says[0]
		}
		query := url.Values{"cost": c.says, "body": {`{"usage":` + value + `}`}}
		for _, protocol := range append(protocols, "gRPC") {
			path := fmt.Sprintf("/%d/%s", i, protocol)
			status, pushback := 0, ""
			if protocol == "gRPC" {
				path = "/gRPC/" + fmt.Sprint(i)
				status, pushback = grpcCost(t, s, path+"?"+query.Encode(), c.says)
			} else {
				a, err := s.Get(t.Context(), protocol, sitetest.OnPath(path), func(r *http.Request) {
					r.URL.RawQuery, r.Header["Units"] = query.Encode(), c.says
				})
				if err != nil {
					t.Fatal(err)
				}
				status = a.Status
			}
			want := map[string]int64{"before": c.before, "header": c.header, "placeholder": c.header, "json": c.obj}
			denied := c.before == large
			if denied {
				want = map[string]int64{"before": 0, "header": 0, "placeholder": 0, "json": 0}
			}
			if (status == http.StatusTooManyRequests) != denied || pushback != map[bool]string{true: "-1"}[denied && protocol == "gRPC"] {
				t.Errorf("%.20q by %s: %d, pushback %q, want to be denied: %t", c.says, protocol, status, pushback, denied)
			}
			redistest.Eventually(t, fmt.Sprintf("%.20q and %.20q by %s cost %v", c.says, value, protocol, want), func() bool {
				return maps.Equal(hostileUse(t, s, path), want)
			})
		}
	}
}

// grpcCost makes a gRPC call that says what it costs. A denied one is answered by 8, which counts
// as 429 here.
func grpcCost(t *testing.T, s *sitetest.Served, target string, says []string) (status int, pushback string) {
	t.Helper()
	config := s.Clients["HTTP/2.0"].Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	connection, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), config)
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"content-type", "application/grpc"}
	for _, text := range says {
		fields = append(fields, "units", text)
	}
	fields = append(fields, ":path", target)
	c := callByHTTP2(t, connection, fmt.Sprint("localhost:", s.Port), fields...)
	if c.header["grpc-status"] == "8" {
		return http.StatusTooManyRequests, c.header["grpc-retry-pushback-ms"]
	}
	return http.StatusOK, c.header["grpc-retry-pushback-ms"]
}
