package behaviour_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// reload loads the configuration again.
func reload(s *sitetest.Served) {
	s.T.Helper()
	sitetest.ReplaceConfig(s.T, s.Config)
	for _, c := range s.Clients {
		c.CloseIdleConnections() // which are of the server that ended
	}
}

var protocols = []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"}

// logged counts the lines with a code.
func logged(s *sitetest.Served, code string) (n int) {
	s.T.Helper()
	file, err := os.Open(s.Log)
	if err != nil {
		s.T.Fatal(err)
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

// One client has one count, whatever it speaks, and is denied alike.
func TestProtocolsShareOneCount(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit 6/30d {\n algorithm fixed_window\n}\nrespond ok")
	for _, protocol := range protocols {
		s.Answers(protocol, 2, http.StatusOK, 2)
	}
	for _, protocol := range protocols {
		a, err := s.Get(t.Context(), protocol)
		if err != nil || a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Header.Get("Ratelimit"), ";r=0;") ||
			a.Header.Get("Content-Type") != "application/problem+json" || !json.Valid([]byte(a.Body)) {
			t.Errorf("%s: %d %v %q, %v, want a denial", protocol, a.Status, a.Header, a.Body, err)
		}
	}
}

// Keys as hostile as a client can send them have a count each, the same by every protocol, and the
// server goes on.
func TestHostileKeysByEveryProtocol(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit 3/30d {\n algorithm fixed_window\n key {http.request.header.K}{http.request.cookie.c}{http.request.uri}\n empty_key deny\n}\nrespond ok")
	long := strings.Repeat("x", 12_000)
	for name, key := range map[string]string{
		"giant": long, "giant, with another end": long + "y", "high bytes": "\x80\xff\xfe", "a placeholder": "{http.request.host}", "braces": "{}}{",
		"a tab": "a\tb", "invalid UTF-8": "\xc3\x28", "quotes": `"';--`,
	} {
		for _, protocol := range protocols {
			s.Answers(protocol, 1, http.StatusOK, 1, sitetest.Header("K", key))
		}
		for _, protocol := range protocols {
			if a, err := s.Get(t.Context(), protocol, sitetest.Header("K", key)); err != nil || a.Status != http.StatusTooManyRequests {
				t.Errorf("%s by %s: %d, %v after three requests of that key, want 429", name, protocol, a.Status, err)
			}
		}
	}
	for _, protocol := range protocols {
		// More than the server takes in is refused before it is a key, and costs the server
		// nothing.
		if a, err := s.Get(t.Context(), protocol, sitetest.Header("K", strings.Repeat("x", 2<<20))); err == nil && a.Status == http.StatusOK {
			t.Errorf("%s: a header of 2 MB was let through", protocol)
		}
		s.Answers(protocol, 1, http.StatusOK, 1, sitetest.Header("K", "after "+protocol))
	}
}

// A request that fails behind the limit passes it a second time on the error route, and is counted
// once.
func TestErrorRoutesCountOnceByEveryProtocol(t *testing.T) {
	zone := "rate_limit {\n zone twice {\n limit 4/30d\n algorithm fixed_window\n key {http.request.header.K}\n}\n}\n"
	s := sitetest.StartCaddy(t, "", zone+"error 500\nhandle_errors {\n"+zone+"respond {http.error.status_code} {http.error.status_code}\n}")
	for _, protocol := range protocols {
		s.Answers(protocol, 4, http.StatusInternalServerError, 4, sitetest.Header("K", protocol))
		s.Answers(protocol, 3, http.StatusTooManyRequests, 3, sitetest.Header("K", protocol))
	}
}

// Clients that wait in a queue and go away, or send slowly, hold no more than the queue's places,
// and nothing afterwards.
func TestQueueIsBoundedAndLeft(t *testing.T) {
	s := sitetest.StartCaddy(t, "", "rate_limit {\n zone queue {\n limit 10/30d\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	for _, protocol := range protocols {
		s.Answers(protocol, 1, http.StatusOK, 1, sitetest.Header("K", protocol)) // connects
		ctx, leave := context.WithCancel(t.Context())
		denied := make(chan int, 100)
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if a, err := s.Get(ctx, protocol, sitetest.Header("K", protocol)); err == nil {
					denied <- a.Status
				}
			})
		}
		redistest.Eventually(t, "the others are denied by "+protocol, func() bool { return len(denied) == 35 })
		redistest.Eventually(t, "the queue is full by "+protocol, func() bool { return sitetest.InQueue(t) == 5 })
		leave()
		wg.Wait()
		redistest.Eventually(t, "all have left the queue by "+protocol, func() bool { return sitetest.InQueue(t) == 0 })
		for range 35 {
			if status := <-denied; status != http.StatusTooManyRequests {
				t.Errorf("%s: beyond the queue: %d, want 429", protocol, status)
			}
		}
	}
}

