package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// tnode is a node with a table of one zone, login.
type tnode struct {
	*cnode
	table *table.Table[algorithms.WindowState]
	limit algorithms.Limit
}

func withTable(t *testing.T, n *cnode) *tnode {
	t.Helper()
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 30, Window: 1000 * time.Hour}
	tn := &tnode{cnode: n, table: table.New[algorithms.WindowState](p.Kind, 100), limit: p.Compile()}
	source := ratesync.NewTableSyncer(tn.table, ratesync.SpecOf("login", p))
	tn.table.Configure(table.SyncConfig{Params: p, Interval: 50 * time.Millisecond, Early: true, Waker: source.Waker}, 100)
	n.Follow("login", tn.table)
	n.rep.Attach(source, 50*time.Millisecond)
	return tn
}

func (n *tnode) take(units int) (admitted int) {
	raw := []byte("alice")
	for range units {
		if n.table.Take(n.limit, keys.KeyOf(raw), raw, clock.Now(), 1, 0).Allowed {
			admitted++
		}
	}
	return admitted
}

func (n *tnode) left() int64 {
	left, _ := n.table.Room(n.limit, keys.KeyOf([]byte("alice")), []byte("alice"), clock.Now())
	return left
}

func (n *tnode) reset(t *testing.T, key *keys.ID, nodes int) (forgiven int64) {
	t.Helper()
	o, forgiven, err := n.Reset(context.Background(), Change{Target: Target{Zone: "login", Key: key}, For: 1000 * time.Hour, Who: "test"})
	if err != nil || o.Applied != nodes || o.Nodes != nodes {
		t.Fatalf("Reset = %+v, %v, want %d of %d", o, err, nodes, nodes)
	}
	return forgiven
}

// Who is told that all nodes have applied a reset has all of the limit, at once, on every node,
// also straight after Redis has forgotten everything.
func TestAllNodesApplyAReset(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var nodes []*tnode
	for _, n := range startNodes(t, r, "a", "b", "c") {
		nodes = append(nodes, withTable(t, n))
	}
	id := keys.IDOf([]byte("alice"))
	for round, key := range []*keys.ID{&id, nil, &id, &id} {
		if got := nodes[round%3].take(30); got != 30 {
			t.Fatalf("round %d: %d requests are admitted, want 30", round, got)
		}
		for _, n := range nodes {
			redistest.Eventually(t, "all nodes know what was spent", func() bool {
				n.take(1)
				return n.left() == 0
			})
		}
		if round == 2 {
			if err := r.Client().FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if got := nodes[0].reset(t, key, 3); got < 30 {
			t.Errorf("round %d: %d requests are forgiven, want 30", round, got)
		}
		for i, n := range nodes {
			if left := n.left(); left != 30 {
				t.Errorf("round %d: node %d has %d left, want 30", round, i, left)
			}
		}
	}
	late := withTable(t, startNode(t, r, "d"))
	redistest.Eventually(t, "a newcomer knows of the reset", func() bool { return late.table.Resets() != nil })
	if left := late.left(); left != 30 {
		t.Errorf("a newcomer has %d left, want 30", left)
	}
}

// Counters that leave, as those of another algorithm do at a reload, take no resets along that the
// others of the zone follow.
func TestCountersThatLeaveTakeNoResetAlong(t *testing.T) {
	t.Parallel()
	n := withTable(t, startNodes(t, redistest.Start(t), "a")[0])
	leaves := table.New[algorithms.BucketState](algorithms.TokenBucket, 100)
	n.Follow("login", leaves)
	n.take(30)
	n.Unfollow("login", leaves)
	if forgiven := n.reset(t, nil, 1); forgiven != 30 {
		t.Errorf("%d requests are forgiven, want 30", forgiven)
	}
	if n.Unfollow("login", n.table); len(n.forgivers) != 0 {
		t.Errorf("%d zones are followed by nobody", len(n.forgivers))
	}
}

// Resets have a budget of their own, and one of all keys is always taken.
func TestTheBudgetOfResets(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	n := startNodes(t, r, "a")[0]
	fill := make([]any, 0, 3*MaxEntries)
	now := r.Client().Time(context.Background()).Val().UnixMicro()
	for i := range MaxEntries {
		e := Entry{ID: resetPrefix + Target{Key: &keys.ID{1, byte(i), byte(i >> 8)}}.redisID() + ":login", Stamp: now + int64(i), Length: 3600000, Body: resetBody}
		e.Until = now/1000 + e.Length
		e.Keep = e.Until
		fill = append(fill, e.ID, "", e.value())
	}
	for from := 0; from < len(fill); from += 3000 {
		part := fill[from:min(from+3000, len(fill))]
		if err := writeScript.Run(context.Background(), r.Client(), []string{n.Keys.Control()}, append([]any{0}, part...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, "the node has read them all", func() bool {
		set := n.activeResets()["login"]
		return set != nil && len(set.Keys) == MaxEntries
	})
	n.enforce(t, "login", .5, 1)
	id := keys.IDOf([]byte("alice"))
	if _, _, err := n.Reset(context.Background(), Change{Target: Target{Zone: "login", Key: &id}, For: time.Hour}); !errors.Is(err, ErrFull) {
		t.Errorf("one reset too many: %v, want %v", err, ErrFull)
	}
	o, _, err := n.Reset(context.Background(), Change{Target: Target{Zone: "login"}, For: time.Hour})
	if set := n.activeResets()["login"]; err != nil || o.Applied != 1 || len(set.Keys) != 0 || set.All.Stamp == 0 {
		t.Errorf("a reset of all keys: %+v, %v; %d of single keys are left, want none", o, err, len(set.Keys))
	}
}
