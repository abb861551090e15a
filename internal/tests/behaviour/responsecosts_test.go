package behaviour_test

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// costingBackend answers as the query of a request says.
func costingBackend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		for _, value := range q["cost"] {
			w.Header().Add("X-Cost", value)
		}
		status, _ := strconv.Atoi(cmp.Or(q.Get("status"), "200"))
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", q.Get("size"))
		}
		w.WriteHeader(status)
		size, _ := strconv.Atoi(q.Get("size"))
		_, _ = io.WriteString(w, strings.Repeat("x", size))
		if q.Has("cut") {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// usedOf is how much of a zone's limit is used, by the path that its handler stands for.
func usedOf(t *testing.T, path string) int64 {
	t.Helper()
	x, err := sitetest.Explained(t, operate.ExplainRequest{Method: "GET", URL: "http://site" + path})
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range x.Handlers[0].Zones {
		if len(z.Limits) > 0 {
			return z.Limits[0].Used
		}
	}
	t.Fatalf("no zone has limited %s", path)
	return 0
}

var settling = []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "gcra"}

// eachMode runs a test with the options of zones that count on one node, and of zones for which
// Redis decides.
func eachMode(t *testing.T, test func(t *testing.T, l *sitetest.Lifetime, global, zone string)) {
	t.Run("local", func(t *testing.T) { test(t, sitetest.NewLifetime(t), "", "") })
	t.Run("strict", func(t *testing.T) {
		test(t, sitetest.NewLifetime(t), "redis redis://"+redistest.Start(t).Addr+"\nstrict_timeout 30s", "sync_rate strict")
	})
}

// A request costs what its response says: in a header, by its length, by a placeholder, or by the
// sum of them. Without a figure what was reserved stays spent.
func TestAResponseSaysWhatItCosts(t *testing.T) { eachMode(t, saysWhatItCosts) }

func saysWhatItCosts(t *testing.T, l *sitetest.Lifetime, global, zone string) {
	var zones strings.Builder
	algorithms := settling
	if zone != "" { // a strict log counts to 1,024 and has a test of its own
		algorithms = []string{"sliding_window", "fixed_window", "token_bucket", "gcra"}
	}
	for _, algorithm := range algorithms {
		for source, lines := range map[string]string{
			"header": "response_cost header X-Cost", "bytes": "response_cost bytes", "placeholder": "response_cost {http.reverse_proxy.header.X-Cost}",
			"sum": "response_cost header X-Cost * 0.5\nresponse_cost bytes * 2",
		} {
			fmt.Fprintf(&zones, "zone says-%[1]s-%[2]s {\nmatch path /%[1]s/%[2]s\nkey all\nlimit 1000000/30d\nalgorithm %[2]s\ncost 30\ncount_responses 2xx 304\n%[3]s\n%[4]s\n}\n", source, algorithm, lines, zone)
		}
	}
	l.Load(l.Config(global, "rate_limit {\n"+zones.String()+"}\nreverse_proxy "+costingBackend(t), ""))
	for _, c := range []struct {
		source, method, query string
		costs                 int64
	}{
		{"header", "GET", "cost=12", 12}, {"header", "GET", "cost=500", 500}, {"header", "GET", "cost=0", 0}, {"header", "GET", "cost=+1e3", 1000}, {"header", "GET", "cost=0.1", 1},
		{"header", "GET", "", 30}, {"header", "GET", "cost=", 30}, {"header", "GET", "cost=1,2", 30}, {"header", "GET", "cost=1&cost=2", 30}, {"header", "GET", "cost=-1", 30},
		{"header", "GET", "cost=NaN", 30}, {"header", "GET", "cost=0x10", 30}, {"header", "GET", "cost=12&status=404", 0}, {"header", "GET", "status=500", 0}, {"header", "HEAD", "cost=3&size=9", 3},
		{"bytes", "GET", "size=5000", 5000}, {"bytes", "GET", "size=0", 0}, {"bytes", "HEAD", "size=100", 0}, {"bytes", "GET", "status=204", 0}, {"bytes", "GET", "status=304", 0},
		{"bytes", "GET", "size=50&status=403", 0}, {"bytes", "GET", "size=70&cut=1", 70},
		{"placeholder", "GET", "cost=77", 77}, {"placeholder", "GET", "", 30}, {"placeholder", "GET", "cost=7&cut=1", 30}, {"placeholder", "GET", "cost=40&cut=1", 40},
		{"sum", "GET", "cost=7&size=10", 24}, {"sum", "GET", "size=10", 30},
	} {
		for _, algorithm := range algorithms {
			path := "/" + c.source + "/" + algorithm
			before := usedOf(t, path)
			r, err := http.NewRequestWithContext(t.Context(), c.method, "http://site"+path+"?"+c.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := l.Client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode == http.StatusTooManyRequests {
					t.Fatalf("%s was denied", path)
				}
			}
			got := int64(-1)
			redistest.Eventually(t, fmt.Sprintf("%s %s?%s costs %d", c.method, path, c.query, c.costs), func() bool {
				got = usedOf(t, path) - before
				return got == c.costs
			})
		}
	}
}

