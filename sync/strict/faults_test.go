package strict

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

var tenAnHour = algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: long}

// asked returns what takes a unit of a limiter and returns the error.
func asked(s *Limiter) func() error {
	return func() error {
		_, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(1), 1, nil)
		return err
	}
}

// TestFailsAtOnceWhileRedisIsLost: only the first requests wait, and all others don't at all.
func TestFailsAtOnceWhileRedisIsLost(t *testing.T) {
	for name, fault := range map[string]faultproxy.Fault{
		"replies lost": faultproxy.DropReplies, "never answers": faultproxy.Blackhole, "reset": faultproxy.Reset, "half closed": faultproxy.HalfClose,
		"slow drip": faultproxy.Drip,
	} {
		t.Run(name, func(t *testing.T) {
			onALine(t, 50*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
				try := asked(s)
				if err := try(); err != nil {
					t.Fatalf("Take() = %v while all is well", err)
				}
				l.setTrip(20 * time.Millisecond)
				l.set(fault)
				redistest.Eventually(t, "the circuit opens", func() bool { _ = try(); return s.Down() })
				start := time.Now()
				for range 1000 {
					if err := try(); !errors.Is(err, redisconn.ErrDown) {
						t.Fatalf("Take() = %v while Redis is lost, want ErrDown", err)
					} else if got := redisconn.Classify(err); got == redisconn.Classify(redisconn.ErrDown) {
						t.Fatalf("Classify(%v) = %q, which doesn't say why", err, got)
					}
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("1000 requests took %s while Redis was lost, want no time at all", took)
				}
				l.set(faultproxy.None)
				l.setTrip(0)
				redistest.Eventually(t, "Redis decides again", func() bool { return try() == nil })
			})
		})
	}
}

