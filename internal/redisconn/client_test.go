package redisconn

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// client connects by a URL as users do. On a busy machine the default timeout may be too short.
func client(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	set, err := ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	set.Timeout = cmp.Or(set.Timeout, 10*time.Second)
	c, err := set.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestClientDoesNoNetworkIO: caddy validate makes clients too.
func TestClientDoesNoNetworkIO(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, url := range []string{"redis://%s", "redis://%s,%[1]s", "redis://%s?master_name=m", "rediss://%s"} {
		set, err := ParseURL(fmt.Sprintf(url, l.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		c, err := set.Client()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	own, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.RemoteAddr().String() != own.LocalAddr().String() {
		t.Error("a client connected before it was used")
	}
}

// TestClientNeverRetries: a repeated increment would count twice.
func TestClientNeverRetries(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	c := client(t, "redis://"+proxy.Addr+"?timeout=1s")
	redistest.Eventually(t, "it is connected", func() bool { return c.Ping(context.Background()).Err() == nil })
	proxy.Set(faultproxy.DropReplies)
	if err := c.Incr(context.Background(), "n").Err(); err == nil {
		t.Fatal("INCR = nil without a reply")
	}
	redistest.Eventually(t, "the INCR has arrived", func() bool { return server.Do("GET", "n") != nil })
	if got := server.Do("GET", "n"); got != "1" {
		t.Errorf("n = %v after one INCR whose reply was lost, want 1", got)
	}
}
