package ratesync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sum is what Redis counts in all for the only counter in it.
func sum(t *testing.T, r *redistest.Server) int64 {
	t.Helper()
	client := r.Client()
	var total int64
	for _, key := range client.Keys(context.Background(), "test:*:z:*").Val() {
		words := strings.Fields(client.HGet(context.Background(), key, "sum").Val())
		text := words[0]
		if c, _ := parseCellName(key); c.spec.isBucket() {
			text = words[3]
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("sum of %q is %q", key, text)
		}
		total += n
	}
	return total
}

func TestLostRepliesAndLateDuplicatesLeaveTheCountExact(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	proxy := faultproxy.Start(t, r.Addr)
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1_000_000, Window: 1000 * time.Hour}
	a := startNodeWithin(t, clientOf(t, "redis://"+proxy.Addr+"?timeout=1s"), time.Second, alg, 20*time.Millisecond, wallClock)
	b := startNode(t, clientOf(t, r.URL), alg, 20*time.Millisecond, wallClock)
	a.knows("k", 0, 0)
	random := rand.New(rand.NewPCG(1, 2))
	want := int64(0)
	for round, fault := range []faultproxy.Fault{faultproxy.DropReplies, faultproxy.Hold, faultproxy.Blackhole, faultproxy.Reset, faultproxy.HalfClose, faultproxy.DropReplies, faultproxy.Hold} {
		before := proxy.Requests()
		proxy.Set(fault)
		n := 1 + random.IntN(50)
		want += int64(a.take("k", n))
		taken := a.table.Take(alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), a.now(), 1, 0)
		if fault == faultproxy.Reset {
			redistest.Eventually(t, "the node notices", func() bool { return a.source.Lost() != 0 })
		} else {
			redistest.Eventually(t, "something is sent into the fault", func() bool {
				a.touch("k")
				return proxy.Requests() > before
			})
		}
		// What was taken may have been sent by now; it is refunded all the same.
		a.table.Refund(alg.Compile(), keys.KeyOf([]byte("k")), taken, 1)
		proxy.Set(faultproxy.None)
		a.touch("k")
		a.knows("k", want, 0)
		// What was sent before the refund may have been answered after it.
		redistest.Eventually(t, "redis has heard of the refund", func() bool { return sum(t, r) == want })
		if proxy.Held() > 0 {
			if _, err := proxy.Deliver(); err != nil {
				t.Logf("late delivery: %v", err)
			}
		}
		if got := sum(t, r); got != want {
			t.Fatalf("round %d, fault %d: redis counts %d, want %d", round, fault, got, want)
		}
	}
	b.knows("k", 0, want)
}

// notSent are the lines about last counts that could not be sent.
func (n *rnode) notSent() []observer.LoggedEntry {
	return n.logs.FilterField(warning.Field(warning.NotSent)).All()
}

// A table that ends during an outage logs how much is lost with it, once for its zone, and
// nothing where nothing is.
func TestCountsThatCouldNotBeSentAreTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		keys, requests int
		tables         int
		noticed        bool // the loss, before the table ends
	}{
		{"noticed", 3, 2, 1, true},
		{"noticed, in a zone with two rates", 3, 2, 2, true},
		{"not noticed yet", 3, 2, 1, false},
		{"not noticed yet, in a zone with two rates", 3, 2, 2, false},
		{"nothing to send", 0, 0, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := redistest.Start(t)
			a := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
			a.take("sent", 5)
			a.knows("sent", 5, 0)
			redistest.Eventually(t, "the node has said that it is there", func() bool { return a.rep.Status().Nodes == 1 })
			redistest.Eventually(t, "nothing is left to send", func() bool { return a.table.Totals(a.now()).Unsent == 0 })
			r.Kill()
			for i := range c.keys {
				a.take(fmt.Sprint("k", i), c.requests)
			}
			sources := []*Source{a.source}
			for range c.tables - 1 {
				another := *a
				another.table = tableOf[algorithms.WindowState](ten, 10_000)
				another.source = NewSource(another.table, a.source.spec)
				another.configure(20 * time.Millisecond)
				for i := range c.keys {
					another.take(fmt.Sprint("k", i), c.requests)
				}
				sources = append(sources, another.source)
			}
			if c.noticed {
				redistest.Eventually(t, "the loss is noticed", func() bool { return a.rep.lost.Load() == allShards })
			}
			for _, source := range sources {
				source.Detach()
			}
			lines := a.notSent()
			if c.keys == 0 {
				if len(lines) > 0 {
					t.Errorf("logged %v, want nothing: all is sent", lines)
				}
				return
			}
			if len(lines) != 1 {
				t.Fatalf("logged %v, want one line", lines)
			}
			got := lines[0].ContextMap()
			if got["zone"] != "z" || got["keys"] != int64(c.keys) || got["requests"] != int64(c.keys*c.requests) || !strings.Contains(got["reason"].(string), "; ") {
				t.Errorf("logged %v, want zone z, %d keys, %d requests and a reason", got, c.keys, c.keys*c.requests)
			}
		})
	}
}

