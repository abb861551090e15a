package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A reply that arrived in time is read by a reader that comes after the deadline. One that didn't
// arrive is not waited for.
func TestAReplyInTheSocketIsReadAfterTheDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := dialer(time.Minute, nil)(context.Background(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, ok := c.(syscall.Conn); !ok {
		t.Error("the client can't look into the connection")
	}
	buf := make([]byte, 10)
	for range 3 {
		if _, err := server.Write([]byte("reply")); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, "the reply has arrived and is read after its deadline", func() bool {
			_ = c.SetReadDeadline(time.Unix(1, 0))
			n, err := c.Read(buf)
			return err == nil && string(buf[:n]) == "reply"
		})
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read() = %v without a reply, want that its deadline has passed", err)
		}
		if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the second Read() = %v without a reply, want that its deadline has passed", err)
		}
	}
	if _, ok := lenient(tls.Client(server, &tls.Config{InsecureSkipVerify: true})).(syscall.Conn); ok {
		t.Error("a connection with TLS can be looked into past it")
	}
}
