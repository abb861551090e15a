//go:build chaos

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// Each fault of the network and of one Redis, one test each: what they check is at inject.

// onTheWay injects a fault of the proxies.
func onTheWay(t *testing.T, name string, f faultproxy.Fault, delay time.Duration, reason string) {
	s := simple(t)
	s.inject(fault{
		name: name, reason: reason,
		begin: func() {
			for _, p := range s.proxy {
				p.SetDelay(max(delay, s.away))
			}
			s.set(f)
		},
		end: func() {
			s.set(faultproxy.None)
			for _, p := range s.proxy {
				p.SetDelay(s.away)
			}
		},
	})
}

func TestFaultReplyLost(t *testing.T) {
	onTheWay(t, "replies are lost", faultproxy.DropReplies, 0, "timeout")
}

func TestFaultLatency(t *testing.T) {
	onTheWay(t, "500 ms of latency", faultproxy.None, 500*time.Millisecond, "timeout")
}

func TestFaultNeverAnswers(t *testing.T) {
	onTheWay(t, "accepts and never answers", faultproxy.Blackhole, 0, "timeout")
}

func TestFaultSlowDrip(t *testing.T) {
	onTheWay(t, "a byte each 20 ms", faultproxy.Drip, 20*time.Millisecond, "timeout")
}

func TestFaultReset(t *testing.T) {
	onTheWay(t, "connections are reset", faultproxy.Reset, 0, "connection")
}

func TestFaultHalfClose(t *testing.T) {
	onTheWay(t, "connections are half closed", faultproxy.HalfClose, 0, "connection")
}

// do returns a step of a fault that runs a command on a server, as an operator does.
func do(r *redistest.Server, args ...any) func() { return func() { r.Do(args...) } }

// configured injects an option of the server that is set to a value and back.
func configured(t *testing.T, name, option, value, back, reason string) {
	s := simple(t)
	s.inject(fault{
		name: name, reason: reason,
		begin: do(s.server, "CONFIG", "SET", option, value), end: do(s.server, "CONFIG", "SET", option, back),
	})
}

func TestFaultOutOfMemory(t *testing.T) {
	configured(t, "OOM with noeviction", "maxmemory", "1", "0", "OOM")
}

func TestFaultNoReplicas(t *testing.T) {
	configured(t, "NOREPLICAS", "min-replicas-to-write", "1", "0", "NOREPLICAS")
}

func TestFaultReadOnly(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name: "the master has become a replica (READONLY)", reason: "READONLY",
		begin: do(s.server, "REPLICAOF", "127.0.0.1", "1"), end: do(s.server, "REPLICAOF", "NO", "ONE"),
	})
}

func TestFaultBusy(t *testing.T) {
	s := simple(t, redistest.Config("--lua-time-limit", "20"))
	ended := make(chan struct{})
	s.inject(fault{
		name: "another script holds Redis up (BUSY)", reason: "BUSY",
		begin: func() {
			c := s.server.Client()
			go func() {
				defer close(ended)
				// until it is killed, whatever the client's timeout
				c.Eval(context.Background(), "while true do end", nil)
			}()
		},
		end: func() {
			eventually(t, "the script is ended", func() error {
				c := s.server.Client()
				defer c.Close()
				return c.ScriptKill(context.Background()).Err()
			})
			<-ended
		},
	})
}

// dropClients drops the connections of all nodes, but not the one that asks for it.
func dropClients(r *redistest.Server) { r.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }

func TestFaultPasswordRotated(t *testing.T) {
	s := newScenario(t)
	r := redistest.Start(t, redistest.Config("--requirepass", "first"), redistest.User("operator", "on nopass ~* &* +@all"), redistest.As("operator"))
	s.simple(r, "default:first@")
	rotate := func(password string) func() {
		return func() {
			r.Do("CONFIG", "SET", "requirepass", password)
			dropClients(r)
		}
	}
	s.inject(fault{name: "the password is rotated", reason: "WRONGPASS", begin: rotate("second"), end: rotate("first")})
}

