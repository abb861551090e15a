package main

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A node is what a Caddy has between its handler and Redis: a table of one limit and its sync,
// with connections of its own.
type node struct {
	ask        func(key []byte) bool
	replicator *ratesync.Replicator
	source     *ratesync.Source
	client     redis.UniversalClient
}

// A kind is an algorithm, as a sync sees it.
type kind struct {
	name string
	open func(url string, o options) (*node, error)
}

// options of a node.
type options struct {
	limit  int64
	window time.Duration
	rate   time.Duration // sync_rate
	early  bool
}

// idle is a limit that is never near, so that a key is synced once in each interval.
var idle = options{limit: 1 << 30, window: time.Hour, rate: time.Second}

var (
	windows = kind{"windows", func(url string, o options) (*node, error) {
		alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: o.limit, Window: o.window, SubWindows: 1}
		return open[algorithms.WindowState](url, o, alg)
	}}
	buckets = kind{"buckets", func(url string, o options) (*node, error) {
		alg := algorithms.Params{Kind: algorithms.TokenBucket, Limit: o.limit, Window: o.window, Burst: o.limit}
		return open[algorithms.BucketState](url, o, alg)
	}}
)

func open[S any](url string, o options, alg algorithms.Params) (*node, error) {
	client, err := connect(url)
	if err != nil {
		return nil, err
	}
	tab := table.New[S](alg.Kind, 1_000_000)
	source := ratesync.NewSource(tab, ratesync.Spec{Zone: "zone", Kind: alg.Kind.Traits().Code, Window: o.window, SubWindows: 1, Live: 1})
	tab.Configure(table.SyncConfig{Params: alg, Rate: o.rate, Early: o.early, Waker: source.Waker}, 1_000_000)
	n := &node{client: client, source: source, replicator: ratesync.NewReplicator(client, "caddy", time.Second, now, zap.NewNop())}
	limit := alg.Compile()
	n.ask = func(key []byte) bool { return tab.Take(limit, keys.KeyOf(key), key, now(), 1, 0).Allowed }
	n.replicator.Attach(source, o.rate)
	return n, nil
}

func now() int64 { return time.Now().UnixNano() }

// connect is as a configuration does it.
func connect(url string) (redis.UniversalClient, error) {
	settings, err := redisconn.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return settings.Client()
}

// touch asks for one request of each of some keys.
func (n *node) touch(keys int) {
	raw := make([]byte, 8)
	for i := range keys {
		binary.BigEndian.PutUint64(raw, uint64(i))
		n.ask(raw)
	}
}

func (n *node) close() {
	n.source.Detach()
	n.replicator.Close()
	_ = n.client.Close()
}

// usage is what a server has used since it started.
type usage struct {
	cpu     float64 // seconds
	in, out float64 // bytes, as the server sees it
	memory  float64
}

func usageOf(s *redistest.Server) usage {
	return parseInfo(s.Do("INFO", "all").(string))
}

// parseInfo reads what INFO says.
func parseInfo(text string) (u usage) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a version, a name
		}
		switch name {
		case "used_cpu_user", "used_cpu_sys":
			u.cpu += v
		case "total_net_input_bytes":
			u.in = v
		case "total_net_output_bytes":
			u.out = v
		case "used_memory":
			u.memory = v
		}
	}
	return u
}

func (u usage) since(before usage) usage {
	return usage{u.cpu - before.cpu, u.in - before.in, u.out - before.out, u.memory}
}
