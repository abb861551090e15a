package behaviour_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// deniedIn returns how many requests a zone has denied, and would have.
func deniedIn(t *testing.T, zone string) (denied, would float64) {
	t.Helper()
	all, err := metrics.ByZone()
	if err != nil {
		t.Fatal(err)
	}
	return all[zone].Denied, all[zone].WouldDeny
}

// A request takes as many units as its cost says, in each algorithm: all or nothing, and not one
// more than the limit.
func TestACostIsTakenAsAWhole(t *testing.T) {
	for _, algorithm := range []string{
		"sliding_window", "sliding_window\nsub_windows 10", "fixed_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 99",
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("whole", "limit 100/1m\nalgorithm "+algorithm+"\ncost {http.request.header.Cost}\ncost_default 7"))
			defer s.End()
			cost := func(n string) func(*http.Request) { return sitetest.Header("Cost", n) }
			ctx := func(n string) int {
				done := make(chan int, 1)
				go func() { done <- s.Get("1.2.3.4", cost(n)).Status }()
				select {
				case status := <-done:
					return status
				case <-time.After(time.Millisecond): // it waits in the queue, and so is admitted
					return http.StatusOK
				}
			}
			for _, step := range []struct {
				cost string
				want int
			}{{"60", 200}, {"41", 429}, {"33", 200}, {"8", 429}, {"7.1", 429}, {"six", 200}, {"1", 429}, {"0", 200}} {
				if strings.HasPrefix(algorithm, "leaky") && step.cost == "0" {
					continue // which a client can't have free
				}
				if step.cost == "0" {
					step.want = 429
				}
				if got := ctx(step.cost); got != step.want {
					t.Errorf("%q, cost %s: %d, want %d", algorithm, step.cost, got, step.want)
				}
			}
			time.Sleep(3 * time.Minute) // queues empty
		})
	}
}

// What comes as a number, and what doesn't, in a placeholder that no client sets.
func TestNumbersOfACost(t *testing.T) {
	numbersOfACost(t, &ratelimit.App{}, "")
}

// So does a strict zone, whose Redis is not even asked for what is too large.
func TestNumbersOfACostInAStrictZone(t *testing.T) {
	numbersOfACost(t, sitetest.AppWith(redistest.Start(t)), "\nsync_rate strict")
}

func numbersOfACost(t *testing.T, app *ratelimit.App, options string) {
	const limit = 1000
	s := sitetest.NewSite(t, app, sitetest.ZoneBlock("numbers", "key {http.request.host}\nlimit 1000/30d\nalgorithm fixed_window\ncost {http.vars.units}\ncost_default 10"+options))
	for i, c := range []struct {
		units string
		takes int64 // -1 for too large
	}{
		{"5", 5}, {" 5 ", 5}, {"5.0", 5}, {"4.2", 5}, {"1e2", 100}, {"1E2", 100}, {"2.5e1", 25}, {"0", 0}, {"0.0", 0}, {"1e-9", 1}, {"1000", 1000},
		{"", 10}, {"word", 10}, {"NaN", 10}, {"nan", 10}, {"Inf", 10}, {"-1", 10}, {"0x10", 10}, {"1,2", 10}, {"1, 2", 10}, {"+5", 10}, {"1_000", 10}, {".5", 10}, {"5.", 10}, {"1e", 10}, {"1e+", 10}, {"1 2", 10}, {"５", 10},
		{"1001", -1}, {"1e999", -1}, {strings.Repeat("9", 1000), -1}, {"1" + strings.Repeat("0", 30), -1}, {fmt.Sprint(int64(1) << 62), -1},
	} {
		host := fmt.Sprintf("host-%d", i)
		r := s.Request("1.2.3.4", func(r *http.Request) { r.Host = host })
		caddyhttp.SetVar(r.Context(), "units", c.units)
		a := s.Send(r)
		probe := s.Request("1.2.3.4", func(r *http.Request) { r.Host = host })
		caddyhttp.SetVar(probe.Context(), "units", "0")
		s.Next = func(_ http.ResponseWriter, r *http.Request) error {
			left := sitetest.ValueOf(r, "http.rate_limit.numbers.remaining")
			want := fmt.Sprint(limit - max(c.takes, 0))
			if left != want {
				t.Errorf("cost %q: %s are left, want %s", c.units, left, want)
			}
			return nil
		}
		if got := s.Send(probe).Status; got != http.StatusOK {
			t.Errorf("cost 0 after %q: %d, want to be admitted", c.units, got)
		}
		s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
		if want := map[bool]int{true: http.StatusTooManyRequests, false: http.StatusOK}[c.takes < 0]; a.Status != want {
			t.Errorf("cost %q: %d, want %d", c.units, a.Status, want)
		}
	}
}

