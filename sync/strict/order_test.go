package strict

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A tapped call is one that Redis has decided: what it asked for, and what it got.
type tapped struct {
	node          string
	seq, rollBack int64
	runs          []run
	budget, at    int64
	lost          bool
}

// A tap notes the calls of all nodes, and may lose the replies of every other one of a node.
type tap struct {
	mu    sync.Mutex
	loses bool
	calls []tapped
	made  map[string]int
}

// node is a Limiter whose calls are noted.
func (x *tap) node(t *testing.T, server *redistest.Server) *Limiter {
	c := client(t, server.URL)
	c.(*redis.Client).AddHook(x)
	s := New(c, "test", 10*time.Second)
	t.Cleanup(s.Close)
	return s
}

func (x *tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (x *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook notes a call that has its answer:
// EVALSHA sha 2 record base field seq want rollback …
func (x *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		reply, ok := cmd.(*redis.Cmd)
		if err != nil || !ok || !strings.HasPrefix(cmd.Name(), "eval") {
			return err
		}
		all, _ := reply.Val().([]any)
		if len(all) < 3 {
			return nil
		}
		args := cmd.Args()
		c := tapped{node: args[5].(string), seq: args[6].(int64), rollBack: args[8].(int64), runs: runsOf(args[7]), budget: all[0].(int64), at: all[1].(int64)}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.made[c.node]++
		c.lost = x.loses && x.made[c.node]%2 == 1
		x.calls = append(x.calls, c)
		if c.lost {
			cmd.SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		}
		return nil
	}
}

// runsOf reads what a batch wants as the script does.
func runsOf(want any) (runs []run) {
	text := fmt.Sprint(want)
	if b, ok := want.([]byte); ok {
		text = string(b)
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return []run{{n, 1}}
	}
	for part := range strings.SplitSeq(text, ",") {
		var r run
		if _, err := fmt.Sscanf(part, "%d:%d", &r.count, &r.cost); err != nil {
			panic(err)
		}
		runs = append(runs, r)
	}
	return runs
}

// Sixty requests at once of random costs on three nodes are decided as by one counter that meets
// them in the order of the calls. One of 2^40 units among them denies nobody else. The same where
// every other reply of each node is lost: what such a call got is rolled back by the next one.
func TestRequestsOfThreeNodesAreDecidedInTheOrderOfTheCalls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, rule := range []Rule{

		{Kind: algorithms.TokenBucket, Limit: 700, Window: long * 1000}, {Kind: algorithms.LeakyBucket, Limit: 1, Window: long * 10, Queue: 699},
	} {
		for _, loses := range []bool{false, true} {
			t.Run(fmt.Sprint(rule.Kind, loses), func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(i), 9))
				costs := random.Perm(60)
				costs[random.IntN(60)] = 1 << 40
				inOrder(t, server, rule, fmt.Sprint("order", i, loses), costs, loses)
			})
		}
	}
}

func inOrder(t *testing.T, server *redistest.Server, rule Rule, zone string, costs []int, loses bool) {
	x := &tap{loses: loses, made: make(map[string]int)}
	var nodes []*Limiter
	for range 3 {
		nodes = append(nodes, x.node(t, server))
	}
	var wg sync.WaitGroup
	admitted := make(map[int64]bool)
	var mu sync.Mutex
	for i, n := range costs {
		wg.Go(func() {
			g, _ := pay(t, nodes[i%3], zone, id(1), int64(n), rule)
			mu.Lock()
			defer mu.Unlock()
			admitted[int64(n)] = g.Admitted()
		})
	}
	wg.Wait()
	x.mu.Lock()
	x.loses = false
	calls := slices.Clone(x.calls)
	x.mu.Unlock()
	want, used := decideInOrder(t, calls, rule.size())
	sum := int64(0)
	for n, got := range admitted {
		if by, met := want[n]; met && got != by || !met && got {
			t.Errorf("cost %d: admitted %t, and by one counter %t (met %t)", n, got, by, met)
		}
		if got {
			sum += n
		} else if !loses && n <= rule.size()-used {
			t.Errorf("cost %d is denied, and %d of %d are used in the end", n, used, rule.size())
		}
	}
	if len(admitted) != len(costs) || admitted[1<<40] || !admitted[0] {
		t.Errorf("%d of %d requests have an answer; 2^40 is admitted: %t, 0: %t", len(admitted), len(costs), admitted[1<<40], admitted[0])
	}
	if in := held(t, nodes[0], zone, id(1), rule); in != sum || used != sum || sum > rule.size() {
		t.Errorf("Redis has %d, one counter %d, %d were admitted, at most %d", in, used, sum, rule.size())
	}
}

// decideInOrder has one counter decide what the calls asked for. It returns what those got that had
// an answer, by cost, and what is used in the end.
func decideInOrder(t *testing.T, calls []tapped, limit int64) (admitted map[int64]bool, used int64) {
	t.Helper()
	slices.SortStableFunc(calls, func(a, b tapped) int { return int(a.at - b.at) })
	admitted = make(map[int64]bool)
	spent := make(map[string]map[int64]int64) // by node and call
	for _, c := range calls {
		if spent[c.node] == nil {
			spent[c.node] = make(map[int64]int64)
		}
		for seq, n := range spent[c.node] {
			if c.rollBack > 0 && seq >= c.rollBack && seq < c.seq {
				used -= n
				delete(spent[c.node], seq)
			}
		}
		before := used
		for _, r := range c.runs {
			for range r.count {
				fits := used+r.cost <= limit
				if fits {
					used += r.cost
				}
				if !c.lost {
					admitted[r.cost] = fits
				}
			}
		}
		spent[c.node][c.seq] = used - before
		if want := min(wantedBy(c.runs), limit-before); c.budget != want {
			t.Errorf("call %+v after %d of %d: want a budget of %d", c, before, limit, want)
		}
	}
	return admitted, used
}
