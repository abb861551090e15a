package behaviour_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// inUse is how many slots of a zone are taken on this node.
func inUse(t *testing.T, zone string) (n int64) {
	t.Helper()
	for _, l := range operate.CurrentState().Zones {
		if l.Zone == zone && l.Concurrent {
			return l.Own
		}
	}
	t.Fatalf("there is no zone %q with concurrent", zone)
	return 0
}

// A place is free with the last byte of a response whose header says how long it is: a client that
// has it may come again on another connection before the handler has returned, as reverse_proxy
// with flush_interval -1 does. Before that byte, and of a response of no known length, it is taken.
func TestAPlaceIsFreeWithTheLastByte(t *testing.T) {
	for _, rate := range []string{"local", "strict"} {
		t.Run(rate, func(t *testing.T) {
			app := new(ratelimit.App)
			if rate == "strict" {
				app = sitetest.AppWith(redistest.Start(t))
			}
			s := sitetest.NewSite(t, app, sitetest.ZoneBlock("last", "concurrent 1\nsync_rate "+rate))
			for _, test := range []struct {
				length string
				sends  []string
				want   []int // after each
			}{
				{"10", []string{"hello", "hello"}, []int{429, 200}},
				{"0", []string{""}, []int{200}},
				{"", []string{"hello", "hello"}, []int{429, 429}},
				{"none", []string{"hello"}, []int{429}},
			} {
				var got []int
				s.Next = func(w http.ResponseWriter, _ *http.Request) error {
					if test.length != "" {
						w.Header().Set("Content-Length", test.length)
					}
					for _, sent := range test.sends {
						_, _ = io.WriteString(w, sent)
						_ = http.NewResponseController(w).Flush()
						s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
						got = append(got, s.Get("1.2.3.4").Status)
					}
					return nil
				}
				s.Get("1.2.3.4")
				if !slices.Equal(got, test.want) {
					t.Errorf("Content-Length %q: while the handler has not returned others get %d, want %d", test.length, got, test.want)
				}
				if n := inUse(t, "last"); n != 0 {
					t.Errorf("Content-Length %q: %d run at the end, want none", test.length, n)
				}
			}
		})
	}
}

// What runs goes on counting over a reload, also where the zone was gone in between, and a new
// number holds at once.
func TestConcurrentOverReloads(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: "one"}, sitetest.ZoneBlock(t.Name(), "concurrent 2"))
	r := guesses(s)
	r.hold("1.2.3.4", 2)
	other := sitetest.NewSite(t, &ratelimit.App{Namespace: "two"}, sitetest.ZoneBlock(t.Name(), "concurrent 3"))
	s.End()
	other.Admits("1.2.3.4", 1, 1)
	s2 := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("other", "limit 3/30d"))
	other.End()
	s3 := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock(t.Name(), "concurrent 2"))
	s2.End()
	s3.Admits("1.2.3.4", 1, 0)
	r.end(1, http.StatusOK)
	s3.Admits("1.2.3.4", 1, 1)
	r.end(1, http.StatusOK)
	if n := inUse(t, t.Name()); n != 0 {
		t.Errorf("%d run, want none", n)
	}
}