// When all is settled, limits hold exactly the sum of what was used, whatever ran at once.
func TestTheSumOfWhatResponsesCost(t *testing.T) { eachMode(t, sumOfWhatResponsesCost) }

func sumOfWhatResponsesCost(t *testing.T, l *sitetest.Lifetime, global, zone string) {
	var zones strings.Builder
	for _, algorithm := range settling {
		limit := 100_000
		if zone != "" && algorithm == "sliding_log" {
			limit = 1024
		}
		fmt.Fprintf(&zones, "zone sum-of-%[1]s {\nmatch path /%[1]s\nkey all\nlimit %[2]d/30d\nalgorithm %[1]s\ncost 50\nresponse_cost header X-Cost\nresponse_cost bytes\n%[3]s\n}\n", algorithm, limit, zone)
	}
	l.Load(l.Config(global, "rate_limit {\n"+zones.String()+"}\nreverse_proxy "+costingBackend(t), ""))
	sums := make(map[string]int64)
	var mu sync.Mutex
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 50 {
				algorithm, cost, size := settling[random.IntN(len(settling))], random.Int64N(200), random.Int64N(100)
				if algorithm == "sliding_log" {
					cost, size = cost%4, size%4
				}
				response, err := l.Client.Get(fmt.Sprintf("http://site/%s?cost=%d&size=%d", algorithm, cost, size))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				mu.Lock()
				sums[algorithm] += cost + size
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for _, algorithm := range settling {
		got := int64(-1)
		redistest.Eventually(t, fmt.Sprintf("%s holds %d", algorithm, sums[algorithm]), func() bool {
			got = usedOf(t, "/"+algorithm)
			return got == sums[algorithm]
		})
	}
}

// Explain shows a debt: more than the limit is used. Of a bucket it is what a window drains beyond
// its size at most, and of a log in Redis as much as the limit.
func TestExplainShowsADebt(t *testing.T) {
	redis := redistest.Start(t)
	for _, rate := range []string{"1s", "strict"} {
		var zones strings.Builder
		for _, algorithm := range settling {
			fmt.Fprintf(&zones, "zone debt-%[1]s-%[2]s {\nmatch path /%[1]s\nkey all\nlimit 100/30d\nalgorithm %[1]s\ncost 10\nresponse_cost header X-Cost\nsync_rate %[2]s\n}\n", algorithm, rate)
		}
		l := sitetest.NewLifetime(t)
		l.Load(l.Config("redis "+redis.URL, "rate_limit {\n"+zones.String()+"}\nreverse_proxy "+costingBackend(t), ""))
		for _, algorithm := range settling {
			response, err := l.Client.Get("http://site/" + algorithm + "?cost=5000")
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			got, want := int64(0), int64(5000)
			switch {
			case algorithm == "token_bucket" || algorithm == "gcra":
				want = 200
			case algorithm == "sliding_log" && rate == "strict":
				want = 110 // which charges as many as the limit
			}
			redistest.Eventually(t, fmt.Sprintf("%s of %s uses %d", algorithm, rate, want), func() bool {
				got = usedOf(t, "/"+algorithm)
				return got == want
			})
		}
	}
}

// An estimate above a limit is lowered to it: a wrong one must not lock out for good.
func TestAnEstimateAboveTheLimit(t *testing.T) {
	l := sitetest.NewLifetime(t)
	l.Load(l.Config("", "rate_limit {\nzone high {\nkey all\nlimit 100/60d 40/30d\ncost 5000\nresponse_cost header X-Cost\n}\n}\nreverse_proxy "+costingBackend(t), ""))
	for _, c := range []struct {
		cost   string
		status int
		used   int64
	}{{"38", 200, 38}, {"1", 429, 38}} {
		response, err := l.Client.Get("http://site/?cost=" + c.cost)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != c.status {
			t.Fatalf("a request of %s: %d, want %d", c.cost, response.StatusCode, c.status)
		}
		redistest.Eventually(t, fmt.Sprint("it is settled, and ", c.used, " are used"), func() bool { return usedOf(t, "/") == c.used })
	}
}

// What is wrong is said with what to write in its place.
//
// no clock: no request is sent.
func TestResponseCostsThatDontLoad(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{"response_cost", "write it like `response_cost json usage.total_tokens`"},
		{"response_cost ten", "write where the figure stands, like `response_cost header X-Cost`"},
		{"response_cost header", "write where the figure stands"},
		{"response_cost header X-Cost * ten", `the factor "ten" is not a number`},
		{"response_cost header X-Cost * 0", "the factor 0 is not above 0"},
		{"response_cost json a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q", "16"},
		{"response_cost bytes\ncount_denied", "count_denied counts requests that get no response"},
		{"response_cost bytes\nalgorithm leaky_bucket\nqueue 9", "leaky_bucket is a queue, in which a request keeps its place"},
		{"response_cost bytes\nsync_rate strict\nalgorithm sliding_log\nlimit 2000/1h", "with sync_rate strict, a sliding_log keeps each unit in redis, 1024 at most"},
		{"response_cost bytes\nresponse_cost_default 5", "add `count_responses 2xx`"},
		{"response_cost_default 5", "there is no response_cost that could be missing"},
		{"response_cost bytes\ncount_responses 2xx\nresponse_cost_default -5", "-5 is not between 0 and 2^40"},
		{"response_cost bytes\ncost 0", "0 reserves nothing"},
	} {
		h, limit := new(ratelimit.Handler), "limit 100/1m\n"
		if strings.Contains(c.options, "limit ") {
			limit = ""
		}
		err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\nzone x {\n" + limit + c.options + "\n}\n}"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.options, err, c.want)
		}
	}
	for _, limit := range []string{"limit 10KiB/1m\ncost 1KiB\nresponse_cost bytes", "limit 100/1m\ncost 2\nsync_rate strict\nalgorithm gcra\ncount_responses 2xx", "limit 100/1m\nresponse_cost json a b\nresponse_cost {http.vars.x} * 2"} {
		if err := new(ratelimit.Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("rate_limit {\nzone x {\n" + limit + "\n}\n}")); err != nil {
			t.Errorf("%q: %v", limit, err)
		}
	}
}

