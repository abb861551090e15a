package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// cnode is a node with nothing but the record. A change waits until all nodes have applied it: on a
// machine that stalls that takes longer than WaitFor, of which TestTheNewestRecordIsSaved knows.
type cnode struct {
	*Control
	rep  *ratesync.Replicator
	logs *observer.ObservedLogs
}

// timeout is that of calls to Redis, which no stall of a machine is to end.
const timeout = 20 * time.Second

// newNode returns a node that starts when it is told to.
func newNode(r *redistest.Server, name string) *cnode {
	core, logs := observer.New(zap.InfoLevel)
	log, client := zap.New(core), r.Client()
	client.Options().ReadTimeout = timeout
	n := &cnode{logs: logs, rep: ratesync.NewReplicator(client, "test", timeout, clock.Now, log)}
	n.Control = New(Options{
		Client: client, Keys: ratesync.NewKeyspace("test"), Store: "test", Timeout: timeout, Now: clock.Now,
		Beat: n.rep.Beat, Name: "v1 " + name, Logger: log,
	})
	n.waitFor = redistest.Patience
	n.rep.SetRecord(n.Control)
	return n
}

func startNode(t *testing.T, r *redistest.Server, name string) *cnode {
	t.Helper()
	n := newNode(r, name)
	n.rep.Start()
	t.Cleanup(n.rep.Close)
	return n
}

// leases are how many nodes Redis has leases of.
func leases(r *redistest.Server) int64 {
	return r.Client().HLen(context.Background(), ratesync.NewKeyspace("test").Nodes(0)).Val()
}

// unheard are changes that not all nodes can apply: they wait for nothing.
func unheard(nodes ...*cnode) {
	for _, n := range nodes {
		n.waitFor = time.Millisecond
	}
}

func startNodes(t *testing.T, r *redistest.Server, names ...string) (nodes []*cnode) {
	t.Helper()
	for _, name := range names {
		nodes = append(nodes, startNode(t, r, name))
	}
	redistest.Eventually(t, "all nodes are there", func() bool {
		return nodes[0].rep.Nodes() == int64(len(nodes))
	})
	return nodes
}

func share(s float64) Body { return Body{Share: &s} }

// enforce asks a node for a share of a zone, and expects that all nodes apply it.
func (n *cnode) enforce(t *testing.T, zone string, s float64, nodes int) {
	t.Helper()
	o, err := n.Change(context.Background(), Change{Target: Target{Zone: zone}, Body: share(s), For: time.Hour, Who: "test"})
	if err != nil || o.Nodes != nodes || o.Applied != nodes || !o.Shared || o.Unsent {
		t.Fatalf("Change = %+v, %v, want %d of %[3]d", o, err, nodes)
	}
}

// sees reports whether a node's requests see a share of a zone, -1 for none.
func (n *cnode) sees(zone string, s float64) bool {
	r := n.Zone(zone).Load()
	if r == nil || r.Enforce == nil {
		return s < 0
	}
	return r.Enforce.Share() == s
}

func TestAllNodesApplyAChange(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b", "c")
	for i := range 6 {
		nodes[i%3].enforce(t, "login", float64(i)/10, 3)
		for j, n := range nodes {
			if !n.sees("login", float64(i)/10) || !n.sees("other", -1) {
				t.Errorf("after change %d node %d has %+v", i, j, n.Zone("login").Load())
			}
		}
	}
	if lines := nodes[0].logs.FilterMessageSnippet("at run time").All(); len(lines) != 2 {
		t.Errorf("%d lines about the two changes of node a: %v", len(lines), lines)
	}
	o, err := nodes[1].Change(context.Background(), Change{Target: Target{Zone: "login"}})
	if err != nil || o.Applied != 3 || !nodes[0].sees("login", -1) || !nodes[2].sees("login", -1) {
		t.Errorf("removing it: %+v, %v; node a has %v", o, err, nodes[0].Zone("login").Load())
	}
	if _, err := nodes[1].Change(context.Background(), Change{Target: Target{Zone: "login"}}); err != ErrNone {
		t.Errorf("removing it twice: %v, want %v", err, ErrNone)
	}
}