// What operators do has the effect that the page promises.
func TestConcurrentAndOperators(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("downloads", "concurrent 1")+sitetest.ZoneBlock("both", "limit 100/60d\nconcurrent 2\nkey {http.request.header.K}"))
	s.Next = func(http.ResponseWriter, *http.Request) error { return nil }
	s.Admits("1.2.3.4", 1, 1)
	r := guesses(s)
	r.hold("1.2.3.4", 1)

	var h operate.Explained
	_, text := sitetest.Ask(http.MethodPost, "/rate_limit/explain", `{"zone":"downloads","key":"1.2.3.4"}`)
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		t.Fatal(text)
	}
	if l := h.Zones[0].Limits[0]; h.Decision != answer.Denied || !l.Concurrent || l.Limit != 1 || l.Used != 1 || l.Remaining != 0 || l.Wait != 1 {
		t.Errorf("explained as %s", text)
	}
	if n := inUse(t, "downloads"); n != 1 {
		t.Errorf("explaining has changed what runs to %d", n)
	}
	if _, text := sitetest.Ask(http.MethodGet, "/rate_limit/top?zone=downloads", ""); !strings.Contains(text, `"concurrent":true`) || !strings.Contains(text, `"used":1`) {
		t.Errorf("top says %s", text)
	}
	status, text := sitetest.Ask(http.MethodPost, "/rate_limit/reset", `{"zone":"downloads","key":"1.2.3.4"}`)
	if status != http.StatusOK || !strings.Contains(text, "keeps its place until it ends") {
		t.Errorf("reset says %d %s", status, text)
	}
	s.Admits("1.2.3.4", 1, 0)

	if status, text := sitetest.Ask(http.MethodPost, sitetest.Overrides, `{"zone":"downloads","key":"1.2.3.4","limit":"3/30d"}`); status != 400 || !strings.Contains(text, "only concurrent") {
		t.Errorf("a rate for a zone without one: %d %s", status, text)
	}
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"downloads","key":"1.2.3.4","limit":"3"}`)
	r.hold("1.2.3.4", 1)
	r.end(2, http.StatusOK)
	r.hold("1.2.3.5", 1)
	s.Admits("1.2.3.5", 1, 0)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"downloads","key":"1.2.3.5","limit":"unlimited"}`)
	r.hold("1.2.3.5", 1)
	if n := inUse(t, "downloads"); n != 1 {
		t.Errorf("%d are counted, want the one from before", n)
	}
	r.end(2, http.StatusOK)
	// For a second run of the test.
	for _, ip := range []string{"1.2.3.4", "1.2.3.5"} {
		sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"downloads","key":"`+ip+`"}`)
	}
}

// The metrics tell how many keys a zone of slots alone holds, and that others share.
func TestMetricsOfSlotsAlone(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: t.Name()}, sitetest.ZoneBlock("slots-shown", "concurrent 9\nmax_keys 2\nkey {http.request.header.K}"))
	defer s.End()
	g := guesses(s)
	for i, want := range []string{"1 0", "2 1", "2 1"} {
		g.hold("1.2.3.4", 1, sitetest.Header("K", fmt.Sprint(i)))
		var keys, shared float64
		sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
			switch {
			case labels["zone"] != "slots-shown":
			case name == "caddy_rate_limit_keys":
				keys = value
			case name == "caddy_rate_limit_sketch_in_use":
				shared = value
			}
		})
		if got := fmt.Sprint(keys, shared); got != want {
			t.Errorf("with %d keys the metrics say %s, want %s", i+1, got, want)
		}
	}
	g.end(3, http.StatusOK)
}

// upgradingBackend serves files, and upgraded connections that last until their client leaves.
func upgradingBackend(t *testing.T) (address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/files/socket" {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, buf)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// upgrade opens an upgraded connection.
func upgrade(s *sitetest.Served) (net.Conn, int) {
	s.T.Helper()
	c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), s.Clients["HTTP/1.1"].Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		s.T.Fatal(err)
	}
	_, _ = fmt.Fprintf(c, "GET /files/socket HTTP/1.1\r\nHost: localhost:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", s.Port)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.T.Fatal(err)
	}
	return c, a.StatusCode
}

// The page's own site limits what runs, by every protocol: an upgraded connection runs until it
// ends.
func TestConcurrentByEveryProtocol(t *testing.T) {
	global, site := sitetest.SiteInPage(t, "docs/concurrent.md", "example.com")
	s := sitetest.StartCaddy(t, global, strings.Replace(site, "localhost:9000", upgradingBackend(t), 1))
	var sockets []net.Conn
	for range 4 {
		c, status := upgrade(s)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("an upgrade is answered by %d", status)
		}
		sockets = append(sockets, c)
	}
	for _, protocol := range protocols {
		s.Answers(protocol, 1, http.StatusTooManyRequests, 1, sitetest.OnPath("/files/a"))
	}
	_ = sockets[0].Close()
	redistest.Eventually(t, "the connection's place is free", func() bool { return inUse(t, "downloads") == 3 })
	for range 3 {
		s.Answers("HTTP/2.0", 1, http.StatusOK, 1, sitetest.OnPath("/files/a"))
		// A client can have the whole response before the handler returns.
		redistest.Eventually(t, "the request's place is free", func() bool { return inUse(t, "downloads") == 3 })
	}
	for _, c := range sockets[1:] {
		_ = c.Close()
	}
	redistest.Eventually(t, "all places are free", func() bool { return inUse(t, "downloads") == 0 && inUse(t, "backend") == 0 })
}

// A request of a key that only Redis knows to be banned has asked for its slot before, and gives it
// back; also in shadow mode, where it goes on.
func TestConcurrentOfAKeyBannedElsewhere(t *testing.T) {
	for _, enforce := range []string{"", "enforce off"} {
		r := redistest.Start(t)
		s := sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("concurrent-banned", "limit 100/30d\nconcurrent 2\nban 1h\nsync_rate strict\n"+enforce))
		bannedElsewhere(t, r, "concurrent-banned", keys.IDOf(rawKey(s, "1.2.3.4")), time.Hour)
		a := s.Get("1.2.3.4")
		if banned := strings.Contains(a.Body, abnormal); banned != (enforce == "") {
			t.Errorf("%q: %d %s", enforce, a.Status, a.Body)
		}
		if n := inUse(t, "concurrent-banned"); n != 0 {
			t.Errorf("%q: %d slots are in use after the end, want 0", enforce, n)
		}
		s.End()
	}
}

// Requests don't wait for a Redis that is away, and the status and metrics say so, also where zones
// have nothing but concurrent.
func TestCircuitsOfConcurrent(t *testing.T) {
	r := redistest.Start(t)
	app := sitetest.AppWith(r)
	app.StrictTimeout = 0
	s := sitetest.NewSite(t, app, sitetest.ZoneBlock("circuits", "concurrent 2\nsync_rate strict"))
	open := func() (shown [2]int) {
		sitetest.Scrape(t, func(name string, _ map[string]string, value float64) {
			if name == "caddy_rate_limit_circuits_open" {
				shown[0] = int(value)
			}
		})
		shown[1] = operate.CurrentState().Strict.Open
		return shown
	}
	s.Admits("1.2.3.4", 3, 3)
	if got := open(); got != [2]int{0, 0} {
		t.Errorf("the metric and the state show %v open circuits, want none", got)
	}
	r.Kill()
	s.Admits("1.2.3.4", 3, 3)
	if got, c := open(), operate.CurrentState().Strict; got != [2]int{1, 1} || c.Of != 1 {
		t.Errorf("without Redis the metric and the state show %v open circuits, %+v, want one", got, c)
	}
	r.Restart()
	redistest.Eventually(t, "the circuit is closed", func() bool { return open() == [2]int{0, 0} })
	s.Admits("1.2.3.4", 3, 3)
}

// A request that passes several handlers with a zone has one slot in it, until the outermost of
// them has returned. A key that is another one in the inner handler has a slot of its own.
func TestConcurrentInTwoHandlersOnOneWay(t *testing.T) {
	for _, rate := range []string{"local", "strict"} {
		app := new(ratelimit.App)
		if rate == "strict" {
			app = sitetest.AppWith(redistest.Start(t))
		}
		block := sitetest.ZoneBlock("nested", "concurrent 1\nkey {http.request.uri.path}\nsync_rate "+rate) + sitetest.ZoneBlock("nested-few", "limit 9/30d\nkey {http.request.uri.path}")
		outer, inner := sitetest.NewSite(t, app, block), sitetest.NewSite(t, app, sitetest.ZoneBlock("nested", "concurrent 1\nkey {http.request.uri.path}\nsync_rate "+rate)+sitetest.ZoneBlock("nested-one", "limit 2/30d\nkey {http.request.uri.path}"))
		during := func(want int64) func(http.ResponseWriter, *http.Request) error {
			return func(http.ResponseWriter, *http.Request) error {
				if n := inUse(t, "nested"); n != want {
					t.Errorf("%s: %d run within the inner handler, want %d", rate, n, want)
				}
				return nil
			}
		}
		rewrite := false
		outer.Next = func(w http.ResponseWriter, r *http.Request) error {
			if rewrite {
				r.URL.Path = "/rewritten"
			}
			err := inner.Handler.ServeHTTP(w, r, inner.Next)
			if n := inUse(t, "nested"); n != 1 {
				t.Errorf("%s: %d run after the inner handler has returned, want 1", rate, n)
			}
			return err
		}
		inner.Next = during(1)
		// the third one is denied by the inner handler
		outer.Admits("1.2.3.4", 3, 2, sitetest.To("/a"))
		rewrite, inner.Next = true, during(2)
		outer.Admits("1.2.3.4", 2, 2, sitetest.To("/b"))
		if n := inUse(t, "nested"); n != 0 {
			t.Errorf("%s: %d run at the end, want none", rate, n)
		}
		inner.End()
		outer.End()
	}
}