func TestSlowRedisIsNotWaitedForAgainAndAgain(t *testing.T) {
	onALine(t, 50*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
		try := asked(s)
		if err := try(); err != nil {
			t.Fatalf("Take() = %v while all is well", err)
		}
		l.setTrip(200 * time.Millisecond) // answers, but later than requests are ready to wait
		redistest.Eventually(t, "the circuit opens", func() bool { _ = try(); return s.Down() })
		for range 1000 {
			if err := try(); !errors.Is(err, redisconn.ErrDown) {
				t.Fatalf("Take() = %v: a request waited for a Redis that is known to be too slow", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Where Redis answers, but later than requests wait, that is why they are not decided by it, with
// the round trip and what to write. The circuit closes only when the answer is in time.
func TestARedisThatIsTooFarIsToldFromALostOne(t *testing.T) {
	const timeout, delay = 200 * time.Millisecond, 500 * time.Millisecond
	onALine(t, timeout, func(t *testing.T, l *line, s *Limiter) {
		try := asked(s)
		if err := try(); err != nil {
			t.Fatalf("Take() = %v while all is well", err)
		}
		l.setTrip(delay)
		redistest.Eventually(t, "the distance is the reason", func() bool {
			return strings.HasPrefix(redisconn.Classify(try()), "redis answers in ")
		})
		const want = "redis answers in 500ms, strict_timeout is 200ms; set strict_timeout to 1.5s, or use a redis that is nearer"
		if err := try(); !errors.Is(err, redisconn.ErrDown) || !redisconn.IsLate(err) || redisconn.Classify(err) != want {
			t.Errorf("Take() = %q, want %q", redisconn.Classify(err), want)
		}
		for range 1000 {
			if time.Sleep(10 * time.Millisecond); !s.Down() {
				t.Fatal("the circuit closed by an answer that was too late")
			}
		}
		l.setTrip(0)
		redistest.Eventually(t, "Redis decides again", func() bool { return try() == nil })
		l.set(faultproxy.Blackhole)
		redistest.Eventually(t, "the circuit opens", func() bool { return errors.Is(try(), redisconn.ErrDown) })
		if got := redisconn.Classify(try()); !strings.HasPrefix(got, "timeout: ") {
			t.Errorf("Classify() = %q for a lost Redis", got)
		}
	})
}

func TestForeignTypeFailsOneKeyOnly(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			s := limiter(t, server.URL)
			server.Do("FLUSHALL")
			take(t, s, name, id(1), rule)
			for _, key := range server.Do("KEYS", "*").([]any) {
				server.Do("DEL", key)
				server.Do("XADD", key, "*", "not", "ours")
			}
			for range 3 {
				if _, _, err := s.Take(context.Background(), name, []algorithms.Params{rule}, id(1), 1, nil); err == nil || errors.Is(err, redisconn.ErrDown) {
					t.Fatalf("Take() = %v with a stream under our key, want the error of Redis", err)
				} else if got := redisconn.Classify(err); !strings.Contains(got, "WRONGTYPE") {
					t.Errorf("Classify(%v) = %q, want WRONGTYPE", err, got)
				}
			}
			take(t, s, name, id(2), rule)
			if s.Down() {
				t.Error("one foreign key is taken for a lost Redis")
			}
		})
	}
}

func TestCloseDoesNotWaitForALostRedis(t *testing.T) {
	const timeout = 50 * time.Millisecond
	onALine(t, timeout, func(t *testing.T, l *line, s *Limiter) {
		try := asked(s)
		l.set(faultproxy.Blackhole)
		redistest.Eventually(t, "the circuit opens", func() bool { _ = try(); return s.Down() })
		start := time.Now()
		s.Close()
		// What measures how far away Redis is has a few timeouts for its answer.
		if took := time.Since(start); took > farTimeouts*timeout {
			t.Errorf("Close() took %s, want no longer than the last probe has, %s", took, farTimeouts*timeout)
		}
	})
}

// A Strict that was closed says so, whatever it knew of Redis: its caller can ask another one.
func TestClosedIsNotDown(t *testing.T) {
	onALine(t, 50*time.Millisecond, func(t *testing.T, l *line, s *Limiter) {
		try := asked(s)
		l.set(faultproxy.Blackhole)
		redistest.Eventually(t, "the circuit opens", func() bool { _ = try(); return s.Down() })
		s.Close()
		if err := try(); !errors.Is(err, ErrClosed) {
			t.Errorf("Take() = %v after Close, want ErrClosed", err)
		}
	})
	onALine(t, time.Hour, func(t *testing.T, l *line, s *Limiter) {
		take(t, s, "z", id(1), tenAnHour)
		l.set(faultproxy.Blackhole)
		waits := make(chan error, 1)
		go func() { waits <- asked(s)() }()
		synctest.Wait() // Redis is asked
		s.Close()
		if err := <-waits; !errors.Is(err, ErrClosed) {
			t.Errorf("Take() = %v as Close gave up, want ErrClosed", err)
		}
	})
}

func TestInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	s := limiter(t, c.URL)
	if !s.cluster {
		t.Fatal("several addresses don't make a client of a cluster")
	}
	for name, rule := range kinds {
		for i := range 8 {
			if got := drain(t, s, name, id(i*9), rule); got != 100 {
				t.Errorf("%s: %d admitted in a cluster, want 100", name, got)
			}
		}
	}
}

// severed loses the reply to a call of a client of a Cluster, once, and lets something happen
// before the client sends the call again.
type severed struct {
	armed  atomic.Bool
	then   func()
	probes atomic.Int64 // how often the circuit was probed
}

// cut puts the fault into the way of a client that has no connection yet.
func (f *severed) cut(c redis.UniversalClient) {
	o := c.(*redis.ClusterClient).Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &severedConn{Conn: conn, fault: f}, err
	}
}

type severedConn struct {
	net.Conn
	fault *severed
	asked bool
}