// An override holds for its key, a kill switch for all zones.
func TestWhatRequestsSee(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	n := startNodes(t, r, "a")[0]
	raw := []byte("customer")
	id := keys.IDOf(raw)
	if _, err := n.Change(context.Background(), Change{Target: Target{Zone: "api", Key: &id}, Body: Body{Limit: "6000/30d"}, For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	zone := n.Zone("api")
	of := func(raw string) *Override { return zone.Load().Override(keys.KeyOf([]byte(raw)), []byte(raw)) }
	for range 2 {
		if o := of("customer"); o == nil || len(o.Rates) != 1 || o.Rates[0].Limit != 6000 || o.Rates[0].Window != 30*24*time.Hour {
			t.Errorf("override = %+v, want 6000/30d", o)
		}
		if o := of("another"); o != nil {
			t.Errorf("override of another key = %+v, want none", o)
		}
	}
	if n.Zone("other").Load() != nil {
		t.Error("another zone has rules")
	}
	if _, err := n.Change(context.Background(), Change{Body: share(0), For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api", "other", "later"} {
		if rules := n.Zone(name).Load(); rules == nil || rules.Enforce == nil || !rules.Enforce.IsOff() {
			t.Errorf("with the kill switch zone %s has %+v", name, rules)
		}
	}
	if o := of("customer"); o == nil {
		t.Error("the override is gone with the kill switch")
	}
}

// What was acknowledged is back after Redis has lost everything, and straight after that changes
// are acknowledged by all nodes.
func TestFlushAllLosesNothing(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b", "c")
	nodes[0].enforce(t, "login", 0.5, 3)
	last := redistest.Times(7, 20) - 1
	for i := range last + 1 {
		r.Do("FLUSHALL")
		o, err := nodes[i%3].Change(context.Background(), Change{Target: Target{Zone: fmt.Sprint("zone", i)}, Body: share(0), For: time.Hour})
		if err != nil || o.Unsent || o.Nodes != 3 || o.Applied != 3 {
			t.Fatalf("Change %d = %+v, %v straight after FLUSHALL, want 3 of 3", i, o, err)
		}
	}
	redistest.Eventually(t, "the record has all again", func() bool {
		return len(r.Client().HGetAll(context.Background(), nodes[0].Keys.Control()).Val()) == last+3
	})
	late := startNode(t, r, "d")
	redistest.Eventually(t, "a newcomer has it", func() bool {
		return late.sees("login", 0.5) && late.sees("zone0", 0) && late.sees(fmt.Sprint("zone", last), 0)
	})
}

// A node that is gone without a word is named, as long as its lease lasts; one that ends in order
// is not, as its lease is gone.
func TestAStoppedNodeIsNamed(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b", "c")
	nodes[2].rep.Close()
	if n := leases(r); n != 2 {
		t.Errorf("Redis has leases of %d nodes after one of three has ended in order, want 2", n)
	}
	nodes[0].enforce(t, "login", 0.5, 2)
	nodes = append(nodes[:2], startNode(t, r, "c2"))
	redistest.Eventually(t, "Redis has a lease of the third node", func() bool { return leases(r) == 3 })
	nodes[0].enforce(t, "login", 0.6, 3)
	nodes[1].waitFor = WaitFor
	var o Outcome
	redistest.Eventually(t, "3 of 4 nodes apply a change, and the one that hangs is named", func() bool {
		// A node that hangs: its lease is there, its heartbeats are not.
		seconds := r.Client().Time(context.Background()).Val().Unix()
		r.Do("HSET", nodes[0].Keys.Nodes(0), "gone", fmt.Sprintf("7 %d000 0 0 v1 hangs", seconds+9))
		var err error
		o, err = nodes[1].Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(0.7), For: time.Hour})
		if err != nil || o.Applied == o.Nodes || len(o.Missing) != o.Nodes-o.Applied {
			t.Fatalf("Change = %+v, %v, want it applied by all but the one that hangs", o, err)
		}
		return o.Nodes == 4 && o.Applied == 3
	})
	if o.Missing[0].Name != "v1 hangs" {
		t.Errorf("Change = %+v, want the one that hangs missing", o)
	}
}

// While Redis is away a change holds here, and all others learn of it when it is back.
func TestAChangeWithoutRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	nodes := startNodes(t, r, "a", "b")
	nodes[0].enforce(t, "login", 1, 2)
	unheard(nodes...)
	r.Kill()
	o, err := nodes[0].Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(0), For: time.Hour})
	if err != nil || !o.Unsent || !nodes[0].sees("login", 0) {
		t.Fatalf("Change = %+v, %v, want it pending and active here", o, err)
	}
	if s := nodes[0].State(context.Background()); s.Pending != 1 || !s.Enforcement[0].Pending {
		t.Errorf("State = %+v, want one that is pending", s)
	} else {
		for _, n := range s.Nodes {
			if n.Applied != n.Self {
				t.Errorf("%+v, want what is pending applied by the node that has it alone", n)
			}
		}
	}
	r.Restart()
	redistest.Eventually(t, "the other node has it", func() bool { return nodes[1].sees("login", 0) })
	redistest.Eventually(t, "it is no more pending", func() bool { return nodes[0].State(context.Background()).Pending == 0 })
}