// startLost starts a node of a long interval that has four units to send and has lost its server.
func startLost(t *testing.T, r *redistest.Server) *rnode {
	t.Helper()
	a := startNode(t, clientOf(t, r.URL), ten, time.Hour, wallClock)
	a.knows("k", 0, 0)
	r.Kill()
	a.take("k", 4)
	// A cycle at once; when that and another one have failed, the next is an hour away.
	a.configure(time.Hour)
	redistest.Eventually(t, "two syncs have failed", func() bool { return a.rep.Status().Failures >= 2 && a.source.at.Load().lost.Load() != 0 })
	return a
}

// The heartbeat finds out that Redis is back, and a zone with a long interval doesn't wait for its
// cycle to do so as well.
func TestASlowRateIsBackWithTheServer(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startLost(t, r)
	redistest.Eventually(t, "the heartbeat has failed", func() bool { return a.rep.lost.Load() == allShards })
	r.Restart()
	redistest.Eventually(t, "the sync works again", func() bool { return a.source.Lost() == 0 && a.rep.Status().Up })
	if got := sum(t, r); got != 4 {
		t.Errorf("redis counts %d, want 4", got)
	}
}

// A zone with a long interval doesn't know yet that Redis is back when it ends, and sends its
// counts all the same.
func TestDetachSendsToAServerThatIsBack(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startLost(t, r)
	r.Restart()
	redistest.Eventually(t, "the server is back", func() bool {
		return a.rep.Status().Nodes == 1 && a.rep.lost.Load() == 0 && a.rep.Status().Failing[HeartbeatName] == ""
	})
	a.source.Detach()
	if got := sum(t, r); got != 4 {
		t.Errorf("redis counts %d, want 4", got)
	}
	if lines := a.notSent(); len(lines) > 0 {
		t.Errorf("logged %v", lines)
	}
}

func TestForeignTypeFailsNoOtherKey(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
	a.take("bad", 1)
	a.knows("bad", 1, 0)
	client := r.Client()
	for _, key := range client.Keys(context.Background(), "test:*:z:*").Val() {
		client.Set(context.Background(), key, "foreign", 0)
	}
	a.take("bad", 1)
	for i := range 20 {
		a.take(fmt.Sprint("good", i), 2)
	}
	for i := range 20 {
		a.knows(fmt.Sprint("good", i), 2, 0)
	}
	redistest.Eventually(t, "the foreign key is reported", func() bool {
		a.touch("bad")
		return a.logs.FilterMessageSnippet("another program").Len() == 1
	})
	if a.source.Lost() != 0 {
		t.Error("one foreign key makes the whole sync count as lost")
	}
}

