package strict

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A resetNode is one of the nodes that ask the same Redis.
type resetNode struct {
	*Limiter
	t    *testing.T
	zone string
	rule algorithms.Params
	got  []Grant
}

// take asks for units, one by one, and returns how many are admitted.
func (n *resetNode) take(units int) (admitted int) {
	n.t.Helper()
	for range units {
		_, g, err := n.Take(context.Background(), n.zone, []algorithms.Params{n.rule}, id(1), 1, nil)
		if err != nil {
			n.t.Fatal(err)
		}
		if g.Admitted() {
			admitted++
		}
		n.got = append(n.got, g)
	}
	return admitted
}

// forgive has a response of a node forgive the key.
func (n *resetNode) forgive() {
	x, key := n.tables(), id(1)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, one := range x.all {
		if one.zone == n.zone {
			one.ForgiveKey(keys.KeyOf(key[:]), clock.Now(), clock.Now())
		}
	}
}

// resetNow is a reset of the key, as an operator of this Redis makes it.
func resetNow(t *testing.T, r *redistest.Server) *reset.Set {
	t.Helper()
	now, err := r.Client().Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return resetAt(now)
}

// resetAt is a reset of the key at an instant of Redis' clock.
func resetAt(now time.Time) *reset.Set {
	return &reset.Set{Keys: map[[16]byte]reset.Reset{keyID(): {
		Stamp: now.UnixMicro(), At: now.UnixMicro() * 1000, Until: now.Add(4 * long).UnixNano(),
	}}}
}

// keyID is the id of the tests' key.
func keyID() keys.ID {
	key := id(1)
	return keys.IDOf(key[:])
}

// After all nodes know of a reset, all of the limit is there once, in all nodes together.
func TestAResetGivesAllOfTheLimitOnce(t *testing.T) {
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := redistest.Start(t)
			for _, scenario := range []string{
				"quiet", "late", "newcomer", "killed", "twice", "of all", "after FLUSHALL", "before FLUSHALL", "after a failover", "before a failover",
				"refunds", "penalties", "by a response",
			} {
				t.Run(scenario, func(t *testing.T) { testReset(t, r, rule, scenario) })
			}
		})
	}
}

// A resetRun is three nodes that spend, and then get a reset.
type resetRun struct {
	t        *testing.T
	r        *redistest.Server
	rule     algorithms.Params
	scenario string
	nodes    []*resetNode
}

func testReset(t *testing.T, r *redistest.Server, rule algorithms.Params, scenario string) {
	run := &resetRun{t: t, r: r, rule: rule, scenario: scenario}
	for range 3 {
		run.nodes = append(run.nodes, run.newNode())
	}
	run.spend(100)
	run.before()
	run.spend(run.reset())
}

func (run *resetRun) newNode() *resetNode {
	return &resetNode{Limiter: limiter(run.t, run.r.URL), t: run.t, zone: run.scenario, rule: run.rule}
}

// spend asks for more than the limit on all nodes, which admit want.
func (run *resetRun) spend(want int) {
	run.t.Helper()
	nodes := run.nodes
	got := nodes[0].take(40) + nodes[1].take(30)
	if len(nodes) > 2 {
		got += nodes[2].take(50)
	}
	if got += nodes[0].take(50); got != want {
		run.t.Errorf("%s: the nodes admit %d, want %d", run.scenario, got, want)
	}
}

// apply tells all nodes of a reset.
func (run *resetRun) apply() *reset.Set {
	if run.scenario == "by a response" {
		run.nodes[1].forgive()
		settles(run.t, run.nodes[1].Limiter)
		return nil
	}
	set := resetNow(run.t, run.r)
	if run.scenario == "of all" {
		set = &reset.Set{All: set.Of(keyID())}
	}
	for i, n := range run.nodes {
		if run.scenario == "late" && i == 1 {
			run.nodes[0].take(5)
			run.nodes[2].take(1) // denied, or told of the reset
		}
		n.Reset(run.scenario, set)
	}
	return set
}

func (run *resetRun) flush() {
	if err := run.r.Client().FlushAll(context.Background()).Err(); err != nil {
		run.t.Fatal(err)
	}
}

// before is what happens before the reset.
func (run *resetRun) before() {
	switch run.scenario {
	case "after FLUSHALL":
		run.flush()
		run.spend(0) // what the nodes know goes on
	case "after a failover":
		older := backup(run.t, run.r)
		run.nodes[0].take(40)
		older()
		run.spend(0)
	case "killed":
		run.nodes = run.nodes[:2]
	}
}

// reset applies the reset and what happens after it. It returns how many the nodes are to admit
// then.
func (run *resetRun) reset() (want int) {
	nodes := run.nodes
	older := backup(run.t, run.r)
	set, want := run.apply(), 100
	switch run.scenario {
	case "late":
		want = 94 // the third node was told of the reset, or found an empty log
	case "twice":
		run.spend(100)
		run.apply()
	case "newcomer":
		nodes[2] = run.newNode()
		nodes[2].Reset(run.scenario, set)
	case "before FLUSHALL":
		run.flush()
	case "before a failover":
		nodes[1].take(5)
		older()
	case "refunds", "penalties":
		before := [][]Grant{nodes[0].got, nodes[1].got, nodes[2].got}
		want -= nodes[0].take(50)
		for i, n := range nodes {
			for _, g := range before[i] {
				if run.scenario == "refunds" {
					n.Refund(g)
				} else {
					n.Penalize(g)
				}
			}
		}
		for _, n := range nodes {
			settles(run.t, n.Limiter) // nothing is to come of them
		}
	}
	return want
}

// backup copies what Redis has. What it returns has Redis forget what came since, as a failover to
// a replica that lags behind does.
func backup(t *testing.T, r *redistest.Server) (restore func()) {
	t.Helper()
	ctx, c := context.Background(), r.Client()
	type value struct {
		dump string
		ttl  time.Duration
	}
	all := make(map[string]value)
	for _, key := range c.Keys(ctx, "*").Val() {
		all[key] = value{c.Dump(ctx, key).Val(), max(0, c.PTTL(ctx, key).Val())}
	}
	return func() {
		t.Helper()
		if err := c.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		for key, v := range all {
			if err := c.Restore(ctx, key, v.ttl, v.dump).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Refunds of what was granted before a reset are not done after it, also where Redis could not be
// told of them.
func TestRefundsThatWaitForRedis(t *testing.T) {
	server := redistest.Start(t)
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.Start(t, server.Addr)
			cut := &resetNode{Limiter: New(client(t, "redis://"+proxy.Addr), "test", 300*time.Millisecond, zap.NewNop()), t: t, zone: name, rule: rule}
			t.Cleanup(cut.Close)
			other := &resetNode{Limiter: limiter(t, server.URL), t: t, zone: name, rule: rule}
			var got []Grant
			for range 60 {
				got = append(got, soon(t, cut.Limiter, name, id(1), rule))
			}
			proxy.Set(faultproxy.Blackhole)
			for _, g := range got {
				cut.Refund(g)
			}
			set := resetNow(t, server)
			cut.Reset(name, set)
			other.Reset(name, set)
			admitted := other.take(50)
			proxy.Set(faultproxy.None)
			redistest.Eventually(t, "Redis is asked again", func() bool { return !cut.Down() })
			for range 60 {
				if soon(t, cut.Limiter, name, id(1), rule).Admitted() {
					admitted++
				}
			}
			if admitted += other.take(60); admitted != 100 {
				t.Errorf("%d are admitted after the reset, want 100", admitted)
			}
		})
	}
}
