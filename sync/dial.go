package ratesync

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// dialer returns the dial function of a client. One that fails returns a connection that can only tell why: of a dial function that returned an error
// often enough the client would try one a second and fail everything in between, so that a node with a short sync_rate would come back late.
func dialer(timeout time.Duration, secure *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: timeout}
	dial := plain.DialContext
	if secure != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: secure}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return broken{err}, nil
		}
		return patient(c), nil
	}
}

// lastLook is how long a read looks once more for what may have arrived before its deadline.
const lastLook = time.Millisecond

// conn reads what has arrived in time, however late the reader is. A read reports a deadline that has passed before it looks for data:
// where processors are busy, a reply that has lain there for most of the time would be lost.
type conn struct {
	net.Conn
	looked atomic.Bool // once more since the deadline was set
}

// patient makes a conn that tells the client as much of what is below as it did: a plain connection can be looked into, one with TLS unwrapped.
func patient(c net.Conn) net.Conn {
	p := &conn{Conn: c}
	switch below := c.(type) {
	case *tls.Conn:
		return struct {
			*conn
			unwrapper
		}{p, below}
	case syscall.Conn:
		return struct {
			*conn
			syscall.Conn
		}{p, below}
	}
	return p
}

type unwrapper interface{ NetConn() net.Conn }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.looked.Swap(true) {
		return n, err
	}
	if c.Conn.SetReadDeadline(time.Now().Add(lastLook)) != nil {
		return n, err
	}
	return c.Conn.Read(b)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.looked.Store(false)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.looked.Store(false)
	return c.Conn.SetReadDeadline(t)
}

// broken is a connection that never came about, and the reason.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error)       { return 0, b.err }
func (b broken) Write([]byte) (int, error)      { return 0, b.err }
func (broken) Close() error                     { return nil }
func (broken) LocalAddr() net.Addr              { return new(net.TCPAddr) }
func (broken) RemoteAddr() net.Addr             { return new(net.TCPAddr) }
func (broken) SetDeadline(time.Time) error      { return nil }
func (broken) SetReadDeadline(time.Time) error  { return nil }
func (broken) SetWriteDeadline(time.Time) error { return nil }
