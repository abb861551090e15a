package strict

import (
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A line is a way to a Redis that runs the real scripts, in virtual time, with the faults of a
// proxy.
type line struct {
	*aServer

	mu       sync.Mutex // guards what follows
	fault    faultproxy.Fault
	trip     time.Duration // how long what is written is on its way
	requests int           // that were written
	dropped  int           // replies that were lost
	held     [][]byte      // requests that were held up
}

// An aServer has the protocol of Redis, and a store that runs the scripts.
type aServer struct {
	*miniredis.Miniredis
	store   *redistest.Store
	ahead   atomic.Int64 // nanoseconds of its clock
	loads   atomic.Bool  // it answers no script
	sources sync.Map     // of scripts, by their hashes
}

// newServer is a server until the test ends.
//
// bubble: of each test.
func newServer(t *testing.T) *aServer {
	s := &aServer{Miniredis: miniredis.NewMiniRedis()}
	s.store = redistest.NewStore(t, func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) })
	conn, err := s.Dial() // which starts it
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	s.Server().SetPreHook(s.answers)
	t.Cleanup(func() {
		time.Sleep(time.Minute) // until who still connects has ended
		s.Close()
	})
	return s
}

// step has the clock be so far ahead.
func (s *aServer) step(ahead time.Duration) { s.ahead.Store(int64(ahead)) }

// answers reports whether a call is one of a script, which it answers.
func (s *aServer) answers(c *server.Peer, command string, args ...string) bool {
	source := ""
	switch command {
	case "EVAL":
		source = args[0]
		s.sources.Store(redis.NewScript(source).Hash(), source)
	case "EVALSHA":
		if known, ok := s.sources.Load(args[0]); ok {
			source = known.(string)
		}
	default:
		return false
	}
	keys, _ := strconv.Atoi(args[1])
	var words []any
	for _, word := range args[2+keys:] {
		words = append(words, word)
	}
	switch {
	case s.loads.Load():
		c.WriteError("LOADING it loads")
	case source == "":
		c.WriteError("NOSCRIPT No matching script. Please use EVAL.")
	default:
		reply, err := s.store.Eval(source, args[2:2+keys], words...)
		if err != nil {
			c.WriteError("ERR " + err.Error())
			return true
		}
		writeReply(c, reply)
	}
	return true
}

func writeReply(c *server.Peer, reply any) {
	switch reply := reply.(type) {
	case string:
		c.WriteBulk(reply)
	case int64:
		c.WriteInt(int(reply))
	case []any:
		c.WriteLen(len(reply))
		for _, one := range reply {
			writeReply(c, one)
		}
	default:
		c.WriteNull()
	}
}

// onALine runs a test in virtual time with a line, and a limiter at its end that waits so long for
// an answer.
func onALine(t *testing.T, timeout time.Duration, test func(t *testing.T, l *line, s *Limiter)) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{aServer: newServer(t)}
		clock.Advance(time.Duration(time.Now().UnixNano() - clock.Now())) // so that waits are exact
		test(t, l, l.limiter(t, timeout))
	})
}

// limiter is one more at the end of a line. Nobody waits for a connection there: go-redis keeps the
// timers of those who do for all clients of the process, and one of virtual time ends a test that
// is in none.
//
// bubble: of each test.
func (l *line) limiter(t *testing.T, timeout time.Duration) *Limiter {
	const connections = 20 // for calls
	c := client(t, "redis://127.0.0.1?pool_size=1000").(*redis.Client)
	c.Options().Dialer = func(context.Context, string, string) (net.Conn, error) {
		l.mu.Lock()
		trip := l.trip
		l.mu.Unlock()
		time.Sleep(trip)
		conn, err := l.Dial()
		return &lineConn{conn, l}, err
	}
	s := New(c, "test", timeout, zap.NewNop())
	for i := range s.circuits {
		s.circuits[i].semaphore.free = connections
	}
	t.Cleanup(s.Close)
	return s
}

// other is a limiter with a line of its own to the same Redis, which has no faults.
func (l *line) other(t *testing.T) *Limiter {
	return (&line{aServer: l.aServer}).limiter(t, 10*time.Second)
}

func (l *line) set(f faultproxy.Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

func (l *line) setTrip(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trip = d
}

func (l *line) counts() (requests, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests, l.dropped
}

// calls is how many requests were written.
func (l *line) calls() int64 {
	n, _ := l.counts()
	return int64(n)
}

// setDrops has replies be lost, or not.
func (l *line) setDrops(drops bool) {
	if drops {
		l.set(faultproxy.DropReplies)
	} else {
		l.set(faultproxy.None)
	}
}

// deliver sends what was held up.
func (l *line) deliver(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, request := range held {
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
}

type lineConn struct {
	net.Conn
	l *line
}

// Write takes the trip. What arrives in a fault is lost or held up.
//
// bubble: of each test.
func (c *lineConn) Write(b []byte) (int, error) {
	l := c.l
	l.mu.Lock()
	l.requests++
	trip := l.trip
	if l.fault == faultproxy.Drip {
		trip = 0
	}
	l.mu.Unlock()
	time.Sleep(trip)
	l.mu.Lock()
	fault := l.fault
	if fault == faultproxy.Hold {
		l.held = append(l.held, append([]byte(nil), b...))
	}
	l.mu.Unlock()
	switch fault {
	case faultproxy.Hold, faultproxy.Blackhole:
		return len(b), nil
	case faultproxy.Reset:
		_ = c.Close()
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.ECONNRESET)}
	}
	return c.Conn.Write(b)
}

// Read loses replies, or brings them byte by byte, a trip each.
//
// bubble: of each test.
func (c *lineConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b[:c.most(len(b))])
		l := c.l
		l.mu.Lock()
		fault, trip := l.fault, l.trip
		if fault == faultproxy.DropReplies && err == nil {
			l.dropped++
		}
		l.mu.Unlock()
		switch {
		case err != nil:
			return n, err
		case fault == faultproxy.HalfClose:
			return 0, io.EOF
		case fault == faultproxy.Drip:
			time.Sleep(trip)
		}
		if fault != faultproxy.DropReplies {
			return n, nil
		}
	}
}

// most is how many bytes may come at once.
func (c *lineConn) most(room int) int {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.fault == faultproxy.Drip {
		return 1
	}
	return room
}