func (c *severedConn) Write(b []byte) (int, error) {
	c.asked = bytes.Contains(b, []byte("evalsha"))
	if bytes.Contains(b, []byte(":strict:probe\r\n")) {
		c.fault.probes.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *severedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.asked && err == nil && c.fault.armed.CompareAndSwap(true, false) {
		c.fault.then()
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// move moves a slot in three steps.
type move struct {
	slot     int
	src, dst *redistest.Server
}

func (m move) begin() {
	m.dst.Do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.src.Do("CLUSTER", "MYID"))
	m.src.Do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.dst.Do("CLUSTER", "MYID"))
}

// carry takes the keys to a node that doesn't know yet that the slot is its own.
func (m move) carry() {
	host, port, _ := strings.Cut(m.dst.Addr, ":")
	keys := m.src.Do("CLUSTER", "GETKEYSINSLOT", m.slot, 100).([]any)
	m.src.Do(append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, keys...)...)
	m.src.Do("CLUSTER", "SETSLOT", m.slot, "NODE", m.dst.Do("CLUSTER", "MYID"))
}

func (m move) end() {
	m.dst.Do("CLUSTER", "SETSLOT", m.slot, "NODE", m.dst.Do("CLUSTER", "MYID"))
}

// A call was done, its reply was lost, and when the client sent it again its slot was on the way to
// another node: what nobody got doesn't stay spent. Nor is forgotten what was given back while the
// slot was on its way.
func TestSlotMovesAfterALostReply(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	m := move{slot: c.Slot("{1}")}
	m.src = c.Nodes[c.Owner(m.slot)]
	m.dst = c.Nodes[(c.Owner(m.slot)+1)%3]
	for _, how := range []struct {
		name        string
		begin, done func()
	}{
		{"begun", func() { m.begin() }, func() { m.carry(); m.end() }},
		{"carried", func() { m.begin(); m.carry() }, func() { m.end() }},
	} {
		for name, rule := range kinds {
			cut := client(t, c.URL)
			fault := &severed{then: how.begin}
			fault.cut(cut)
			s := New(cut, "test", patience, zap.NewNop())
			s.tablesBy(client(t, c.URL))
			zone, want := how.name+" "+name, 100
			given, _ := take(t, s, zone, id(1), rule)
			fault.armed.Store(true)
			if _, g, err := s.Take(context.Background(), zone, []algorithms.Params{rule}, id(1), 1, nil); err == nil && g.Admitted() {
				want--
			}
			s.Refund(given)
			how.done()
			settles(t, s)
			if n := drain(t, s, zone, id(1), rule); n != want {
				t.Errorf("%s: %d are admitted after that, want %d", zone, n, want)
			}
			s.Close()
			m.src, m.dst = m.dst, m.src
		}
	}
}

func TestOneShardGone(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	s := New(client(t, c.URL), "test", 200*time.Millisecond, zap.NewNop())
	defer s.Close()
	var owner [64]int
	for i := range owner {
		owner[i] = c.Owner(c.Slot(fmt.Sprintf("{%d}", i)))
		soon(t, s, "z", id(i), tenAnHour)
	}
	c.Nodes[0].Kill()
	for i := range 64 {
		if owner[i] != 0 {
			soon(t, s, "z", id(i), tenAnHour)
		} else if _, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(i), 1, nil); err == nil {
			t.Error("Take() = nil for a key whose node is gone")
		}
	}
}

// leastACL is what a Redis user of strict mode needs, as the documentation lists it.
const leastACL = "on >secret resetkeys ~test:* -@all +evalsha +eval +time +hget +hset +pexpire +get +set" +
	" +hmget +hlen +hgetall +hdel +del +pexpireat"

func TestWithLeastPermissions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.User("app", leastACL))
	s := limiter(t, strings.Replace(server.URL, "redis://", "redis://app:secret@", 1))
	for name, rule := range kinds {
		g, _ := take(t, s, name, id(1), rule)
		s.Refund(g)
		if got := drain(t, s, name, id(1), rule); got != 100 {
			t.Errorf("%s: %d admitted, want 100", name, got)
		}
		g, _ = take(t, s, name, id(1), rule)
		s.Penalize(g)
	}
	s.Close()
	if s.Down() {
		t.Error("the circuit is open")
	}
}

func TestOverASocket(t *testing.T) {
	t.Parallel()
	take(t, limiter(t, redistest.Start(t, redistest.Unix()).URL), "z", id(1), tenAnHour)
}
