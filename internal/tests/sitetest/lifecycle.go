package sitetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Relay is a network in this process that Caddy's servers listen on: a connection that one of them
// has not accepted when it closes goes to the next. What Caddy and net/http themselves do to
// connections in a reload is not in question here.
var Relay = make(chan net.Conn)

// ears is how many listeners are open.
var ears atomic.Int64

// ear is a listener on the relay.
type ear struct {
	closed chan struct{}
	once   sync.Once
}

func init() {
	caddy.RegisterNetwork("tidetest", func(context.Context, string, string, string, uint, net.ListenConfig) (any, error) {
		ears.Add(1)
		return &ear{closed: make(chan struct{})}, nil
	})
}

func (e *ear) Accept() (net.Conn, error) {
	select {
	case c := <-Relay:
		select {
		case <-e.closed: // both were ready
			go func() { Relay <- c }()
		default:
			return c, nil
		}
	case <-e.closed:
	}
	return nil, net.ErrClosed
}

func (e *ear) Close() error {
	e.once.Do(func() {
		close(e.closed)
		ears.Add(-1)
	})
	return nil
}

func (e *ear) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// PipeEnd is an end of a pipe without a deadline for writing: the timer of one would hold the pipe
// until it ends, also when the other end has closed it.
type PipeEnd struct{ net.Conn }

func (PipeEnd) SetWriteDeadline(time.Time) error { return nil }

// Lifetime is Caddy as it runs, in this process, on the relay.
type Lifetime struct {
	T      *testing.T
	Client *http.Client
}

// NewLifetime has a client that opens a connection for each request: one that is idle when a server
// ends can be closed while a request arrives on it, is served and counted, and then the client
// sends it again.
func NewLifetime(t *testing.T) *Lifetime {
	l := &Lifetime{T: t, Client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case Relay <- PipeEnd{far}:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}}}
	t.Cleanup(func() {
		_ = caddy.Stop()
		// Caddy does not wait until its servers listen no more: one would serve the next test
		redistest.Eventually(t, "no server listens any more", func() bool { return ears.Load() == 0 })
	})
	return l
}

// Config is a Caddyfile with a site on the relay, and more.
func (l *Lifetime) Config(options, site, more string) []byte {
	l.T.Helper()
	config, err := Adapt(fmt.Sprintf(`{
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
		l.T.Fatal(err)
	}
	return config
}

func (l *Lifetime) Load(config []byte) {
	l.T.Helper()
	ReplaceConfig(l.T, config)
}

// Post sends a request and returns the status and the body. What a server that is ending has read
// and not begun to serve it drops (net/http does, without a word): that is sent again, as a proxy
// or a browser does. No handler has seen it, so it must not be counted anywhere. The client itself
// sends no POST again, least of all on a new connection.
func (l *Lifetime) Post(path string, header ...string) (status int, body string, err error) {
	for range 100 {
		if status, body, err = l.Try(path, header...); !errors.Is(err, io.EOF) {
			break
		}
	}
	return status, body, err
}

func (l *Lifetime) Try(path string, header ...string) (int, string, error) {
	r, err := http.NewRequest(http.MethodPost, "http://site"+path, nil)
	if err != nil {
		return 0, "", err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	a, err := l.Client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	return a.StatusCode, string(body), err
}

// SumIn is what a Redis holds of a zone in all.
func SumIn(t *testing.T, r *redistest.Server, zone string) (sum int64) {
	c := r.Client()
	defer c.Close()
	for _, key := range c.Keys(t.Context(), "test:*:"+zone+":*").Val() {
		text, err := c.HGet(t.Context(), key, "sum").Result()
		if err != nil {
			continue // slots, which are no sum
		}
		words := strings.Fields(text)
		totals := words[:1]
		if strings.Contains(key, ":3:{") { // total stamp end epoch open, and older totals
			totals = append(totals[:1:1], words[5:]...)
		}
		for _, word := range totals {
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				t.Fatalf("the sum of %s is %q", key, text)
			}
			sum += n
		}
	}
	return sum
}

// LevelIn is what stands in all buckets of a zone in a Redis, when they were written.
func LevelIn(t *testing.T, r *redistest.Server, zone string) (level int64) {
	c := r.Client()
	defer c.Close()
	for _, key := range c.Keys(t.Context(), "test:*:"+zone+":*").Val() {
		text := c.HGet(t.Context(), key, "sum").Val()
		var stamp, end, open, total, whole, rest int64
		if _, err := fmt.Sscan(text, &stamp, &end, &open, &total, &whole, &rest); err != nil {
			t.Fatalf("the sum of %s is %q", key, text)
		}
		if level += whole; rest > 0 {
			level++
		}
	}
	return level
}

// CaddysOwn are goroutines that Caddy leaves behind for a while, or for good: of its certificates,
// and of a lock on their storage.
var CaddysOwn = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
	goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
}
