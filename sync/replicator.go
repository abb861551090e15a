package ratesync

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

var (
	//go:embed record.lua
	recordLua string
	//go:embed heartbeat.lua
	heartbeatLua string

	// HeartbeatLua is the script of heartbeats.
	HeartbeatLua    = recordLua + heartbeatLua
	heartbeatScript = redis.NewScript(HeartbeatLua)
)

const (
	batchSize         = cycle.BatchSize
	minWait           = cycle.MinWait
	heartbeatInterval = cycle.Heartbeat
	// pauseTime is how long syncs wait for the control record, after a start or a loss of the
	// server.
	pauseTime = time.Second
	// parallel is how many calls of one table are in flight at once.
	parallel = 4
)

// A Replicator syncs the counts of all tables that share one Redis and one namespace. Its loops run
// from Start or the first Attach until Close; it never returns an error to a request.
type Replicator struct {
	client  redis.UniversalClient
	keys    Keyspace
	cluster bool
	timeout time.Duration
	now     func() int64
	logger  *zap.Logger

	// unreachable are the shards whose server the heartbeat does not reach, a bit each: in a
	// Cluster some of them, otherwise all or none.
	unreachable atomic.Uint64
	nodes       atomic.Int64
	trip        atomic.Int64 // nanoseconds, see RoundTrip
	reachedAt   atomic.Int64 // when all shards were reached first, by the node's clock; 0 never
	stats       callStats

	// seq and answered number the heartbeats, the last one sent and the last one answered.
	// knownSince is since when the server knows of all that it has answered. answeredAt and
	// serverAt are when it answered last, by this node's clock and the server's. Only the
	// heartbeat's goroutine uses them.
	seq, answered, knownSince, serverAt int64
	answeredAt                          time.Time

	// record goes along with the heartbeats, and beat asks for one.
	record Record
	beat   cycle.Waker
	// eviction is whether it is known what the server does when its memory is full, or to be asked.
	eviction atomic.Int32
	// paused is while syncs wait for the record, nil for not at all. Only Start and the heartbeat's
	// goroutine store it. recordRead is closed when the record was read for the first time.
	paused     atomic.Pointer[pause]
	recordRead chan struct{}
	recordOnce sync.Once

	counts group  // the tables
	relay  *relay // nil where limits go over this region only

	mu     sync.Mutex
	node   string
	health Health
	clock  serverClock
	stop   context.CancelFunc

	loops sync.WaitGroup // heartbeats and the relay
	work  Work           // these loops, those of detached syncers, and calls that requests wait for
}

type callStats struct {
	calls, keys, failures, failedKeys atomic.Int64
	last                              atomic.Int64
}

// Status is the state of a Replicator.
type Status struct {
	// Up reports whether everything was synced the last time it was tried; Failing names what was
	// not and why.
	Up      bool              `json:"up"`
	Failing map[string]string `json:"failing,omitempty"`
	Nodes   int64             `json:"nodes"`
	// Syncs are the calls that were answered, Keys the counts in them, Failures the calls that were
	// not.
	Syncs    int64 `json:"syncs"`
	Keys     int64 `json:"keys"`
	Failures int64 `json:"failures"`
	// FailedKeys are the counts in answered calls that Redis rejected, or whose reply made no
	// sense.
	FailedKeys int64 `json:"failed_keys"`
	// Last is when the last call was answered, zero if never.
	Last time.Time `json:"last"`
	// Offset is how far the server's clock is ahead of this node's, as a duration like 1.5ms.
	Offset string `json:"clock_offset"`
}

// Lately says what failed, a line for each reason, where Redis answers all the same: what is
// reported as failing is so for up to reportTTL after it works again. It returns nil where Redis
// doesn't answer, and where nothing failed.
func (s *Status) Lately() (lines []string) {
	if s.Failing[HeartbeatName] != "" || s.Failing[ShardsName] != "" {
		return nil
	}
	of := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Failing)) {
		of[s.Failing[name]] = append(of[s.Failing[name]], name)
	}
	for _, why := range slices.Sorted(maps.Keys(of)) {
		what := of[why][0]
		if more := len(of[why]) - 1; more > 0 {
			what += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, fmt.Sprintf("Redis answered the last heartbeat, and failed a moment ago for %s: %s.", what, strings.TrimSuffix(why, ".")))
	}
	return lines
}

// NewReplicator doesn't touch the network. now is the node's clock, in nanoseconds since the epoch;
// timeout bounds a call to the server.
func NewReplicator(client redis.UniversalClient, namespace string, timeout time.Duration, now func() int64, log *zap.Logger) *Replicator {
	_, cluster := client.(*redis.ClusterClient)
	r := &Replicator{
		client: client, keys: NewKeyspace(namespace).In(cluster), answered: -1, cluster: cluster, timeout: timeout, now: now, logger: log,
		node: NewNode(), record: noRecord{}, beat: cycle.NewWaker(), recordRead: make(chan struct{}),
	}
	r.counts = group{r: r, links: make(map[*link]struct{})}
	return r
}

// SetRecord has a record go along with the heartbeats. It is to be called before Start.
func (r *Replicator) SetRecord(record Record) { r.record = record }

// Close ends the loops. Tables still attached are not flushed. It doesn't wait for calls under way
// beyond FlushEnds; they end with the client's connections.
func (r *Replicator) Close() {
	deadline := r.FlushEnds()
	r.mu.Lock()
	stop := r.stop
	r.stop = nil
	r.mu.Unlock()
	if stop != nil {
		stop()
		r.work.End(deadline)
	}
}

// Status returns the state of the sync.
func (r *Replicator) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	failing := r.health.Reasons()
	s := Status{
		Up: len(failing) == 0, Failing: failing, Nodes: r.nodes.Load(),
		Syncs: r.stats.calls.Load(), Keys: r.stats.keys.Load(), Failures: r.stats.failures.Load(), FailedKeys: r.stats.failedKeys.Load(),
		Offset: r.clock.Offset.String(),
	}
	if last := r.stats.last.Load(); last != 0 {
		s.Last = time.Unix(0, last)
	}
	return s
}

// Nodes is how many nodes share the namespace, as far as this one knows; at least 1.
func (r *Replicator) Nodes() int64 { return max(1, r.nodes.Load()) }

// Unreachable are the shards that the heartbeat does not reach, a bit each.
func (r *Replicator) Unreachable() uint64 { return r.unreachable.Load() }