func TestFaultTooManyClients(t *testing.T) {
	s := simple(t)
	conn := s.server.Client().Conn() // takes the only connection
	s.inject(fault{
		name: "maxclients", reason: "maxclients",
		begin: func() {
			if err := conn.ConfigSet(context.Background(), "maxclients", "1").Err(); err != nil {
				t.Fatal(err)
			}
			conn.Do(context.Background(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		end: func() {
			if err := conn.ConfigSet(context.Background(), "maxclients", "1000").Err(); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		},
	})
}

// Redis itself goes away.

func TestFaultDownAtStart(t *testing.T) {
	s := newScenario(t)
	r := redistest.Start(t)
	r.Kill()
	s.open("redis "+r.URL, only(r))
	s.injectAtStart(fault{name: "down at start", reason: "connection refused", end: r.Restart})
	for _, n := range s.Nodes {
		for _, line := range n.Log.Lines() {
			if !strings.HasPrefix(line, "{") {
				t.Errorf("node %d wrote past the log: %s", n.Number, line)
			}
		}
	}
}

func TestFaultNameDoesNotResolve(t *testing.T) {
	s := newScenario(t)
	r := redistest.Start(t)
	names := startDNS(t)
	s.open("redis redis://"+names.host+r.Addr[strings.LastIndexByte(r.Addr, ':'):], only(r))
	s.injectAtStart(fault{name: "its name does not resolve at start, later does", reason: "doesn't resolve", end: names.appear})
}

func TestFaultKilledMidSync(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name: "killed in the middle of a sync, back empty", reason: "redis", alsoLogs: "redis has lost counts", losesGrants: true,
		begin: func() {
			s.set(faultproxy.Hold)
			for _, p := range s.proxy {
				eventually(t, "a sync is under way", func() error {
					if p.Held() == 0 {
						return errors.New("none")
					}
					return nil
				})
			}
			s.server.Kill()
			s.set(faultproxy.None)
		},
		end: s.server.Restart,
	})
}

func TestFaultLoading(t *testing.T) {
	s := simple(t, redistest.Config("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"))
	// so that it reads for two seconds at least, and answers in between
	fill(s.server, "other", 100)
	s.inject(fault{
		name: "restarts, and reads what it saved for a while (LOADING)", reason: "redis", alsoLogs: "redis has lost counts", losesGrants: true, olderCopy: true,
		begin: func() {
			s.server.Do("SAVE")
			saved := s.counted("wide")
			eventually(t, "redis has counted more than it saved", func() error {
				if got := s.counted("wide"); got <= saved {
					return fmt.Errorf("%d", got)
				}
				return nil
			})
			s.server.Boot()
			eventually(t, "redis is loading", func() error {
				c := s.server.Client()
				defer c.Close()
				if err := c.Ping(context.Background()).Err(); err == nil || !strings.HasPrefix(err.Error(), "LOADING") {
					return fmt.Errorf("it answers %v", err)
				}
				return nil
			})
		},
		end: s.server.Wait,
	})
}

// fill writes keys of 4 kB as another program would.
func fill(r *redistest.Server, name string, n int) {
	r.Do("EVAL", "for i = 1, ARGV[2] do redis.call('SET', ARGV[1] .. i, string.rep('x', 4000)) end", "0", name, n)
}

// Redis loses its counts, and answers all the time.

// often is a step of a fault that does something several times within the phase.
func often(s *scenario, times int, f func(i int)) func() {
	return func() {
		p := s.current()
		for i := range times {
			sent := p.sent()
			f(i)
			eventually(s.t, "requests are answered", func() error {
				if p.sent() < sent+max(10, s.load.rate/10) {
					return errors.New("too few")
				}
				return nil
			})
		}
	}
}

func nothing() {}

func TestFaultScriptFlush(t *testing.T) {
	s := simple(t)
	s.inject(fault{name: "SCRIPT FLUSH, again and again", begin: often(s, 10, func(int) { s.server.Do("SCRIPT", "FLUSH") }), end: nothing})
}

func TestFaultFlushAll(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name: "FLUSHALL, three times", alsoLogs: "redis has lost counts", losesGrants: true,
		begin: often(s, 3, func(int) { s.server.Do("FLUSHALL") }), end: nothing,
	})
}

