package behaviour_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/operate"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// bandwidthOf is how a zone slows responses just now.
func bandwidthOf(t testing.TB, zone string) operate.BandwidthState {
	t.Helper()
	for _, b := range operate.CurrentState().Bandwidth {
		if b.Zone == zone {
			return b
		}
	}
	t.Fatalf("the state has no bandwidth of zone %q", zone)
	return operate.BandwidthState{}
}

// The page's Caddyfile: downloads of one client share the rate over all protocols, and nothing else
// is slowed.
func TestBandwidthOfThePage(t *testing.T) {
	const size = 256 << 10
	dir := t.TempDir()
	body := bytes.Repeat([]byte("tide"), size/4)
	for _, name := range []string{"downloads/file.bin", "other.bin"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, site := sitetest.SiteInPage(t, "docs/bandwidth.md", "files.example.com")
	s := sitetest.StartCaddy(t, "", strings.ReplaceAll(site, "/srv", dir))
	before := bandwidthOf(t, "downloads")
	for _, protocol := range protocols {
		if a, err := s.Get(t.Context(), protocol, sitetest.OnPath("/other.bin")); err != nil || a.Body != string(body) {
			t.Errorf("%s: %d bytes that are not slowed, %v, want all %d", protocol, len(a.Body), err, size)
		}
		if a, err := s.Get(t.Context(), protocol, sitetest.OnPath("/downloads/file.bin"), sitetest.Method(http.MethodHead)); err != nil || a.Header.Get("Content-Length") != fmt.Sprint(size) {
			t.Errorf("%s: HEAD has %v, %v", protocol, a.Header, err)
		}
	}
	if now := bandwidthOf(t, "downloads"); now != before {
		t.Errorf("what is not slowed was counted: %+v, before %+v", now, before)
	}
	downloads := 0
	// A machine may be slower than the rate.
	redistest.Eventually(t, "downloads have waited", func() bool {
		var all sync.WaitGroup
		for _, protocol := range protocols {
			all.Go(func() {
				a, err := s.Get(t.Context(), protocol, sitetest.OnPath("/downloads/file.bin"))
				if err != nil || a.Body != string(body) {
					t.Errorf("%s: %d bytes, %v, want all %d", protocol, len(a.Body), err, size)
				}
			})
			downloads++
		}
		all.Wait()
		return bandwidthOf(t, "downloads").Waited > before.Waited || t.Failed()
	})
	redistest.Eventually(t, "all downloads have ended", func() bool { return bandwidthOf(t, "downloads").Open == 0 })
	if now := bandwidthOf(t, "downloads"); now.Bytes-before.Bytes != int64(downloads)*size {
		t.Errorf("%+v, before %+v, want %d bytes more", now, before, downloads*size)
	}
	shown := map[string]float64{}
	sitetest.Scrape(t, func(name string, labels map[string]string, value float64) {
		if labels["zone"] == "downloads" && strings.Contains(name, "bandwidth") {
			shown[strings.TrimPrefix(name, "caddy_rate_limit_bandwidth_")] = value
		}
	})
	if now := bandwidthOf(t, "downloads"); len(shown) != 3 || shown["bytes_total"] != float64(now.Bytes) || shown["wait_seconds_total"] != now.Waited || shown["responses"] != 0 {
		t.Errorf("metrics %v, want those of %+v", shown, now)
	}
	if n := sitetest.DecidedAs(t, "downloads", "admitted"); n != downloads+3 {
		t.Errorf("%d requests were admitted, want %d with a body and 3 without", n, downloads)
	}
}

// writes has a handler write n bytes in pieces.
func writes(n, piece int) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		b := make([]byte, piece)
		for n := n; n > 0; n -= piece {
			if _, err := w.Write(b[:min(n, piece)]); err != nil {
				return err
			}
		}
		return nil
	}
}