// Clients that send their bodies slowly are decided on by their headers: they hold no more than
// the queue's places, nobody else waits for them, and when they go away nothing is left. By
// HTTP/1.1 nobody hears that one has gone whose body is still to be read: it has its place until
// its turn.
func TestSlowClientsHoldNoMoreThanTheQueue(t *testing.T) {
	const places = 5
	s := sitetest.StartCaddy(t, "", "rate_limit {\n zone slow {\n limit 5/30d\n algorithm leaky_bucket\n queue 5\n key {http.request.header.K}\n}\n}\nrespond ok")
	for _, protocol := range []string{"HTTP/2.0", "HTTP/3.0"} {
		ctx, leave := context.WithCancel(t.Context())
		slow := func(r *http.Request) {
			r.Method, r.ContentLength = http.MethodPost, 1000
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), until{ctx}))
		}
		var clients sync.WaitGroup
		var admitted, denied atomic.Int64
		for range 30 {
			clients.Go(func() {
				switch a, err := s.Open(ctx, protocol, sitetest.Header("K", "slow "+protocol), slow); {
				case err == nil && a.StatusCode == http.StatusOK:
					admitted.Add(1)
				case err == nil && a.StatusCode == http.StatusTooManyRequests:
					denied.Add(1)
				}
			})
		}
		redistest.Eventually(t, "the others are denied by "+protocol, func() bool { return denied.Load() == 30-1-places && admitted.Load() == 1 })
		redistest.Eventually(t, "the queue is full by "+protocol, func() bool { return sitetest.InQueue(t) == places })
		for _, other := range protocols {
			s.Answers(other, 1, http.StatusOK, 1, sitetest.Header("K", protocol+" beside "+other))
		}
		leave()
		clients.Wait()
		redistest.Eventually(t, "nobody is left in the queue by "+protocol, func() bool { return sitetest.InQueue(t) == 0 })
	}
}

// until is a body of which nothing comes before a context ends.
type until struct{ context.Context }

func (u until) Read([]byte) (int, error) {
	<-u.Done()
	return 0, u.Err()
}

// What a client writes into X-Forwarded-For changes its count only where the server is configured
// to believe it.
func TestForgedForwardedFor(t *testing.T) {
	forged := func(i int, appended string) func(*http.Request) {
		return sitetest.Header("X-Forwarded-For", fmt.Sprintf("203.0.113.%d%s", i, appended))
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
			s := sitetest.StartCaddy(t, c.global, "rate_limit 5/30d\nrespond ok")
			admitted := 0
			for i := range 20 {
				a, err := s.Get(t.Context(), protocols[i%3], forged(i, c.appended))
				if err != nil {
					t.Fatal(err)
				}
				if a.Status == http.StatusOK {
					admitted++
				}
			}
			if admitted != c.admitted {
				t.Errorf("20 forged addresses: %d admitted, want %d", admitted, c.admitted)
			}
			if n, m := logged(s, warning.UntrustedProxy), logged(s, warning.TrustNotStrict); n != c.untrusted || m != c.permissive {
				t.Errorf("warned %d times of an untrusted proxy and %d times of trust that is not strict, want %d and %d", n, m, c.untrusted, c.permissive)
			}
		})
	}
	t.Run("real clients behind a proxy that is trusted", func(t *testing.T) {
		s := sitetest.StartCaddy(t, "servers {\ntrusted_proxies static 127.0.0.1\ntrusted_proxies_strict\n}", "rate_limit 5/30d\nrespond ok")
		for i := range 3 {
			s.Answers(protocols[i], 10, http.StatusOK, 5, sitetest.Header("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i)))
		}
	})
}
