package strict

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Limiter lets Redis decide, request by request (sync_rate strict): atomically, by Redis' own
// clock, all limits of a zone in one call.
//
// For each key one call is in flight at a time; requests that come meanwhile share the next one. A
// call says what the node has spent of the key, and what it was granted is a part of that from then
// on. Of a call that was sent and not answered nobody knows whether it counted: what is said next
// takes it back. When Redis is unavailable, Ask fails at once, and the caller decides by its own
// counters. After CloseBy it fails with ErrClosed.
//
// It is safe for concurrent use.
type Limiter struct {
	client  redis.UniversalClient
	keys    ratesync.Keyspace
	node    string
	timeout atomic.Int64 // nanoseconds
	cluster bool

	// bans are those of the zones that have some; nil where none has.
	bans     atomic.Pointer[map[string]*ban.Register]
	circuits [ratesync.ShardCount]circuit
	trips    atomic.Int64
	timeouts atomic.Int64
	backlog  backlogs

	ctx        context.Context // ends when CloseBy gives up
	cancel     context.CancelFunc
	probes     context.Context // ends when CloseBy begins
	stopProbes context.CancelFunc

	work ratesync.Work // that CloseBy waits for

	byZone sync.Map // of *keyQueues

	mu sync.Mutex // of who changes bans
}

// New makes a Limiter of a namespace. It does no network I/O. timeout bounds a call from the moment
// at which it has its connection. A backlog is logged.
func New(client redis.UniversalClient, namespace string, timeout time.Duration, log *zap.Logger) *Limiter {
	s := &Limiter{client: client, keys: ratesync.NewKeyspace(namespace), node: ratesync.NewNode(), backlog: backlogs{log: log}}
	_, s.cluster = client.(*redis.ClusterClient)
	s.SetTimeout(timeout)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.probes, s.stopProbes = context.WithCancel(s.ctx)
	n := s.callsAtOnce()
	for i := range s.circuits {
		s.circuits[i].semaphore.free = n
	}
	return s
}

// SetTimeout changes the timeout of the calls to come.
func (s *Limiter) SetTimeout(timeout time.Duration) { s.timeout.Store(int64(timeout)) }

// Timeout is how long a request waits for an answer.
func (s *Limiter) Timeout() time.Duration { return time.Duration(s.timeout.Load()) }

// callsAtOnce is how many calls one circuit may have under way. It keeps them from waiting for a
// connection longer than for Redis: a pool has as many connections, and the pool of a Cluster's
// node serves a part of the circuits.
func (s *Limiter) callsAtOnce() int {
	switch c := s.client.(type) {
	case *redis.Client:
		return max(1, c.Options().PoolSize)
	case *redis.ClusterClient:
		return max(1, c.Options().PoolSize/8)
	}
	return 10
}

// UnavailableFor is why Redis can't be asked about a key, nil if it can.
func (s *Limiter) UnavailableFor(id keys.ID) error {
	c, _ := s.circuitOf(id)
	return cmp.Or(s.ended(), c.unavailable())
}

// result is what became of a call.
type result int

const (
	answered   result = iota
	rejected          // Redis rejects what is done to this key, and has done nothing
	unanswered        // nobody knows whether it was done, and Redis does not answer
	late              // nobody knows whether it was done, but Redis answers
	outdated          // Redis has done nothing, as the key was reset since
)

// resultOf finds out what became of a call.
func (s *Limiter) resultOf(id keys.ID, err error) result {
	switch {
	case err == nil:
		return answered
	case s.ctx.Err() != nil:
		return unanswered
	case !s.isSevere(err):
		return rejected
	case redisconn.IsLate(err) && s.isThere(id, err):
		return late
	}
	s.trip(id, err)
	return unanswered
}

// Status tells of the circuits that keep requests from waiting for a Redis that does not answer.
type Status struct {
	// Open is how many of them are open, and probed: of one, in a Cluster of one for each of its 64
	// shards.
	Open int `json:"open"`
	Of   int `json:"of"`
	// Trips is how often one has opened, Timeouts how many requests have waited for Redis until the
	// timeout.
	Trips    int64 `json:"trips"`
	Timeouts int64 `json:"timeouts"`
}

// Status tells how the circuits stand.
func (s *Limiter) Status() Status {
	c := Status{Of: 1, Trips: s.trips.Load(), Timeouts: s.timeouts.Load()}
	if s.cluster {
		c.Of = len(s.circuits)
	}
	for i := range s.circuits {
		if s.circuits[i].down.Load() {
			c.Open++
		}
	}
	return c
}

// CloseBy lets the calls under way end and ends all work, until a deadline.
func (s *Limiter) CloseBy(deadline time.Time) {
	s.stopProbes()
	// A call that waits for its reply can't be called off, and ends by its own deadline.
	s.work.End(deadline)
	s.cancel()
}
