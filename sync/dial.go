package ratesync

import (
	"context"
	"crypto/tls"
	"net"
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
		return c, nil
	}
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