// What another program has under the key of the record is left alone, and limits go on.
func TestAForeignRecord(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	key := ratesync.NewKeyspace("test").Control()
	r.Do("SET", key, "mine")
	nodes := startNodes(t, r, "a", "b")
	unheard(nodes...)
	o, err := nodes[0].Change(context.Background(), Change{Target: Target{Zone: "login"}, Body: share(0), For: time.Hour})
	if err != nil || !o.Unsent || !nodes[0].sees("login", 0) {
		t.Errorf("Change = %+v, %v, want it pending and active here", o, err)
	}
	redistest.Eventually(t, "its state says why", func() bool { return nodes[0].State(context.Background()).Failing != "" })
	before := r.Calls("evalsha")
	redistest.Eventually(t, "each node has had some heartbeats more", func() bool { return r.Calls("evalsha") >= before+10 })
	if n := nodes[0].logs.FilterMessageSnippet("refuses the control record").Len(); n != 1 {
		t.Errorf("%d lines about it, want 1", n)
	}
	r.Do("DEL", key)
	redistest.Eventually(t, "the other node has it", func() bool { return nodes[1].sees("login", 0) })
}

// A record takes so many entries and no more, except a kill switch, and deletions.
func TestAFullRecord(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	n := startNodes(t, r, "a")[0]
	var orders []order
	for i := range MaxEntries {
		id := keys.IDOf(fmt.Append(nil, i))
		orders = append(orders, order{Entry: Entry{ID: Target{Zone: "api", Key: &id}.name(), Body: `{"limit":"deny"}`}, length: 3_600_000})
		if len(orders) == batch {
			if err := writeScript.Run(context.Background(), n.Client, []string{n.Keys.Control()}, args(0, orders)...).Err(); err != nil {
				t.Fatal(err)
			}
			orders = nil
		}
	}
	redistest.Eventually(t, "the node has them all", func() bool {
		s := n.State(context.Background())
		return len(s.Overrides) == MaxEntries
	})
	id, other := keys.IDOf([]byte("0")), keys.IDOf([]byte("one too many"))
	change := func(target Target, body Body) error {
		_, err := n.Change(context.Background(), Change{Target: target, Body: body, For: time.Hour})
		return err
	}
	if err := change(Target{Zone: "api", Key: &other}, Body{Limit: Deny}); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v, want %v", err, ErrFull)
	}
	if err := change(Target{Zone: "api", Key: &id}, Body{Limit: Unlimited}); err != nil {
		t.Errorf("changing one: %v", err)
	}
	if err := change(Target{Zone: "api", Key: &id}, Body{}); err != nil {
		t.Errorf("removing one: %v", err)
	}
	if err := change(Target{}, share(0)); err != nil || !n.sees("any", 0) {
		t.Errorf("a kill switch: %v", err)
	}
	r.Kill()
	if err := change(Target{Zone: "api", Key: &other}, Body{Limit: Deny}); !errors.Is(err, ErrFull) {
		t.Errorf("one too many without Redis: %v, want %v", err, ErrFull)
	}
}