// All terms are multiplied and added before the sum is rounded up, once.
func TestTermsOfACostAddUp(t *testing.T) {
	for _, c := range []struct {
		options string
		body    int
		want    string
	}{
		{"cost 200", 0, "200"},
		{"cost 0.4\ncost 0.4\ncost 0.2", 0, "1"},
		{"cost 1000000 * 0.000123", 0, "123"},
		{"cost 0.1 * 30", 0, "3"},
		{"cost bytes\ncost_default 5", 300, "300"},
		{"cost bytes * 0.25\ncost 200\ncost_default 5", 301, "276"},
		{"cost bytes\ncost_default 5", -1, "5"},
		{"cost bytes\ncost_default 5", 0, "0"},
	} {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("terms", "limit 1000/30d\n"+c.options))
		s.Next = func(_ http.ResponseWriter, r *http.Request) error {
			if got := sitetest.ValueOf(r, "http.rate_limit.terms.cost"); got != c.want {
				t.Errorf("%q costs %s, want %s", c.options, got, c.want)
			}
			return nil
		}
		s.Admits("1.2.3.4", 1, 1, func(r *http.Request) { r.ContentLength = int64(c.body) })
		s.End()
	}
}

// A request that costs more than is ever admitted at once is denied for good: it spends nothing, is
// not told to come back, and is no step towards a ban.
func TestTooLargeIsForGood(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket\nburst 10", "gcra\nburst 10", "leaky_bucket\nqueue 9"} {
		options := "limit 10/30d\nalgorithm " + algorithm + "\nban 1h\ncost {http.request.header.Cost}\ncost_default 1\nheaders ietf kong"
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("large", options)+sitetest.ZoneBlock("other", "limit 5000/30d"))
		var left string
		s.Next = func(_ http.ResponseWriter, r *http.Request) error {
			left = sitetest.ValueOf(r, "http.rate_limit.other.remaining") + " " + sitetest.ValueOf(r, "http.rate_limit.large.remaining")
			return nil
		}
		for range 1000 {
			a := s.Get("1.2.3.4", sitetest.Header("Cost", "11"))
			if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "" || strings.Contains(a.Header.Get("Ratelimit"), `"large";r=10;t`) {
				t.Fatalf("%s: %d %v %s", algorithm, a.Status, a.Header, a.Body)
			}
			if !strings.Contains(a.Body, `"detail":"This costs 11. At most 10 are admitted at once.","cost":11,"violated-policies":["large"]`) {
				t.Fatalf("%s: it is told %s", algorithm, a.Body)
			}
		}
		s.Admits("1.2.3.4", 1, 1, sitetest.Header("Cost", "1"))
		if want := "4999 9"; left != want {
			t.Errorf("%s: %s are left, want %s", algorithm, left, want)
		}
		if n, _ := deniedIn(t, "large"); n != 1000 {
			t.Errorf("%s: %v were denied, want 1000", algorithm, n)
		}
		s.End()
	}
}