// A zone that is not enforced for a key slows nothing, and neither does one that an operator has
// set to unlimited for it; deny denies, and a number is no answer for a zone without a limit.
func TestBandwidthAtRunTime(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{Namespace: "bandwidth"}, sitetest.ZoneBlock("slow", "bandwidth 1B/s"))
	s.Next = writes(100_000, 1000)
	fast := func(ip, why string) {
		t.Helper()
		if a := s.Get(ip); a.Status != http.StatusOK || len(a.Body) != 100_000 {
			t.Errorf("%s: %d with %d bytes", why, a.Status, len(a.Body))
		}
	}
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"slow","key":"192.0.2.1","limit":"unlimited"}`)
	sitetest.Changed(t, http.MethodPost, sitetest.Overrides, `{"zone":"slow","key":"192.0.2.2","limit":"deny"}`)
	if status, text := sitetest.Ask(http.MethodPost, sitetest.Overrides, `{"zone":"slow","key":"192.0.2.3","limit":"10/30d"}`); status != http.StatusBadRequest || !strings.Contains(text, "bandwidth only") {
		t.Errorf("a number for a zone without a limit: %d %s", status, text)
	}
	fast("192.0.2.1", "unlimited")
	if a := s.Get("192.0.2.2"); a.Status != http.StatusForbidden {
		t.Errorf("deny: %d, want 403", a.Status)
	}
	if b := bandwidthOf(t, "slow"); b.Bytes != 0 || b.Open != 0 {
		t.Errorf("something was slowed: %+v", b)
	}
	explains(s, t, "192.0.2.1", "skipped", "")
	explains(s, t, "192.0.2.2", "denied", "")
	explains(s, t, "192.0.2.3", "admitted", "1B/s")
	sitetest.Changed(t, http.MethodPost, sitetest.Enforcement, `{"zone":"slow","share":0}`)
	explains(s, t, "192.0.2.3", "skipped", "")
	fast("192.0.2.3", "not enforced")
	if status, text := sitetest.Ask(http.MethodGet, "/rate_limit/top?zone=slow", ""); status == http.StatusOK || !strings.Contains(text, "no limit") {
		t.Errorf("top of a zone without a limit: %d %s", status, text)
	}
	// For a second run of the test.
	sitetest.Changed(t, http.MethodDelete, sitetest.Enforcement, `{"zone":"slow"}`)
	for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		sitetest.Changed(t, http.MethodDelete, sitetest.Overrides, `{"zone":"slow","key":"`+ip+`"}`)
	}
}

// explains asks what would become of the next request of a key in the only zone.
func explains(s *sitetest.Site, t *testing.T, ip, decision, bandwidth string) {
	t.Helper()
	z := s.Handler.Zones()[0]
	k, _ := z.KeyOf(s.Request(ip))
	h, ok, err := operate.ExplainKey(z, k, nil)
	text, _ := json.Marshal(h)
	if !ok || err != nil || len(h.Zones) != 1 || h.Zones[0].Decision.String() != decision || (h.Zones[0].Bandwidth != 0) != (bandwidth != "") || bandwidth != "" && h.Zones[0].Bandwidth.String() != bandwidth {
		t.Errorf("explain %s: %s, %t, %v, want %s with bandwidth %q", ip, text, ok, err, decision, bandwidth)
	}
}

// A response that is open takes the rate of a reload, and goes on where a reload removes the zone.
func TestBandwidthOverAReload(t *testing.T) {
	for _, after := range []string{"bandwidth 1GiB/s", "bandwidth 1GiB/s\nlimit 5/30d"} {
		s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("reloaded", "bandwidth 100B/s"))
		s.Next = writes(1_000_000, 10_000) // for hours
		done := make(chan sitetest.Reply)
		go func() { done <- s.Get("192.0.2.1") }()
		redistest.Eventually(t, "the response is open", func() bool { return bandwidthOf(t, "reloaded").Bytes > 0 })
		next := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("reloaded", after))
		if b := bandwidthOf(t, "reloaded"); b.Rate != 100 {
			t.Errorf("a configuration that is not the current one has set the rate to %v", b.Rate)
		}
		s.End()
		if a := <-done; len(a.Body) != 1_000_000 {
			t.Errorf("%d bytes over a reload", len(a.Body))
		}
		next.End()
	}
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("removed", "bandwidth 100kB/s"))
	s.Next = writes(50_000, 10_000)
	done := make(chan sitetest.Reply)
	go func() { done <- s.Get("192.0.2.1") }()
	redistest.Eventually(t, "the response is open", func() bool { return bandwidthOf(t, "removed").Bytes > 0 })
	next := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("other", "limit 5/30d"))
	s.End()
	if a := <-done; len(a.Body) != 50_000 || len(operate.CurrentState().Bandwidth) != 0 {
		t.Errorf("%d bytes over a reload, and the state has %+v", len(a.Body), operate.CurrentState().Bandwidth)
	}
	next.End()
}

// With a limit beside it, what is denied is answered at once and not counted; what encode does
// inside is done before.
func TestBandwidthBesideALimit(t *testing.T) {
	s := sitetest.StartCaddy(t, "", `
