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

func TestRedisDownAtStartAndKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	s := limiter(t, server.URL)
	try := func() error {
		_, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(1), 1, nil)
		return err
	}
	if err := try(); err == nil {
		t.Fatal("Take() = nil without a Redis")
	}
	server.Restart()
	redistest.Eventually(t, "Redis decides", func() bool { return try() == nil })
	server.Kill()
	redistest.Eventually(t, "the circuit opens", func() bool { return errors.Is(try(), redisconn.ErrDown) })
	server.Restart()
	redistest.Eventually(t, "Redis decides again", func() bool { return try() == nil })
}

func TestSurvivesScriptFlushAndFlushAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	take(t, s, "z", id(1), tenAnHour)
	server.Do("SCRIPT", "FLUSH")
	if _, all := take(t, s, "z", id(1), tenAnHour); all[0].Decision.Remaining != 8 {
		t.Errorf("%d remaining after SCRIPT FLUSH and two requests, want 8", all[0].Decision.Remaining)
	}
	server.Do("FLUSHALL")
	if _, all := take(t, s, "z", id(1), tenAnHour); all[0].Decision.Remaining != 7 {
		t.Errorf("%d remaining after FLUSHALL and a third request, want 7", all[0].Decision.Remaining)
	}
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

func TestUnreadableValuesCountAsNone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		for _, junk := range []string{"", "nan nan", "1e400 1", "-5 -5", "x y z", "99999999999999999999999999 1 1"} {
			server.Do("FLUSHALL")
			take(t, s, name, id(1), rule)
			for _, key := range server.Do("KEYS", "*").([]any) {
				if server.Do("TYPE", key) == "hash" {
					server.Do("HSET", key, "sum", junk)
				}
			}
			_, all := take(t, s, name, id(1), rule)
			if got := all[0].Decision.Remaining; got < 0 || got > 100 {
				t.Errorf("%s: %d remaining with %q in Redis", name, got, junk)
			}
		}
	}
}

func TestCloseGivesBackAndEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := New(client(t, server.URL), "test", patience)
	for i := range 50 {
		g, _ := take(t, s, "z", id(i), tenAnHour)
		s.Refund(g)
	}
	s.Close()
	if _, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(1), 1, nil); err == nil {
		t.Error("Take() = nil after Close")
	}
	other := limiter(t, server.URL)
	for i := range 50 {
		if _, all := take(t, other, "z", id(i), tenAnHour); all[0].Decision.Remaining != 9 {
			t.Fatalf("%d remaining after what another node refunded as it closed, want 9", all[0].Decision.Remaining)
		}
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

// TestWhileASlotMoves: redirects make the client send calls again.
func TestWhileASlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	s := limiter(t, c.URL)
	slot := c.Slot("{1}")
	from := c.Owner(slot)
	var admitted, failed int
	round := func() {
		for range 30 {
			for name, rule := range kinds {
				_, g, err := s.Take(context.Background(), name, []algorithms.Params{rule}, id(1), 1, nil)
				switch {
				case err != nil:
					failed++
				case g.Admitted():
					admitted++
				}
			}
		}
	}
	round()
	c.Move(slot, from, (from+1)%3, round)
	redistest.Eventually(t, "the circuits close", func() bool { return !s.Down() })
	for range 10 {
		round()
	}
	if want := 100 * len(kinds); admitted > want || admitted < want*9/10 {
		t.Errorf("%d admitted and %d failed while a slot moved, want %d and no more", admitted, failed, want)
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
			s := New(cut, "test", patience)
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

// Of a Cluster a part of which is gone, Close sends the rest what is refunded.
func TestCloseWithOneShardGone(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	s := New(client(t, c.URL), "test", patience)
	defer s.Close()
	var there []int
	gone := -1
	for i := range 64 {
		if c.Owner(c.Slot(fmt.Sprintf("{%d}", i))) != 0 {
			there = append(there, i)
		} else {
			gone = i
		}
	}
	grants := make([]Grant, 0, len(there))
	for _, i := range there {
		g, _ := take(t, s, "z", id(i), tenAnHour)
		grants = append(grants, g)
	}
	c.Nodes[0].Kill()
	if _, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(gone), 1, nil); err == nil || !s.Down() {
		t.Fatalf("Take() = %v for a key whose node is gone, and Down() = %v", err, s.Down())
	}
	for _, g := range grants {
		s.Refund(g)
	}
	s.Close()
	other := New(client(t, c.URL), "test", patience)
	defer other.Close()
	for _, i := range there {
		if _, all := take(t, other, "z", id(i), tenAnHour); all[0].Decision.Remaining != 9 {
			t.Errorf("%d remaining after what another node refunded as it closed, want 9", all[0].Decision.Remaining)
		}
	}
}

func TestOneShardGone(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	s := New(client(t, c.URL), "test", 200*time.Millisecond)
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
const leastACL = "on >secret resetkeys ~test:* resetchannels -@all +evalsha +eval +time +hget +hset +pexpire +get +set" +
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

func TestOverTLSAndSocket(t *testing.T) {
	t.Parallel()
	t.Run("tls", func(t *testing.T) {
		server := redistest.Start(t, redistest.TLS(true))
		set, err := redisconn.ParseURL(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		set.TLS.ServerCerts, set.TLS.ClientCert, set.TLS.ClientKey = server.CA, server.ClientCert, server.ClientKey
		s := New(connect(t, set), "test", patience)
		defer s.Close()
		take(t, s, "z", id(1), tenAnHour)
	})
	t.Run("socket", func(t *testing.T) {
		take(t, limiter(t, redistest.Start(t, redistest.Unix()).URL), "z", id(1), tenAnHour)
	})
}

func TestFollowsASentinelFailover(t *testing.T) {
	t.Parallel()
	w := redistest.StartSentinel(t, redistest.Password("secret"))
	set, err := redisconn.ParseURL(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	set.Password = "secret"
	s := New(connect(t, set), "test", patience)
	defer s.Close()
	soon(t, s, "z", id(1), tenAnHour)
	w.Failover()
	redistest.Eventually(t, "the new master decides", func() bool {
		_, _, err := s.Take(context.Background(), "z", []algorithms.Params{tenAnHour}, id(1), 1, nil)
		return err == nil
	})
}

func TestReadOnlyAndOutOfMemory(t *testing.T) {
	t.Parallel()
	server, bucket := redistest.Start(t), kinds["token bucket"]
	s := limiter(t, server.URL)
	take(t, s, "z", id(1), bucket)
	for _, c := range []struct{ name, set, unset, want string }{
		{"maxmemory", "1", "0", "OOM"},
		{"min-replicas-to-write", "1", "0", "NOREPLICAS"},
	} {
		server.Do("CONFIG", "SET", c.name, c.set)
		_, _, err := s.Take(context.Background(), "z", []algorithms.Params{bucket}, id(2), 1, nil)
		if got := redisconn.Classify(err); !strings.HasPrefix(got, c.want) {
			t.Errorf("Classify(%v) = %q, want %s", err, got, c.want)
		}
		if !s.Down() {
			t.Errorf("%s: the circuit is closed, want it open", c.want)
		}
		server.Do("CONFIG", "SET", c.name, c.unset)
		redistest.Eventually(t, "the circuit closes", func() bool { return !s.Down() })
		take(t, s, "z", id(1), bucket)
	}
	server.Do("REPLICAOF", "127.0.0.1", "1")
	_, _, err := s.Take(context.Background(), "z", []algorithms.Params{bucket}, id(1), 1, nil)
	if got := redisconn.Classify(err); !strings.HasPrefix(got, "READONLY") {
		t.Errorf("Classify(%v) = %q, want READONLY", err, got)
	}
	server.Do("REPLICAOF", "NO", "ONE")
	redistest.Eventually(t, "the circuit closes", func() bool { return !s.Down() })
}