// A limit of 0 denies as it does without a cost: another number may come. Of several limits one
// that never admits is enough, and in shadow mode nobody is denied.
func TestWhatIsTooLarge(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("zero", "limit 0/60d\ncost {http.request.header.Cost}\ncost_default 1"))
	if a := s.Get("1.2.3.4", sitetest.Header("Cost", "5")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("limit 0: %d %v", a.Status, a.Header)
	}
	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("several", "limit 10/30d 8/60d\ncost {http.request.header.Cost}\ncost_default 1"))
	if a := s.Get("1.2.3.4", sitetest.Header("Cost", "9")); a.Header.Get("Retry-After") != "" || !strings.Contains(a.Body, `At most 8 are admitted at once.","cost":9,"violated-policies":["several-60d"]`) {
		t.Errorf("several: %d %v %s", a.Status, a.Header, a.Body)
	}
	s.Admits("1.2.3.4", 2, 1, sitetest.Header("Cost", "8"))
	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("shadow", "limit 10/30d\nenforce off\ncost {http.request.header.Cost}\ncost_default 1"))
	s.Admits("1.2.3.4", 3, 3, sitetest.Header("Cost", "11"))
	if _, n := deniedIn(t, "shadow"); n != 3 {
		t.Errorf("shadow: %v would be denied, want 3", n)
	}
}

// A zone that costs nothing reads how the limit stands, however much is spent, or more than that: a
// page of one's use.
func TestACostOfZeroReadsOnly(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 9"} {
		options := "limit 10/30d\nalgorithm " + algorithm + "\n"
		spending := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("usage", options+"cost 10\n"))
		reading := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("usage", options+"cost 0\n"))
		got := ""
		reading.Next = func(_ http.ResponseWriter, r *http.Request) error {
			got = sitetest.ValueOf(r, "http.rate_limit.usage.remaining")
			return nil
		}
		reading.Admits("1.2.3.4", 20, 20)
		if got != "10" {
			t.Errorf("%s: %s are left at first, want 10", algorithm, got)
		}
		spending.Admits("1.2.3.4", 1, 1)
		reading.Admits("1.2.3.4", 20, 20)
		if got != "0" {
			t.Errorf("%s: %s are left, want 0", algorithm, got)
		}
		if !strings.HasPrefix(algorithm, "leaky") { // which settles nothing
			owing := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("usage", options+"cost 10\nresponse_cost header X-Cost\n"))
			answering(owing, http.StatusOK, "", "X-Cost", "1000")
			owing.Admits("5.6.7.8", 2, 1)
			got = ""
			if reading.Admits("5.6.7.8", 20, 20); got != "0" {
				t.Errorf("%s: in debt %s are left, want 0", algorithm, got)
			}
			owing.End()
		}
		spending.End()
		reading.End()
	}
}

// The draft's headers are read as numbers of requests, so they don't tell of other units unless
// they are asked for, in no handler with a zone of that name; other sets do.
//
// no clock: each site has one request.
func TestHeadersOfAZoneThatCountsUnits(t *testing.T) {
	for _, c := range []struct{ caddyfile, policy, kong string }{
		{"rate_limit {\nzone plain {\nlimit 100/1m\n}\n}", `"plain";q=100;w=60`, ""},
		{"rate_limit {\nzone one {\nlimit 100/1m\ncost 1\n}\n}", `"one";q=100;w=60`, ""},
		{"rate_limit {\nzone units {\nlimit 100/1m\ncost 2\n}\n}", "", ""},
		{"rate_limit {\nheaders ietf kong\nzone units2 {\nlimit 100/1m\ncost 2\n}\n}", "", "98"},
		{"rate_limit {\nzone units3 {\nlimit 100/1m\ncost 2\nheaders ietf\n}\n}", `"units3";q=100;w=60`, ""},
		{"rate_limit 100/1m {\ncost 2\nheaders ietf\n}", `q=100;w=60`, ""},
		{"rate_limit 1KiB/1m {\ncost bytes\ncost_default 1KiB\nheaders ietf\n}", `q=1024;qu="content-bytes";w=60`, ""},
	} {
		s := sitetest.AdaptedSite(t, ":80 {\n"+c.caddyfile+"\n}")
		a := s.Get("1.2.3.4")
		if got := a.Header.Get("Ratelimit-Policy"); !strings.HasSuffix(got, c.policy) || c.policy == "" && got != "" {
			t.Errorf("%s: RateLimit-Policy %q, want %q", c.caddyfile, got, c.policy)
		}
		if got := a.Header.Get("Ratelimit-Remaining"); got != c.kong {
			t.Errorf("%s: %q are left in Kong's headers, want %q", c.caddyfile, got, c.kong)
		}
	}
}

