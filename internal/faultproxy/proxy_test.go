package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// echo answers each line with itself.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewScanner(c)
				for in.Scan() {
					if _, err := c.Write(append(in.Bytes(), '\n')); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// ask sends a line and returns the answer.
func ask(t *testing.T, addr string, wait time.Duration) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return "", err
	}
	over := time.AfterFunc(wait, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer over.Stop()
	return bufio.NewReader(c).ReadString('\n')
}

func TestFaults(t *testing.T) {
	server := echo(t)
	p := Start(t, server)
	for _, c := range []struct {
		name    string
		fault   Fault
		silent  bool // no answer before the deadline
		broken  bool // an error that is not the deadline
		arrives bool
	}{
		{name: "none", fault: None, arrives: true},
		{name: "drop replies", fault: DropReplies, silent: true},
		{name: "hold", fault: Hold, silent: true},
		{name: "blackhole", fault: Blackhole, silent: true},
		{name: "reset", fault: Reset, broken: true},
		{name: "drip", fault: Drip, arrives: true},
		{name: "half close", fault: HalfClose, broken: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.Set(c.fault)
			defer p.Set(None)
			wait := redistest.Patience
			if c.silent {
				wait = 50 * time.Millisecond
			}
			got, err := ask(t, p.Addr, wait)
			timeout := errors.Is(err, os.ErrDeadlineExceeded)
			if timeout != c.silent || (err != nil && !timeout) != c.broken || (got == "hello\n") != c.arrives {
				t.Errorf("ask() = %q, %v", got, err)
			}
		})
	}
	p.Rewrite(bytes.ToUpper)
	if got, err := ask(t, p.Addr, redistest.Patience); got != "HELLO\n" {
		t.Errorf("ask() = %q, %v with a proxy that rewrites to capitals", got, err)
	}
	p.Rewrite(nil)
	p.Lead("127.0.0.1:1")
	if got, err := ask(t, p.Addr, redistest.Patience); err == nil {
		t.Errorf("ask() = %q with nobody behind the proxy", got)
	}
	p.Lead(server)
	if p.Held() != 1 {
		t.Fatalf("Held() = %d, want 1", p.Held())
	}
	if got, err := p.Deliver(); err != nil || !strings.Contains(string(got), "hello") {
		t.Errorf("Deliver() = %q, %v, want hello", got, err)
	}
}
