package redisconn

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

// dialer returns the dial function of a client. Where it fails, it returns a connection that can
// only tell why. A client whose dial function has returned errors often enough tries one connection
// a second and fails everything in between, so that a node with a short sync_rate would be back
// late.
func dialer(timeout time.Duration, secure *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: timeout}
	dial := plain.DialContext
	if secure != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: secure}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return failedConn{err}, nil
		}
		return lenient(c), nil
	}
}

// graceTime is how long a read whose deadline has passed looks for what arrived before it.
const graceTime = time.Millisecond

// A conn reads what has arrived in time, however late the reader is. A plain read reports that its
// deadline has passed before it looks for data: where processors are busy, a reply that arrived
// long ago would be lost.
type conn struct {
	net.Conn
	retried atomic.Bool // since the deadline was set
}

// lenient makes a conn. The client can do with it what it could with the connection below: look
// into a plain one, and unwrap one with TLS.
func lenient(c net.Conn) net.Conn {
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
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.retried.Swap(true) {
		return n, err
	}
	if c.Conn.SetReadDeadline(time.Now().Add(graceTime)) != nil {
		return n, err
	}
	return c.Conn.Read(b)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.retried.Store(false)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.retried.Store(false)
	return c.Conn.SetReadDeadline(t)
}

// A failedConn is a connection that could not be opened, and the reason.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error)       { return 0, c.err }
func (c failedConn) Write([]byte) (int, error)      { return 0, c.err }
func (failedConn) Close() error                     { return nil }
func (failedConn) LocalAddr() net.Addr              { return new(net.TCPAddr) }
func (failedConn) RemoteAddr() net.Addr             { return new(net.TCPAddr) }
func (failedConn) SetDeadline(time.Time) error      { return nil }
func (failedConn) SetReadDeadline(time.Time) error  { return nil }
func (failedConn) SetWriteDeadline(time.Time) error { return nil }
