package ratelimit

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// A served is a Caddy in this process that answers on loopback by HTTP/1.1, HTTP/2 and HTTP/3.
type served struct {
	t       *testing.T
	port    int
	log     string
	config  []byte
	clients map[string]*http.Client
}

// startCaddy loads a Caddyfile: global options, and what stands in the only site. It ends with the
// test.
func startCaddy(t *testing.T, global, site string) *served {
	t.Helper()
	dir := t.TempDir()
	roots := certificate(t, dir)
	s := &served{t: t, port: redistest.FreePort(t), log: filepath.Join(dir, "log")}
	config, err := adapt(fmt.Sprintf(`{
	admin off
	persist_config off
	auto_https off
	log {
		output file %s
		format json
	}
	%s
}
https://localhost:%d {
	bind 127.0.0.1
	tls %s/cert.pem %[4]s/key.pem
	%s
}
`, s.log, global, s.port, dir, site))
	if err != nil {
		t.Fatal(err)
	}
	s.config = config
	loadConfig(t, config)
	s.connect(&tls.Config{RootCAs: roots, ServerName: "localhost"})
	return s
}

// loadSites loads a Caddyfile of sites, without an admin endpoint and a log.
func loadSites(t *testing.T, sites string) {
	t.Helper()
	config, err := adapt("{\nadmin off\npersist_config off\nauto_https off\nlog {\noutput discard\n}\n}\n" + sites)
	if err != nil {
		t.Fatal(err)
	}
	loadConfig(t, config)
}

// loadConfig loads a configuration. It ends with the test.
func loadConfig(t testing.TB, config []byte) {
	t.Helper()
	replaceConfig(t, config)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// replaceConfig loads a configuration and waits until no server of the one before listens.
func replaceConfig(t testing.TB, config []byte) {
	t.Helper()
	before := cluster.Listening(stackTraces(t))
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the servers of the configuration before listen no longer", func() bool {
		return !cluster.AnyOf(before, cluster.Listening(stackTraces(t)))
	})
}

// stackTraces are those of all goroutines of this process.
func stackTraces(t testing.TB) string {
	t.Helper()
	var stacks strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	return stacks.String()
}

// reload loads the configuration again.
func (s *served) reload() {
	s.t.Helper()
	replaceConfig(s.t, s.config)
	for _, c := range s.clients {
		c.CloseIdleConnections() // which are of the server that ended
	}
}

// certificate writes one for localhost with its key, and returns whom to trust.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return pool
}

var protocols = []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"}

func (s *served) connect(config *tls.Config) {
	one, two := new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetHTTP2(true)
	first := &http.Transport{Protocols: one, TLSClientConfig: config.Clone()}
	second := &http.Transport{Protocols: two, TLSClientConfig: config.Clone()}
	third := &http3.Transport{TLSClientConfig: config.Clone()}
	s.clients = map[string]*http.Client{"HTTP/1.1": {Transport: first}, "HTTP/2.0": {Transport: second}, "HTTP/3.0": {Transport: third}}
	s.t.Cleanup(func() {
		first.CloseIdleConnections()
		second.CloseIdleConnections()
		_ = third.Close()
	})
}

// get sends a request by a protocol. The error is that of a client who went away.
func (s *served) get(ctx context.Context, protocol string, change ...func(*http.Request)) (reply, error) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", s.port), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Host = fmt.Sprintf("localhost:%d", s.port)
	for _, f := range change {
		f(r)
	}
	response, err := s.clients[protocol].Do(r)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.Proto != protocol {
		s.t.Errorf("asked by %s, answered by %s", protocol, response.Proto)
	}
	return reply{status: response.StatusCode, header: response.Header, body: string(body)}, err
}

// answers sends count requests by a protocol and wants so many with a status.
func (s *served) answers(protocol string, count, status, want int, change ...func(*http.Request)) {
	s.t.Helper()
	got := 0
	for range count {
		a, err := s.get(s.t.Context(), protocol, change...)
		if err != nil {
			s.t.Fatalf("%s: %v", protocol, err)
		}
		if a.status == status {
			got++
		}
	}
	if got != want {
		s.t.Errorf("%s: %d of %d requests were answered by %d, want %d", protocol, got, count, status, want)
	}
}

