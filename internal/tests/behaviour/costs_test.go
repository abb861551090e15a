package behaviour_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/metrics"
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

// What comes as a number, and what doesn't, in a placeholder that no client sets.
func TestNumbersOfACost(t *testing.T) {
	const limit = 1000
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("numbers", "key {http.request.host}\nlimit 1000/30d\nalgorithm fixed_window\ncost {http.vars.units}\ncost_default 10"))
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
// not told to come back, and is no step towards a ban. A limit of 0 denies as it does without a
// cost: another number may come. Of several limits one that never admits is enough, and in shadow
// mode nobody is denied.
func TestWhatIsTooLarge(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("zero", "limit 0/60d\ncost {http.request.header.Cost}\ncost_default 1"))
	if a := s.Get("1.2.3.4", sitetest.Header("Cost", "5")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("limit 0: %d %v", a.Status, a.Header)
	}
	s = sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("several", "limit 10/30d 8/60d\nban 1h\nheaders ietf\ncost {http.request.header.Cost}\ncost_default 1"))
	for range 3 {
		if a := s.Get("1.2.3.4", sitetest.Header("Cost", "9")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "" ||
			!strings.HasSuffix(a.Header.Get("Ratelimit"), `"several-60d";r=8`) ||
			!strings.Contains(a.Body, `"detail":"This costs 9. At most 8 are admitted at once.","cost":9,"violated-policies":["several-60d"]`) {
			t.Errorf("several: %d %v %s", a.Status, a.Header, a.Body)
		}
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
		reading := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("usage", options+"cost 0\n"))
		if !strings.HasPrefix(algorithm, "leaky") { // which settles nothing
			options += "response_cost header X-Cost\n"
		}
		spending := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("usage", options+"cost 10\n"))
		answering(spending, http.StatusOK, "", "X-Cost", "1000")
		got := ""
		reading.Next = func(_ http.ResponseWriter, r *http.Request) error {
			got = sitetest.ValueOf(r, "http.rate_limit.usage.remaining")
			return nil
		}
		if reading.Admits("1.2.3.4", 20, 20); got != "10" {
			t.Errorf("%s: %s are left at first, want 10", algorithm, got)
		}
		spending.Admits("1.2.3.4", 1, 1)
		if reading.Admits("1.2.3.4", 20, 20); got != "0" {
			t.Errorf("%s: %s are left, want 0", algorithm, got)
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
		{"limit 100/1m\nresponse_cost", "write it like `response_cost json usage.total_tokens`"},
		{"limit 100/1m\nresponse_cost ten", "write where the figure stands, like `response_cost header X-Cost`"},
		{"limit 100/1m\nresponse_cost header", "write where the figure stands"},
		{"limit 100/1m\nresponse_cost header X-Cost * ten", `the factor "ten" is not a number`},
		{"limit 100/1m\nresponse_cost header X-Cost * 0", "the factor 0 is not above 0"},
		{"limit 100/1m\nresponse_cost bytes\ncount_denied", "count_denied counts requests that get no response"},
		{"limit 100/1m\nresponse_cost bytes\nalgorithm leaky_bucket\nqueue 9", "leaky_bucket is a queue, in which a request keeps its place"},
		{"limit 100/1m\nresponse_cost bytes\nresponse_cost_default 5", "add `count_responses 2xx`"},
		{"limit 100/1m\nresponse_cost_default 5", "there is no response_cost that could be missing"},
		{"limit 100/1m\nresponse_cost bytes\ncount_responses 2xx\nresponse_cost_default -5", "-5 is not between 0 and 2^40"},
		{"limit 100/1m\nresponse_cost bytes\ncost 0", "0 reserves nothing"},
		{"limit 10KiB/1m\ncost 1KiB\nresponse_cost bytes", ""},
		{"limit 100/1m\ncost 2\nsync_rate strict\nalgorithm gcra\ncount_responses 2xx", ""},
		{"limit 100/1m\nresponse_cost json a b\nresponse_cost {http.vars.x} * 2", ""},
		{"limit 10/1m\ncost {a}{b}\ncost_default 1", "neither a whole number nor one placeholder"},
	} {
		h := new(ratelimit.Handler)
		err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\nzone x {\n" + c.options + "\n}\n}"))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
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
	s.Admits("1.2.3.4", 2, 1)                           // 142 of 200 are used, then 172
	answering(s, http.StatusOK, "x", "X-Cost", "1e999") // which is as much as a request can cost
	s.Admits("5.6.7.8", 1, 1)
	want := map[string]float64{"admitted": 180, "refunded": 18 + 30, "charged": 70 + config.MaxCost - 30, "denied": 30, "absent": 2}
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
