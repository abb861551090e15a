package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// relay is a network in this process that Caddy's servers listen on: a connection that one of them has not accepted when it closes goes to the next.
// What Caddy and net/http themselves do to connections in a reload is not in question here.
var relay = make(chan net.Conn)

// ear is a listener on the relay.
type ear struct {
	closed chan struct{}
	once   sync.Once
}

func init() {
	caddy.RegisterNetwork("tidetest", func(context.Context, string, string, string, uint, net.ListenConfig) (any, error) {
		return &ear{closed: make(chan struct{})}, nil
	})
}

func (e *ear) Accept() (net.Conn, error) {
	select {
	case c := <-relay:
		return c, nil
	case <-e.closed:
		return nil, net.ErrClosed
	}
}

func (e *ear) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

func (e *ear) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// pipeEnd is an end of a pipe that is free when it is closed: else the timers of its deadlines hold it until they end.
type pipeEnd struct{ net.Conn }

func (p pipeEnd) Close() error {
	_ = p.SetDeadline(time.Time{})
	return p.Conn.Close()
}

// lifetime is Caddy as it runs, in this process, on the relay.
type lifetime struct {
	t      *testing.T
	client *http.Client
}

// newLifetime has a client that opens a connection for each request: one that is idle when a server ends can be closed while a request arrives on it, is
// served and counted, and then the client sends it again.
func newLifetime(t *testing.T) *lifetime {
	l := &lifetime{t: t, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case relay <- pipeEnd{far}:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}}}
	t.Cleanup(func() { _ = caddy.Stop() })
	return l
}

// config is a Caddyfile with a site on the relay, and more.
func (l *lifetime) config(options, site, more string) []byte {
	l.t.Helper()
	config, err := adapt(fmt.Sprintf(`{
	admin off
	persist_config off
	auto_https off
	grace_period 30s
	log default {
		output discard
	}
	rate_limit {
		%s
	}
}
http:// {
	bind tidetest/x
	%s
}
%s`, options, site, more))
	if err != nil {
		l.t.Fatal(err)
	}
	return config
}

func (l *lifetime) load(config []byte) {
	l.t.Helper()
	if err := caddy.Load(config, true); err != nil {
		l.t.Fatalf("Load: %v", err)
	}
}

// get sends a request and returns the status and the body. What a server that is ending has read and not begun to serve it drops (net/http does, without
// a word): that is sent again, as a proxy or a browser does.
func (l *lifetime) get(path string, header ...string) (status int, body string, err error) {
	for range 100 {
		if status, body, err = l.try(path, header...); !errors.Is(err, io.EOF) {
			break
		}
	}
	return status, body, err
}

func (l *lifetime) try(path string, header ...string) (int, string, error) {
	r, err := http.NewRequest(http.MethodGet, "http://site"+path, nil)
	if err != nil {
		return 0, "", err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := l.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return a.StatusCode, string(body), err
}

// holder keeps requests in the configuration that took them until the test lets them go on.
type holder struct{}

var holding struct {
	sync.Mutex
	entered chan struct{}
	release chan struct{}
}

func init() { caddy.RegisterModule(holder{}) }

func (holder) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.tide_test_hold", New: func() caddy.Module { return new(holder) }}
}

func (holder) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Header.Get("Hold") != "" {
		holding.Lock()
		entered, release := holding.entered, holding.release
		holding.Unlock()
		entered <- struct{}{}
		<-release
	}
	return next.ServeHTTP(w, r)
}

// While a reload hands over, requests that the old configuration took and those that the new one takes share their counters, each under its own limit.
func TestTwoConfigurationsServeAtOnce(t *testing.T) {
	r := redistest.Start(t)
	for _, rate := range []string{"local", "100ms", "strict"} {
		for turn := range 4 { // Caddy stops apps in a random order
			l := newLifetime(t)
			zone := fmt.Sprintf("both-%s-%d", rate, turn)
			config := func(limit int) []byte {
				text := l.config("redis "+r.URL+"\nnamespace test\nstrict_timeout 30s", "rate_limit {\n"+
					zoneBlock(zone, fmt.Sprintf("key all\nlimit %d/30d\nalgorithm fixed_window\nsync_rate %s", limit, rate))+"}\nrespond "+strconv.Itoa(limit), "")
				return bytes.Replace(text, []byte(`{"handler":"rate_limit"`), []byte(`{"handler":"tide_test_hold"},{"handler":"rate_limit"`), 1)
			}
			l.load(config(10))
			l.handOver(config(15))
			if err := caddy.Stop(); err != nil {
				t.Fatal(err)
			}
			l.client.CloseIdleConnections()
		}
	}
}

// handOver reloads from a limit of 10 to one of 15 while 6 requests are held in the old configuration.
func (l *lifetime) handOver(next []byte) {
	t := l.t
	const waiting = 6
	holding.Lock()
	holding.entered, holding.release = make(chan struct{}, waiting), make(chan struct{})
	entered, release := holding.entered, holding.release
	holding.Unlock()
	old := make(chan int, waiting)
	for range waiting {
		go func() {
			status, _, err := l.get("/", "Hold", "1")
			if err != nil {
				t.Errorf("a request in the old configuration: %v", err)
			}
			old <- status
		}()
	}
	for range waiting {
		<-entered
	}
	loaded := make(chan error, 1)
	go func() { loaded <- caddy.Load(next, true) }()
	admitted := 0
	for admitted < 12 { // of the new one's 15; as many as the old one had left when it began may pass there
		status, body, err := l.get("/")
		if err != nil || status != http.StatusOK && body != "10" {
			if status != http.StatusTooManyRequests {
				t.Fatalf("after %d requests: %d %q, %v", admitted, status, body, err)
			}
			continue // in the old configuration, whose limit is reached
		}
		admitted++
	}
	close(release)
	for range waiting {
		if status := <-old; status != http.StatusTooManyRequests {
			t.Errorf("a request held in the old configuration: %d, want 429, as 12 of its 10 are spent", status)
		}
	}
	if err := <-loaded; err != nil {
		t.Fatalf("Load: %v", err)
	}
	for range 6 {
		if status, _, err := l.get("/"); err == nil && status == http.StatusOK {
			admitted++
		}
	}
	if admitted != 15 {
		t.Errorf("%d requests were admitted in both, want 15", admitted)
	}
}