// logged counts the lines with a code.
func (s *served) logged(code string) (n int) {
	s.t.Helper()
	file, err := os.Open(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct{ Code string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Code == code {
			n++
		}
	}
	return n
}

// inQueue is how many requests wait in leaky buckets of this process.
func inQueue(t *testing.T) int {
	t.Helper()
	return strings.Count(stackTraces(t), "clock.Sleep(")
}

// One client has one count, whatever it speaks, and is denied alike.
func TestProtocolsShareOneCount(t *testing.T) {
	s := startCaddy(t, "", "rate_limit 6/1h {\n algorithm fixed_window\n}\nrespond ok")
	for _, protocol := range protocols {
		s.answers(protocol, 2, http.StatusOK, 2)
	}
	for _, protocol := range protocols {
		a, err := s.get(t.Context(), protocol)
		if err != nil || a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || !strings.Contains(a.header.Get("Ratelimit"), ";r=0;") ||
			a.header.Get("Content-Type") != "application/problem+json" || !json.Valid([]byte(a.body)) {
			t.Errorf("%s: %d %v %q, %v, want a denial", protocol, a.status, a.header, a.body, err)
		}
	}
}

// Keys as hostile as a client can send them have a count each, the same by every protocol, and the
// server goes on.
func TestHostileKeysByEveryProtocol(t *testing.T) {
	s := startCaddy(t, "", "rate_limit 3/1h {\n algorithm fixed_window\n key {http.request.header.K}{http.request.cookie.c}{http.request.uri}\n empty_key deny\n}\nrespond ok")
	long := strings.Repeat("x", 12_000)
	for name, key := range map[string]string{
		"giant": long, "giant, with another end": long + "y", "high bytes": "\x80\xff\xfe", "a placeholder": "{http.request.host}", "braces": "{}}{",
		"a tab": "a\tb", "invalid UTF-8": "\xc3\x28", "quotes": `"';--`,
	} {
		for _, protocol := range protocols {
			s.answers(protocol, 1, http.StatusOK, 1, header("K", key))
		}
		for _, protocol := range protocols {
			if a, err := s.get(t.Context(), protocol, header("K", key)); err != nil || a.status != http.StatusTooManyRequests {
				t.Errorf("%s by %s: %d, %v after three requests of that key, want 429", name, protocol, a.status, err)
			}
		}
	}
	for _, protocol := range protocols {
		// More than the server takes in is refused before it is a key, and costs the server
		// nothing.
		if a, err := s.get(t.Context(), protocol, header("K", strings.Repeat("x", 2<<20))); err == nil && a.status == http.StatusOK {
			t.Errorf("%s: a header of 2 MB was let through", protocol)
		}
		s.answers(protocol, 1, http.StatusOK, 1, header("K", "after "+protocol))
	}
}

// A request that fails behind the limit passes it a second time on the error route, and is counted
// once.
func TestErrorRoutesCountOnceByEveryProtocol(t *testing.T) {
	zone := "rate_limit {\n zone twice {\n limit 4/1h\n algorithm fixed_window\n key {http.request.header.K}\n}\n}\n"
	s := startCaddy(t, "", zone+"error 500\nhandle_errors {\n"+zone+"respond {http.error.status_code} {http.error.status_code}\n}")
	for _, protocol := range protocols {
		s.answers(protocol, 4, http.StatusInternalServerError, 4, header("K", protocol))
		s.answers(protocol, 3, http.StatusTooManyRequests, 3, header("K", protocol))
	}
}

// Clients that wait in a queue and go away, or send slowly, hold no more than the queue's places,
// and nothing afterwards.
func TestQueueIsBoundedAndLeft(t *testing.T) {
	s := startCaddy(t, "", "rate_limit {\n zone queue {\n limit 10/1m\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	for _, protocol := range protocols {
		s.answers(protocol, 1, http.StatusOK, 1, header("K", protocol)) // connects
		ctx, leave := context.WithCancel(t.Context())
		denied := make(chan int, 100)
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if a, err := s.get(ctx, protocol, header("K", protocol)); err == nil {
					denied <- a.status
				}
			})
		}
		redistest.Eventually(t, "the others are denied by "+protocol, func() bool { return len(denied) == 35 })
		redistest.Eventually(t, "the queue is full by "+protocol, func() bool { return inQueue(t) == 5 })
		leave()
		wg.Wait()
		redistest.Eventually(t, "all have left the queue by "+protocol, func() bool { return inQueue(t) == 0 })
		for range 35 {
			if status := <-denied; status != http.StatusTooManyRequests {
				t.Errorf("%s: beyond the queue: %d, want 429", protocol, status)
			}
		}
	}
}