func TestFaultEvicted(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name: "keys are evicted at random (allkeys-random)", alsoLogs: "redis has lost counts", losesGrants: true,
		begin: func() {
			// Other programs' keys are most of what there is, so that Redis always finds something
			// to evict and need not answer OOM.
			fill(s.server, "first", 2000)
			s.server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", s.server.Info("memory", "used_memory")-2<<20)
			often(s, 10, func(i int) { fill(s.server, fmt.Sprint("more", i, "-"), 150) })()
			if n := s.server.Info("stats", "evicted_keys"); n < 1000 {
				t.Errorf("only %d keys were evicted", n)
			}
		},
		end: do(s.server, "CONFIG", "SET", "maxmemory", "0"),
	})
}

func TestFaultForeignType(t *testing.T) {
	s := simple(t)
	var overwritten []string
	s.inject(fault{
		name: "another program writes to our keys (WRONGTYPE)", alsoLogs: "another program",
		begin: func() {
			for hash := range sums(t, s.server, "wide") {
				overwritten = append(overwritten, hash)
				s.server.Do("SET", hash, "foreign")
			}
		},
		end: func() {
			for _, key := range overwritten {
				s.server.Do("DEL", key)
			}
		},
	})
}

// Nodes go away.

func TestFaultOneNodeCutOff(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name: "one node of three is cut off", reason: "timeout", cutOff: []int{2},
		begin: func() { s.proxy[2].Set(faultproxy.Blackhole) }, end: func() { s.proxy[2].Set(faultproxy.None) },
	})
}

// A node that is killed loses what it had not sent, and nothing else.
func TestFaultNodeKilled(t *testing.T) {
	s := simple(t)
	f := fault{name: "kill -9 of a node, and its restart", end: func() { s.restart(2) }}
	confirmed := make(map[string]int)
	var killed *phase
	f.begin = func() {
		// What Redis has confirmed can't be lost.
		for _, zone := range append([]string{"wide", "bucket", "strict"}, exactOthers...) {
			seen := s.admittedOn(2, zone)
			eventually(t, "a node has sent what it had admitted", func() error {
				z := status(t, s.Nodes[2], zone)
				sent := z.Own-z.Unsent >= int64(seen)
				// where only what it decides by itself is its own
				if zone == "strict" || slices.Contains(exactOthers, zone) {
					sent = z.Unsent == 0
				}
				if !sent {
					return fmt.Errorf("%+v, want %d sent", z, seen)
				}
				return nil
			})
			confirmed[zone] = seen
		}
		s.keeper.beforeKill(2)
		s.endNode(2, func(n *cluster.Node) error { n.Kill(); return nil })
		s.keeper.afterKill()
		killed = s.current()
	}
	f.mayLose = func(zone string) int {
		if slices.Contains(settledZones, zone) {
			return 0 // Redis had all of it
		}
		return s.admittedUntil(killed, 2, zone) - confirmed[zone]
	}
	s.inject(f)
}

// A node that gets a SIGTERM sends what it has not sent.
func TestFaultNodeTerminated(t *testing.T) {
	s := simple(t)
	s.inject(fault{
		name:  "SIGTERM with unsent counts, and a restart",
		begin: func() { s.endNode(2, (*cluster.Node).Stop) }, end: func() { s.restart(2) },
		mayLose: func(zone string) int { return unsent(t, s.Nodes[2])[zone] },
	})
}

// restart starts a node again and gives it requests.
func (s *scenario) restart(node int) {
	s.t.Helper()
	if err := s.Nodes[node].Start(s.t.Context(), s.config); err != nil {
		s.t.Fatal(err)
	}
	s.out[node].Store(false)
}