func TestTroublesOfTheServerPass(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, redistest.Config("--lua-time-limit", "50"))
	a := startNode(t, clientOf(t, r.URL), ten, 20*time.Millisecond, wallClock)
	a.knows("k", 0, 0)
	own := int64(0)
	for _, trouble := range []struct{ name, begin, end string }{
		{"SCRIPT FLUSH", "SCRIPT FLUSH", ""},
		{"out of memory", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"},
		{"read only", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"},
		{"eviction", "FLUSHALL", ""},
	} {
		words := strings.Split(trouble.begin, " ")
		do(r, words)
		own += int64(a.take("k", 1))
		if trouble.end != "" {
			redistest.Eventually(t, trouble.name+" is noticed", func() bool {
				a.touch("k")
				_, ok := a.rep.Status().Failing["z 1000h0m0s"]
				return ok
			})
			do(r, strings.Split(trouble.end, " "))
		}
		a.knows("k", own, 0)
	}
	if lines := a.logs.FilterMessageSnippet("another program").All(); len(lines) != 0 {
		t.Errorf("troubles of the server are put down to another program: %v", lines)
	}
}

// A server that was away for long is asked at once when it is back, and not a second later, when
// the client tries again by itself.
func TestAServerThatIsBackIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	c := clientOf(t, r.URL+"?pool_size=2")
	r.Kill()
	for range 20 {
		if err := c.Ping(context.Background()).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("Ping() = %v without a server, want connection refused", err)
		}
	}
	r.Restart()
	if err := c.Ping(context.Background()).Err(); err != nil {
		t.Errorf("Ping() = %v at once after the server is back", err)
	}
}

func do(r *redistest.Server, words []string) {
	args := make([]any, len(words))
	for i := range words {
		args[i] = words[i]
	}
	r.Do(args...)
}

func TestABucketThatRefillsAndIsForgottenKeepsItsTotal(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	// A thousand a second: full again at once.
	alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 3_600_000_000, Window: 1000 * time.Hour, Burst: 100}
	tab := tableOf[algorithms.BucketState](alg, 100)
	source := NewSource(tab, SpecOf("z", alg))
	tab.Configure(table.SyncConfig{Params: alg, Rate: 20 * time.Millisecond, Early: true, Waker: source.Waker}, 100)
	rep := NewReplicator(clientOf(t, r.URL), "test", patience, wallClock, zap.NewNop())
	rep.Attach(source, 20*time.Millisecond)
	t.Cleanup(func() { source.Detach(); rep.Close() })
	key := []byte("k")
	for round := range int64(3) {
		for range 10 {
			if !tab.Take(alg.Compile(), keys.KeyOf(key), key, wallClock(), 1, 0).Allowed {
				t.Fatal("denied with a full bucket")
			}
		}
		redistest.Eventually(t, "redis counts all rounds", func() bool {
			return len(r.Client().Keys(context.Background(), "test:*:z:*").Val()) > 0 && sum(t, r) == 10*(round+1)
		})
		redistest.Eventually(t, "the bucket is full again", func() (full bool) {
			tab.With(keys.KeyOf(key), func(s *algorithms.BucketState) { full = levelAt(alg, s, wallClock()) == 0 })
			return full
		})
		tab.Sweep(wallClock())
	}
}

func TestANewcomerKnowsTheBucketOfOthers(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: 10, Window: 1000 * time.Hour, Burst: 100}
	node := func() (*table.Table[algorithms.BucketState], func() float64) {
		tab := tableOf[algorithms.BucketState](alg, 100)
		source := NewSource(tab, SpecOf("z", alg))
		tab.Configure(table.SyncConfig{Params: alg, Rate: 20 * time.Millisecond, Early: true, Waker: source.Waker}, 100)
		rep := NewReplicator(clientOf(t, r.URL), "test", patience, wallClock, zap.NewNop())
		rep.Attach(source, 20*time.Millisecond)
		t.Cleanup(func() { source.Detach(); rep.Close() })
		key := []byte("k")
		return tab, func() (level float64) {
			tab.Take(alg.Compile(), keys.KeyOf(key), key, wallClock(), 0, 0)
			tab.With(keys.KeyOf(key), func(s *algorithms.BucketState) { level = levelAt(alg, s, wallClock()) })
			return level
		}
	}
	a, levelA := node()
	key := []byte("k")
	for range 60 {
		a.Take(alg.Compile(), keys.KeyOf(key), key, wallClock(), 1, 0)
	}
	redistest.Eventually(t, "redis has a's count", func() bool {
		levelA()
		return len(r.Client().Keys(context.Background(), "test:*:z:*").Val()) > 0 && sum(t, r) == 60
	})
	_, levelB := node()
	redistest.Eventually(t, "b knows the level", func() bool { level := levelB(); return level > 59 && level <= 60 })
}