rate_limit {
	zone both {
		limit 2/30d
		bandwidth 64KiB/s
	}
}
encode gzip
header Content-Type text/plain
respond "`+strings.Repeat("tide ", 100_000)+`"`)
	for range 2 {
		a, err := s.Get(t.Context(), "HTTP/2.0", sitetest.Header("Accept-Encoding", "gzip"))
		if err != nil || a.Status != http.StatusOK || len(a.Body) > 10_000 {
			t.Errorf("%d with %d bytes, %v, want little", a.Status, len(a.Body), err)
		}
	}
	redistest.Eventually(t, "both responses have ended", func() bool { return bandwidthOf(t, "both").Open == 0 })
	counted := bandwidthOf(t, "both").Bytes
	if counted == 0 || counted > 20_000 {
		t.Errorf("%d bytes were counted, want those that are compressed", counted)
	}
	s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1)
	if b := bandwidthOf(t, "both"); b.Bytes != counted || b.Keys > 1 {
		t.Errorf("a denied request was counted: %+v", b)
	}
}

// Who leaves before the response begins has no part in the bandwidth: neither in a queue, nor while
// Redis is asked.
func TestBandwidthOfWhoLeavesEarly(t *testing.T) {
	proxy := faultproxy.Start(t, redistest.Start(t).Addr)
	for _, options := range []string{"limit 1/30d\nalgorithm leaky_bucket\nqueue 3", "limit 5/30d\nsync_rate strict"} {
		app, waiting := &ratelimit.App{}, func() int { return sitetest.InQueue(t) }
		if strings.Contains(options, "strict") {
			app = sitetest.AppWith(&redistest.Server{Addr: proxy.Addr})
			waiting = proxy.Requests
		}
		s := sitetest.NewSite(t, app, sitetest.ZoneBlock("both", options+"\nbandwidth 1GiB/s\nkey all")+sitetest.ZoneBlock("slow", "bandwidth 1GiB/s\nkey all"))
		s.Next = writes(1000, 100)
		redistest.Eventually(t, "one is answered", func() bool { return s.Get("192.0.2.1").Status == http.StatusOK })
		proxy.Set(faultproxy.Blackhole)
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		before, had := bandwidthOf(t, "both"), waiting()
		for range 3 {
			wg.Go(func() { s.Send(s.Request("192.0.2.1").WithContext(ctx)) })
		}
		redistest.Eventually(t, "some wait", func() bool { return waiting() > had })
		if both, slow := bandwidthOf(t, "both"), bandwidthOf(t, "slow"); both.Open+slow.Open != 0 {
			t.Errorf("%s: %d and %d are open while they wait", options, both.Open, slow.Open)
		}
		leave()
		// Else who has made the call waits for its answer, and the end for all of them.
		proxy.Set(faultproxy.Reset)
		wg.Wait()
		if both := bandwidthOf(t, "both"); both.Open != 0 || both.Bytes != before.Bytes {
			t.Errorf("%s: when they have left: %+v, want as before: %+v", options, both, before)
		}
		proxy.Set(faultproxy.None)
		s.End()
	}
}

// The page of an error route is sent at once, also where the error comes from behind the handler.
func TestBandwidthOfErrorPages(t *testing.T) {
	page := strings.Repeat("no", 10_000)
	s := sitetest.StartCaddy(t, "", "rate_limit {\n"+sitetest.ZoneBlock("pages", "limit 1/30d\nbandwidth 1B/s")+"}\nerror 500\nhandle_errors {\nrespond "+page+"\n}")
	for _, status := range []int{http.StatusInternalServerError, http.StatusTooManyRequests} {
		if a, err := s.Get(t.Context(), "HTTP/1.1"); err != nil || a.Status != status || a.Body != page {
			t.Errorf("%d with %d bytes, %v, want %d with the page", a.Status, len(a.Body), err, status)
		}
	}
	if b := bandwidthOf(t, "pages"); b.Open != 0 || b.Bytes != 0 {
		t.Errorf("pages of errors are slowed: %+v", b)
	}
}

// slowly has many downloads share what is enough to begin them soon.
const slowly = "bandwidth 16MiB/s"

// A download costs what a slow client costs anyway, and a buffer: neither a goroutine nor 64 kB.
func TestWhatASlowDownloadCosts(t *testing.T) {
	const n = 150
	slow, goroutines := costOfDownloads(t, n, slowly)
	free, before := costOfDownloads(t, n, "limit 1000000/30d")
	if more := goroutines - before; more > 0.1 {
		t.Errorf("%.2f goroutines more for each slow download, want none", more)
	}
	if more := slow - free; more > 64<<10 {
		t.Errorf("%.0f bytes more for each slow download, want at most 64 kB", more)
	}
}

// BenchmarkSlowDownloads measures what a download costs while it is under way: slowed by bandwidth,
// and by a client that does not read.
func BenchmarkSlowDownloads(b *testing.B) {
	for name, option := range map[string]string{"bandwidth": slowly, "client": "limit 1000000/30d"} {
		b.Run(name, func(b *testing.B) {
			bytes, goroutines := costOfDownloads(b, b.N, option)
			b.ReportMetric(bytes, "B/download")
			b.ReportMetric(goroutines, "goroutines/download")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// costOfDownloads has n downloads under way, and returns the memory and the goroutines of each.
func costOfDownloads(t testing.TB, n int, option string) (bytes, goroutines float64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.bin")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 1<<30); err != nil { // a hole: it takes no space
		t.Fatal(err)
	}
	port := redistest.FreePort(t)
	config, err := sitetest.Adapt(fmt.Sprintf("{\nadmin off\npersist_config off\nauto_https off\nlog default {\noutput discard\n}\n}\nhttp://localhost:%d {\nbind 127.0.0.1\nrate_limit {\nzone cost {\nkey all\n%s\n}\n}\nroot * %s\nfile_server\n}", port, option, filepath.Dir(file)))
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caddy.Stop() }()
	conns := make([]net.Conn, n)
	open := func(i int) {
		if conns[i], err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			t.Fatal(err)
		}
		// So little that the server soon waits for a client that does not read.
		_ = conns[i].(*net.TCPConn).SetReadBuffer(4096)
		fmt.Fprintf(conns[i], "GET /file.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	memory := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc + m.StackInuse)
	}
	redistest.Eventually(t, "what is left of other downloads has ended", func() bool {
		return !strings.Contains(sitetest.StackTraces(t), "net/http.(*conn).serve(")
	})
	before, running := memory(), sitetest.StackTraces(t)
	for i := range conns {
		open(i)
	}
	redistest.Eventually(t, "all downloads wait", func() bool {
		stacks := sitetest.StackTraces(t)
		return strings.Count(stacks, "(*Response).sleep(")+strings.Count(stacks, "waitWrite(") >= n-1
	})
	for _, one := range regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(sitetest.StackTraces(t), -1) {
		if !strings.Contains(running, one) { // those of tests before this one may end meanwhile
			goroutines++
		}
	}
	bytes, goroutines = (memory()-before)/float64(n), goroutines/float64(n)
	for _, c := range conns {
		_ = c.Close()
	}
	return bytes, goroutines
}

// A request of which a zone has only the bandwidth left, as its limits are unlimited, counts as
// admitted.
func TestBandwidthBesideNoLimitCounts(t *testing.T) {
	s := sitetest.NewSite(t, &ratelimit.App{}, sitetest.ZoneBlock("bandwidth-counted", "limit {http.request.header.X-Plan}/30d\nlimit_default 1/30d\nbandwidth 1MiB/s"))
	s.Next = writes(10, 10)
	s.Admits("192.0.2.1", 3, 3, sitetest.Plan("unlimited"))
	s.Admits("192.0.2.1", 2, 1)
	for decision, want := range map[string]int{"admitted": 4, "denied": 1, "skipped": 0} {
		if n := sitetest.DecidedAs(t, "bandwidth-counted", decision); n != want {
			t.Errorf("%d requests are %s, want %d", n, decision, want)
		}
	}
}