// Clients that send their bodies slowly are decided on by their headers: they hold no more than
// the queue's places, nobody else waits for them, and when they go away nothing is left.
func TestSlowClientsHoldNoMoreThanTheQueue(t *testing.T) {
	const places, drain = 5, time.Second // a place is free again after each drain
	s := startCaddy(t, "", "rate_limit {\n zone slow {\n limit 5/5s\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	config := s.clients["HTTP/1.1"].Transport.(*http.Transport).TLSClientConfig
	var slow []*tls.Conn
	for range 30 {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port), config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow = append(slow, conn)
	}
	start, waited := time.Now(), false
	waiting := func() int {
		t.Helper()
		now := inQueue(t)
		waited = waited || now > 0
		// A goroutine whose wait is over counts until it has run, which a busy machine may delay:
		// it is one of those whose place has drained since the start.
		if drained := int(time.Since(start) / drain); now > places+drained {
			t.Errorf("%d slow clients waited at once, want at most %d and the %d places drained since", now, places, drained)
		}
		return now
	}
	for _, conn := range slow {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost:%d\r\nK: slow\r\nContent-Length: 1000\r\n\r\nx", s.port)
		waiting()
	}
	redistest.Eventually(t, "slow clients wait", func() bool { waiting(); return waited })
	for _, protocol := range protocols {
		s.answers(protocol, 1, http.StatusOK, 1, header("K", protocol))
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
	redistest.Eventually(t, "nobody is left in the queue", func() bool { return waiting() == 0 })
}

// What a client writes into X-Forwarded-For changes its count only where the server is configured
// to believe it.
func TestForgedForwardedFor(t *testing.T) {
	forged := func(i int, appended string) func(*http.Request) {
		return header("X-Forwarded-For", fmt.Sprintf("203.0.113.%d%s", i, appended))
	}
	for _, c := range []struct {
		name, global, appended string
		admitted               int
		untrusted, permissive  int
	}{
		{"nobody is trusted", "", "", 5, 1, 0},
		{"another is trusted", "servers {\ntrusted_proxies static 192.0.2.1\n}", "", 5, 1, 0},
		{"trusted and strict, the proxy appends", "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}", ", 198.51.100.7", 5, 0, 0},
		{"trusted but not strict, the proxy appends", "servers {\ntrusted_proxies static 127.0.0.1\n}", ", 198.51.100.7", 20, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startCaddy(t, c.global, "rate_limit 5/1h\nrespond ok")
			admitted := 0
			for i := range 20 {
				a, err := s.get(t.Context(), protocols[i%3], forged(i, c.appended))
				if err != nil {
					t.Fatal(err)
				}
				if a.status == http.StatusOK {
					admitted++
				}
			}
			if admitted != c.admitted {
				t.Errorf("20 forged addresses: %d admitted, want %d", admitted, c.admitted)
			}
			if n, m := s.logged(warning.UntrustedProxy), s.logged(warning.TrustNotStrict); n != c.untrusted || m != c.permissive {
				t.Errorf("warned %d times of an untrusted proxy and %d times of trust that is not strict, want %d and %d", n, m, c.untrusted, c.permissive)
			}
		})
	}
	t.Run("real clients behind a proxy that is trusted", func(t *testing.T) {
		s := startCaddy(t, "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}", "rate_limit 5/1h\nrespond ok")
		for i := range 3 {
			s.answers(protocols[i], 10, http.StatusOK, 5, header("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i)))
		}
	})
}