// What is wrong is said with what to write in its place.
//
// no clock: nothing of it loads.
func TestCostsThatDontLoad(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{"limit 10/1m\ncost", "write it like `cost 10`"},
		{"limit 10/1m\ncost -1", `"-1" is not a number of units`},
		{"limit 10/1m\ncost ten", `"ten" is not a number of units`},
		{"limit 10/1m\ncost 2 x 3", "write an amount like 1500"},
		{"limit 10/1m\ncost 2 * 0", "the factor 0 is not above 0"},
		{"limit 10/1m\ncost 2 * 1e10", "or above 10^9"},
		{"limit 10/1m\ncost 0.5", "0.5 is not a whole number, and a request would take 1; write `cost 1`, with limits 2 times as high, like 20/1m"},
		{"limit 100/1m\nalgorithm token_bucket\nburst 10\ncost 10 * 0.25", "2.5 is not a whole number, and a request would take 3; write `cost 5`, with limits and burst 2 times as high, like 200/1m"},
		{"limit {plan}/1m\nlimit_default 10/1m\ncost 1.1", "a request would take 2; write `cost 11`, with limits 10 times as high"},
		{"limit 10/1m\ncost 0.1 * 3", "0.3 is not a whole number, and a request would take 1; write `cost 3`, with limits 10 times as high, like 100/1m"},
		{"limit 10/1m\ncost 0.30001", "a request would take 1; write `cost 1`, or another whole number"},
		{"limit 1000/1m\ncost 200\ncost 0.5", "200.5 is not a whole number, and a request would take 201; write `cost 401`, with limits 2 times as high, like 2000/1m"},
		{"limit 10/1m\ncost 0.5\nresponse_cost header X-Cost", "0.5 is not a whole number, and a request would take 1; write `cost 1`, or another whole number"},
		{"limit 10/1m\ncost {x}", "add what it costs then, like `cost_default 10`"},
		{"limit 10/1m\ncost bytes", "add what it costs then, like `cost_default 10`"},
		{"limit 10/1m\ncost 2\ncost_default 2", "the cost is the same for all requests"},
		{"limit 10/1m\ncost_default 2", "there is no cost that could lack a number"},
		{"limit 10/1m\ncost {x}\ncost_default -1", "-1 is not between 0 and 2^40"},
		{"limit 10/1m\ncost 11", "11 is more than 10/1m ever admits at once, so nobody would be admitted; write at most 10"},
		{"limit 100/1m\nalgorithm token_bucket\nburst 10\ncost 11", "write at most 10"},
		{"limit 10/1m\ncost 2\ncount_denied", "with cost, a denied request would take what it costs"},
		{"limit 10KiB/1m", "10KiB is a size, and the zone counts requests"},
		{"limit 10/1m\ncost 1KiB", "1KiB is a size, and the zone doesn't count bytes alone"},
		{"limit 10KiB/1m\ncost bytes\ncost 5\ncost_default 1", "10KiB is a size, and the zone doesn't count bytes alone"},
		{"limit 10/1m\nsync_rate strict\ncost 11", "write at most 10"},
		{"concurrent 2\ncost 0.5", "it is about a limit, and the zone has none"},
		{"concurrent 2\ncost 2", "it is about a limit, and the zone has none"},
		{"limit 10/1m\ncost {a}{b}\ncost_default 1", "neither a whole number nor one placeholder"},
	} {
		h := new(ratelimit.Handler)
		err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\nzone x {\n" + c.options + "\n}\n}"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.options, err, c.want)
		}
	}
}

