package ratesync

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// counted counts the calls that look for what was told, one by one and in pipelines.
type counted struct{ alone, pipelines, piped atomic.Int64 }

func isTold(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 1 && (args[1] == toldScript.Hash() || args[1] == toldLua)
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
			c.piped.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}

// A region may be a Cluster, watched by Sentinel, or reached by TLS: what each counts is told to
// the others, also after a failover. In a Cluster the relay looks at all shards by one pipeline.
func TestRegionsOfAllKinds(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	sentinel := redistest.StartSentinel(t)
	secure := redistest.Start(t, redistest.TLS(true))
	counts := new(counted)
	connect := map[string]func() redis.UniversalClient{
		"cluster": func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs})
		},
		"sentinel": func() redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: sentinel.Name, SentinelAddrs: []string{sentinel.Sentinel.Addr}})
		},
		"secure": func() redis.UniversalClient { return secure.Client() },
	}
	alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: 1000 * time.Hour}
	nodes := map[string]*member[algorithms.WindowState]{}
	for here := range connect {
		client := connect[here]()
		if here == "cluster" {
			client.AddHook(counts)
		}
		m := &member[algorithms.WindowState]{table: tableOf[algorithms.WindowState](alg, 1000)}
		m.source = NewSource(m.table, SpecOf("z", alg))
		m.rep = NewReplicator(client, "test", time.Second, clock.Now, zap.NewNop())
		others := map[string]redis.UniversalClient{}
		for there := range connect {
			if there != here {
				others[there] = connect[there]()
			}
		}
		m.rep.Relay(Regions{Here: here, Others: others, Rate: 200 * time.Millisecond})
		m.source.Tell(1)
		m.table.Configure(table.SyncConfig{Params: alg, Rate: 100 * time.Millisecond, Early: true, Regions: 3, Wake: m.source.Wake, After: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}, 1000)
		m.rep.Attach(m.source, 100*time.Millisecond)
		t.Cleanup(func() {
			m.source.Detach()
			m.rep.Close()
			_ = client.Close()
			for _, other := range others {
				_ = other.Close()
			}
		})
		nodes[here] = m
	}
	want := map[string]int64{}
	take := func(here string, n int) {
		for k := range 20 { // of many shards
			raw := fmt.Sprint("k", k)
			if nodes[here].table.Take(alg.Compile(), keys.KeyOf([]byte(raw)), []byte(raw), clock.Now(), int64(n), 0).Allowed {
				want[raw] += int64(n)
			}
		}
	}
	await := func(what string) {
		t.Helper()
		for here, m := range nodes {
			redistest.Eventually(t, fmt.Sprintf("%s: all is known in %s", what, here), func() bool {
				for raw, n := range want {
					sum, _ := m.rep.client.HGet(t.Context(), string(m.rep.keys.Table(m.source.spec).appendEpoch(nil, keys.IDOf([]byte(raw)), clock.Now()/int64(alg.Window))), "sum").Result()
					if first(sum) != n {
						return false
					}
				}
				return true
			})
		}
	}
	for here := range nodes {
		take(here, 3)
	}
	await("at first")
	sentinel.Failover()
	for here := range nodes {
		take(here, 2)
	}
	await("after a failover")
	if alone, pipelines, piped := counts.alone.Load(), counts.pipelines.Load(), counts.piped.Load(); alone > 0 || piped != ShardCount*pipelines {
		t.Errorf("the relay has looked %d times at one shard, and %d times at %d", alone, pipelines, piped)
	}
}
