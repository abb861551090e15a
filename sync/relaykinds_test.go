//go:build chaos

package ratesync

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// counted counts the calls that look for what was told, one by one and in pipelines.
type counted struct{ alone, pipelines, short atomic.Int64 }

func isTold(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 1 && (args[1] == toldScript.Hash() || args[1] == fieldsLua+toldLua)
}

func (c *counted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isTold(cmd) {
			c.alone.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) > 0 && isTold(cmds[0]) {
			c.pipelines.Add(1)
			if len(cmds) != ShardCount {
				c.short.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// kinds are regions of one node each, by their names.
type kinds struct {
	t     *testing.T
	alg   algorithms.Params
	nodes map[string]*member[algorithms.WindowState]
	want  map[string]int64 // by key, what all have counted
	log   *observer.ObservedLogs
}

func startKinds(t *testing.T, connect map[string]func() redis.UniversalClient, count *counted) *kinds {
	k := &kinds{t: t, alg: algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 1000 * time.Hour}, nodes: make(map[string]*member[algorithms.WindowState]), want: make(map[string]int64)}
	core, log := observer.New(zap.ErrorLevel)
	k.log = log
	for here := range connect {
		client := connect[here]()
		m := &member[algorithms.WindowState]{table: tableOf[algorithms.WindowState](k.alg, 1000)}
		m.source = NewTableSyncer(m.table, SpecOf("z", k.alg))
		m.rep = NewReplicator(client, "test", time.Second, clock.Now, zap.New(core))
		others := map[string]redis.UniversalClient{}
		for there := range connect {
			if there != here {
				if others[there] = connect[there](); there == "cluster" {
					others[there].AddHook(count)
				}
			}
		}
		m.rep.Relay(Regions{Here: here, Others: others, Interval: 200 * time.Millisecond})
		m.source.SetLeastTold(1)
		m.table.Configure(table.SyncConfig{
			Params: k.alg, Interval: 100 * time.Millisecond, Early: true, Regions: len(connect), Waker: m.source.Waker,
			After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		}, 1000)
		m.rep.Attach(m.source, 100*time.Millisecond)
		t.Cleanup(func() {
			m.source.Detach()
			m.rep.Close()
			_ = client.Close()
			for _, other := range others {
				_ = other.Close()
			}
		})
		k.nodes[here] = m
	}
	return k
}

// take counts in each region, for keys of many shards.
func (k *kinds) take(n int) {
	for _, m := range k.nodes {
		for i := range 20 {
			raw := fmt.Sprint("k", i)
			if m.table.Take(k.alg.Compile(), keys.KeyOf([]byte(raw)), []byte(raw), clock.Now(), int64(n), 0).Allowed {
				k.want[raw] += int64(n)
			}
		}
	}
}

func (k *kinds) hash(raw string) string {
	return NewKeyspace("test").Cells(SpecOf("z", k.alg)).Of(keys.IDOf([]byte(raw)))
}

// await waits until each region has what all have counted, except of the key without.
func (k *kinds) await(what, without string) {
	k.t.Helper()
	for here, m := range k.nodes {
		redistest.Eventually(k.t, fmt.Sprintf("%s: all is known in %s", what, here), func() bool {
			for raw, n := range k.want {
				if sum, _ := m.rep.client.HGet(k.t.Context(), k.hash(raw), "sum").Result(); raw != without && first(sum) != n {
					return false
				}
			}
			return true
		})
	}
}

// A region may be a Cluster, watched by Sentinel, or reached by TLS: what each counts is told to
// the others, also after a failover. In a Cluster the relay looks at all shards by one pipeline.
func TestRegionsOfAllKinds(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	sentinel := redistest.StartSentinel(t)
	secure := redistest.Start(t, redistest.TLS(true))
	count := new(counted)
	k := startKinds(t, map[string]func() redis.UniversalClient{
		"cluster": func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs})
		},
		"sentinel": func() redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: sentinel.Name, SentinelAddrs: []string{sentinel.Sentinel.Addr}})
		},
		"secure": func() redis.UniversalClient { return secure.Client() },
	}, count)
	k.take(3)
	k.await("at first", "")
	sentinel.Failover()
	k.take(2)
	k.await("after a failover", "")
	if alone, pipelines, short := count.alone.Load(), count.pipelines.Load(), count.short.Load(); alone > 0 || short > 0 || pipelines == 0 {
		t.Errorf("the relay has looked %d times at one shard, and %d times at several, of which %d not at all", alone, pipelines, short)
	}
}

// A key that another region rejects, as another program uses it, keeps nothing else from being
// told. It is told with what is spent once it can be.
func TestARejectedKeyHoldsNothingUp(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	k := startKinds(t, map[string]func() redis.UniversalClient{
		"a": func() redis.UniversalClient { return a.Client() }, "b": func() redis.UniversalClient { return b.Client() },
	}, nil)
	k.take(1)
	k.await("at first", "")
	b.Do("DEL", k.hash("k7"))
	b.Do("SET", k.hash("k7"), "of another program")
	k.take(2)
	k.await("beside a rejected key", "k7")
	b.Do("DEL", k.hash("k7"))
	k.take(1)
	k.await("once it is free", "")
}

// A region that a third one does not read, as it has the name of one that it reads, is found out,
// as nothing in them shows it: where a node with the wrong `here` has a Redis of its own.
func TestTwoRegionsOfOneName(t *testing.T) {
	t.Parallel()
	eu, us, asia := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	in := func(here *redistest.Server) *kinds {
		return startKinds(t, map[string]func() redis.UniversalClient{
			"eu": func() redis.UniversalClient { return here.Client() }, "us": func() redis.UniversalClient { return us.Client() },
		}, nil)
	}
	lines := func(k *kinds) int {
		return k.log.FilterMessageSnippet("reads another redis under the name of this one").Len()
	}
	first := in(eu)
	first.take(1)
	first.await("at first", "")
	if n := lines(first); n > 0 {
		t.Errorf("it is logged %d times for regions with names of their own", n)
	}
	second := in(asia)
	redistest.Eventually(t, "it is logged", func() bool { return lines(first)+lines(second) > 0 })
}