// Zones of one name may have different costs: they count units.
func TestCostsOfOneNameMayDiffer(t *testing.T) {
	chat := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("shared", "limit 100/60d\nalgorithm fixed_window\ncost 60"))
	list := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("shared", "limit 100/60d\nalgorithm fixed_window"))
	chat.Admits("1.2.3.4", 1, 1)
	list.Admits("1.2.3.4", 50, 40)
	sitetest.AdaptedSite(t, ":80 {\nrate_limit {\nzone both {\nlimit 100/30d\ncost 60\n}\n}\nrate_limit {\nzone both {\nlimit 100/30d\n}\n}\n}")
}

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

// unitsIn returns what the metrics about units have of a zone, by their other label: those that are
// not 0.
func unitsIn(t *testing.T, zone string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
		if by := labels["what"] + labels["why"]; by != "" && labels["zone"] == zone && value > 0 {
			all[by] = value
		}
	})
	return all
}

// answering has a site's next handler answer with a status, header fields, and a body.
func answering(s *sitetest.Site, status int, body string, fields ...string) {
	s.Next = func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Add(fields[i], fields[i+1])
		}
		w.WriteHeader(status)
		if body == "" {
			return nil
		}
		_, err := w.Write([]byte(body))
		return err
	}
}

// What is admitted, less what is refunded, and what is charged, is what is used. A zone in which
// all costs are 1 has none of these metrics.
func TestMetricsOfUnitsAddUp(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("tokens", "limit 200/30d\nalgorithm fixed_window\ncost 30\ncount_responses 2xx\nresponse_cost header X-Cost")+sitetest.ZoneBlock("plain", "limit 1000/30d\ncount_responses 2xx"))
	for _, answer := range [][]string{{"200", "12"}, {"200", "100"}, {"500", ""}, {"200", ""}} {
		status := http.StatusOK
		if answer[0] == "500" {
			status = http.StatusInternalServerError
		}
		if answering(s, status, "x", "X-Cost", answer[1]); answer[1] == "" {
			answering(s, status, "x")
		}
		s.Admits("1.2.3.4", 1, map[int]int{200: 1}[status])
	}
	s.Admits("1.2.3.4", 2, 1) // 142 of 200 are used, then 172
	want := map[string]float64{"admitted": 150, "refunded": 18 + 30, "charged": 70, "denied": 30, "absent": 2}
	if got := unitsIn(t, "tokens"); !maps.Equal(got, want) {
		t.Errorf("the metrics have %v, want %v", got, want)
	}
	if got := unitsIn(t, "plain"); len(got) > 0 {
		t.Errorf("a zone without costs has %v", got)
	}

	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("points", "limit 10/30d\ncost {http.request.header.Cost}\ncost_default 1\ncount_responses 2xx")+sitetest.ZoneBlock("calls", "limit 3/30d\nalgorithm fixed_window"))
	answering(s, http.StatusNotFound, "")
	s.Get("1.2.3.4", sitetest.Header("Cost", "4"))
	answering(s, http.StatusOK, "")
	for _, cost := range []string{"7", "4", "11", "1e30", "1", "1"} { // calls denies the last
		s.Get("1.2.3.4", sitetest.Header("Cost", cost))
	}
	want = map[string]float64{"admitted": 12, "refunded": 4, "denied": 4}
	if got := unitsIn(t, "points"); !maps.Equal(got, want) {
		t.Errorf("the metrics have %v, want %v", got, want)
	}
}

