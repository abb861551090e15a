// Package faultproxy is a TCP proxy on loopback that misbehaves on demand, for tests of what a
// client makes of a bad network.
package faultproxy

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what goes wrong. It can change at any time; what is under way follows with its next
// bytes.
type Fault int

const (
	// None passes everything on.
	None Fault = iota
	// DropReplies passes requests on and swallows what comes back.
	DropReplies
	// Hold keeps requests back; Deliver sends them later.
	Hold
	// Blackhole accepts, reads and never answers. Requests are gone.
	Blackhole
	// Reset breaks connections with RST, those that exist and new ones.
	Reset
	// Drip sends replies one byte at a time, with the delay before each.
	Drip
	// HalfClose ends the way back after the next request and leaves the way there open.
	HalfClose
)

// A Proxy stands between a client and a server. It stops when the test ends.
type Proxy struct {
	// Addr is where it listens.
	Addr string

	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	upstream string
	fault    Fault
	delay    time.Duration // of replies
	way      time.Duration // of requests
	rewrite  func([]byte) []byte
	links    map[*link]struct{}
	last     []byte
	held     [][]byte
	requests int
	closed   bool
}

// link is one connection of a client and its counterpart.
type link struct {
	client *net.TCPConn
	server net.Conn
}

// Start starts a proxy to an address.
func Start(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p, err := Open(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Open starts a proxy to an address, or to a unix socket by its path. It is to be closed.
func Open(upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), upstream: upstream, listener: l, links: make(map[*link]struct{})}
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// dial connects to a server.
func dial(upstream string) (net.Conn, error) {
	if strings.HasPrefix(upstream, "/") {
		return net.Dial("unix", upstream)
	}
	return net.Dial("tcp", upstream)
}

// Close ends all connections and waits for them.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.wg.Wait()
}

// Set changes what goes wrong.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	if f == Reset {
		for l := range p.links {
			l.reset()
		}
	}
}

// Lead makes another server the one behind the proxy, and breaks the connections that exist.
func (p *Proxy) Lead(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
	for l := range p.links {
		l.reset()
	}
}

// SetDelay holds every piece of a reply up for that long.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// SetDistance holds every piece up for half of a round trip, whichever way it goes.
func (p *Proxy) SetDistance(trip time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.way = trip/2, trip/2
}

// Rewrite changes what the server says, piece by piece; nil leaves it as it is.
func (p *Proxy) Rewrite(f func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite = f
}

// Requests is how many pieces clients have sent.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests
}

// Last is the last piece that a client sent.
func (p *Proxy) Last() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Held is how many pieces are kept back.
func (p *Proxy) Held() int { return len(p.Pieces()) }

// Pieces are those that are kept back, the oldest first.
func (p *Proxy) Pieces() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.held)
}

// Deliver sends pieces to the server on a connection of their own, as a network does that repeats
// or delays them, and returns the first part of the answer. Without an argument it sends what was
// held.
func (p *Proxy) Deliver(pieces ...[]byte) ([]byte, error) {
	p.mu.Lock()
	if len(pieces) == 0 {
		pieces, p.held = p.held, nil
	}
	upstream := p.upstream
	p.mu.Unlock()
	c, err := dial(upstream)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var all []byte
	buf := make([]byte, 64<<10)
	for _, piece := range pieces {
		if _, err := c.Write(piece); err != nil {
			return all, err
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := c.Read(buf)
		if err != nil {
			return all, err
		}
		all = append(all, buf[:n]...)
	}
	return all, nil
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go p.serve(c.(*net.TCPConn))
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	defer p.wg.Done()
	l := &link{client: client}
	if f, _ := p.now(); f == Reset {
		l.reset()
		return
	}
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	server, err := dial(upstream)
	if err != nil {
		l.reset()
		return
	}
	l.server = server
	p.mu.Lock()
	if p.closed || p.fault == Reset { // which may have been set meanwhile
		p.mu.Unlock()
		l.reset()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.back(l)
	}()
	p.there(l)
	l.close()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) now() (Fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.delay
}

// there carries requests.
func (p *Proxy) there(l *link) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		pass, way := p.note(buf[:n])
		if !pass {
			continue
		}
		time.Sleep(way) // the fault itself
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// note remembers a piece and reports whether to pass it on, and after how long.
func (p *Proxy) note(piece []byte) (pass bool, way time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	p.last = append([]byte(nil), piece...)
	if p.fault == Hold {
		p.held = append(p.held, p.last)
	}
	return p.fault != Hold && p.fault != Blackhole, p.way
}

// back carries replies.
func (p *Proxy) back(l *link) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil {
			if err == io.EOF {
				_ = l.client.CloseWrite()
			}
			return
		}
		f, delay := p.now()
		piece := p.rewritten(buf[:n])
		switch f {
		case DropReplies, Blackhole:
			continue
		case HalfClose:
			_ = l.client.CloseWrite()
			continue
		case Drip:
			for i := range piece {
				time.Sleep(delay) // the fault itself
				if _, err := l.client.Write(piece[i : i+1]); err != nil {
					return
				}
			}
			continue
		}
		time.Sleep(delay) // the fault itself
		if _, err := l.client.Write(piece); err != nil {
			return
		}
	}
}

func (p *Proxy) rewritten(piece []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rewrite == nil {
		return piece
	}
	return p.rewrite(piece)
}

func (l *link) close() {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

// reset closes the client's connection with RST.
func (l *link) reset() {
	_ = l.client.SetLinger(0)
	l.close()
}