// Where Redis can't be asked when a response says that it has cost more than was reserved, this
// node's own counters are charged, and Redis learns of it when it is back: under each algorithm.
func TestAChargeWhileRedisIsAway(t *testing.T) {
	proxy := faultproxy.Start(t, redistest.Start(t).Addr)
	var zones strings.Builder
	for _, algorithm := range settling {
		zones.WriteString(sitetest.ZoneBlock("away-"+algorithm, "limit 1000/1000h\nsync_rate strict\nalgorithm "+algorithm+"\ncost 10\nresponse_cost header X-Cost"))
	}
	s := sitetest.NewSite(t, sitetest.AppWith(&redistest.Server{Addr: proxy.Addr}), zones.String())
	left := map[string]string{}
	s.Next = func(w http.ResponseWriter, r *http.Request) error {
		for _, algorithm := range settling {
			left[algorithm] = sitetest.ValueOf(r, "http.rate_limit.away-"+algorithm+".remaining")
		}
		cost := "0"
		if r.Header.Get("Cuts") != "" {
			proxy.Set(faultproxy.Reset)
			redistest.Eventually(t, "Redis is known to be away", func() bool {
				s.Decides("192.0.2.2", 1, 1)
				return s.Shared().Strict.Status().Open > 0
			})
			cost = "200"
		}
		w.Header().Set("X-Cost", cost)
		return nil
	}
	charged := func() bool {
		s.Get("192.0.2.1")
		for _, algorithm := range settling {
			if left[algorithm] != "790" {
				return false
			}
		}
		return true
	}
	s.Get("192.0.2.1", sitetest.Header("Cuts", "1"))
	if !charged() {
		t.Errorf("while Redis is away %v are left, want 790 each", left)
	}
	proxy.Set(faultproxy.None)
	redistest.Eventually(t, "Redis is back", func() bool { return s.Shared().Strict.Status().Open == 0 })
	redistest.Eventually(t, "Redis knows of 200", charged)
	for _, algorithm := range settling {
		sitetest.Shows(t, "away-"+algorithm, "has sent all", func(z operate.LimitState) bool { return z.Unsent == 0 })
	}
	if !charged() {
		t.Errorf("in the end %v are left, want 790 each", left)
	}
}