// Why a response does not say what it costs is counted, and the first time of each it is warned of,
// with what to write; not where its client has gone, nor where there is no body.
func TestWhyAFigureIsMissing(t *testing.T) {
	type one struct {
		status       int
		body, fields string
		fails        error
		why, warns   string // "" for none
	}
	const usage = `{"usage":{"total_tokens":5}}`
	for source, answers := range map[string][]one{
		"json usage.total_tokens": {
			{200, usage, "Content-Type application/json", nil, "", ""},
			{200, usage, "Content-Type application/json Content-Encoding gzip", nil, "encoded", "TIDE041 header_up -Accept-Encoding"},
			{200, usage, "Content-Type application/json Content-Encoding identity", nil, "", ""},
			{200, `{"usage":{}}`, "Content-Type application/json", nil, "absent", "TIDE041 usage.total_tokens; correct the path"},
			{200, usage, "Content-Type text/plain", nil, "absent", "TIDE041 usage.total_tokens"},
			{200, `{"usage":{"total_tokens":"many"}}`, "Content-Type application/json", nil, "bad", "TIDE041 usage.total_tokens"},
			{200, `{"usage":`, "Content-Type application/json", errors.New("cut"), "gone", ""},
			{304, "", "Content-Type application/json", nil, "", ""},
		},
		"header X-Cost": {
			{200, "x", "X-Cost 5", nil, "", ""}, {200, "x", "", nil, "absent", "TIDE041 header X-Cost"}, {200, "x", "X-Cost 1,2", nil, "bad", "TIDE041 header X-Cost"}, {204, "", "", nil, "", ""},
		},
		"{http.vars.spent}": {{200, "x", "", nil, "absent", "TIDE041 {http.vars.spent}"}},
		"bytes":             {{101, "", "", nil, "absent", ""}},
	} {
		for i, a := range answers {
			zone := fmt.Sprintf("missing-%s-%d", source[:4], i)
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock(zone, "limit 1000/30d\nresponse_cost "+source))
			logs := s.Watched()
			answering(s, a.status, a.body, strings.Fields(a.fields)...)
			if write := s.Next; a.fails != nil {
				s.Next = func(w http.ResponseWriter, r *http.Request) error { return errors.Join(write(w, r), a.fails) }
			}
			for range 2 {
				s.Get("1.2.3.4")
			}
			got := unitsIn(t, zone)
			for _, units := range []string{"admitted", "refunded", "charged"} {
				delete(got, units)
			}
			if want := map[string]float64{a.why: 2}; !maps.Equal(got, want) && (a.why != "" || len(got) > 0) {
				t.Errorf("%s, %+v: missing %v, want twice %q", source, a, got, a.why)
			}
			lines := logs.All()
			code, text, _ := strings.Cut(a.warns, " ")
			if len(lines) != min(len(a.warns), 1) || len(lines) > 0 && (sitetest.Coded(logs, code) != 1 || !strings.Contains(lines[0].Message, text)) {
				t.Errorf("%s, %+v: the log has %v", source, a, lines)
			}
		}
	}
}

// Who finds only what is reserved hears how long answers take, which is when some of it comes back:
// no more than the limit would have it wait, and as ever where responses settle as they begin.
//
// bubble: each of the limits runs in one.
func TestRetryAfterOfWhatIsReserved(t *testing.T) {
	for _, c := range []struct {
		options, wait string
		took          time.Duration
	}{
		{"limit 100/10m\nresponse_cost json usage.total_tokens", "20", 20 * time.Second},
		{"limit 100/10m\nresponse_cost bytes", "1", 100 * time.Millisecond},
		{"limit 100/10s\nresponse_cost bytes", "10", 40 * time.Second},
		{"limit 100/10m\ncount_responses 5xx", "1", 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("slow-answers", "algorithm fixed_window\ncost 50\n"+c.options))
			defer s.End()
			s.Next = func(w http.ResponseWriter, _ *http.Request) error {
				time.Sleep(c.took)
				_, err := w.Write([]byte("x"))
				return err
			}
			for range 40 {
				s.Get("1.2.3.4")
				time.Sleep(20 * time.Minute)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			for range 2 {
				go s.Get("1.2.3.4")
			}
			synctest.Wait()
			if a := s.Get("1.2.3.4"); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != c.wait {
				t.Errorf("%q: %d, Retry-After %s, want %s", c.options, a.Status, a.Header.Get("Retry-After"), c.wait)
			}
			time.Sleep(time.Minute)
		})
	}
}

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
