package strict

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A resetNode is one of the nodes that ask the same Redis.
type resetNode struct {
	*Limiter
	t    *testing.T
	rule Rule
	got  []Grant
}

// take asks for units, one by one, and returns how many are admitted.
func (n *resetNode) take(units int) (admitted int) {
	n.t.Helper()
	for range units {
		_, g, err := n.Take(context.Background(), "z", []Rule{n.rule}, id(1), nil)
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

// resetNow is a reset of the key, as an operator of this Redis makes it.
func resetNow(t *testing.T, r *redistest.Server) *reset.Set {
	t.Helper()
	now, err := r.Client().Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return &reset.Set{Keys: map[[16]byte]reset.Reset{id(1): {
		Stamp: now.UnixMicro(), At: now.UnixMicro() * 1000, Until: now.Add(4 * long).UnixNano(),
	}}}
}

// After all nodes know of a reset, all of the limit is there once, in all nodes together.
func TestAResetGivesAllOfTheLimitOnce(t *testing.T) {
	for name, rule := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, scenario := range []string{"quiet", "late", "newcomer", "twice", "of all", "after FLUSHALL", "before FLUSHALL", "refunds", "penalties"} {
				t.Run(scenario, func(t *testing.T) { testReset(t, rule, scenario) })
			}
		})
	}
}

func testReset(t *testing.T, rule Rule, scenario string) {
	r := redistest.Start(t)
	nodes := []*resetNode{}
	for range 3 {
		nodes = append(nodes, &resetNode{Limiter: limiter(t, r.URL), t: t, rule: rule})
	}
	spend := func(want int) {
		t.Helper()
		got := nodes[0].take(40) + nodes[1].take(30) + nodes[2].take(50)
		if got += nodes[0].take(1); got != want {
			t.Errorf("%s: the nodes admit %d, want %d", scenario, got, want)
		}
	}
	apply := func() *reset.Set {
		set := resetNow(t, r)
		if scenario == "of all" {
			set = &reset.Set{All: set.Of(id(1))}
		}
		for i, n := range nodes {
			if scenario == "late" && i == 1 {
				nodes[0].take(5)
				nodes[2].take(1) // denied, or told of the reset
			}
			n.Reset("z", set)
		}
		return set
	}
	flush := func() {
		if err := r.Client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	spend(100)
	if scenario == "after FLUSHALL" {
		flush()
		spend(100)
	}
	set, want := apply(), 100
	switch scenario {
	case "late":
		want = 94 // the third node was told of the reset, or found an empty log
		if families[rule.Kind] == windows {
			want = 95
		}
	case "twice":
		spend(100)
		apply()
	case "newcomer":
		nodes[2] = &resetNode{Limiter: limiter(t, r.URL), t: t, rule: rule}
		nodes[2].Reset("z", set)
	case "before FLUSHALL":
		flush()
	case "refunds", "penalties":
		for _, n := range nodes {
			for _, g := range n.got {
				if scenario == "refunds" {
					n.Refund(g)
				} else {
					n.Penalize(g)
				}
			}
		}
		time.Sleep(50 * time.Millisecond) // nothing is to come of them
	}
	spend(want)
}

// What is counted in an epoch after that of the reset stays, and what is over is forgotten.
func TestAResetOfAnEarlierEpoch(t *testing.T) {
	r := redistest.Start(t)
	n := &resetNode{Limiter: limiter(t, r.URL), t: t, rule: kinds["fixed window"]}
	n.take(60)
	set := resetNow(t, r)
	one := set.Keys[id(1)]
	one.At -= int64(long)
	set.Keys[id(1)] = one
	n.Reset("z", set)
	if got := n.take(100); got != 40 {
		t.Errorf("a reset of the epoch before leaves %d, want 40", got)
	}
	n.Reset("z", nil)
	if n.resets.Load() != nil {
		t.Error("a zone without resets is remembered")
	}
}
