package gaugesync

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// ttl is how long a hash stays after its last message: twice as long as that counts. It is not set
// with each message, so it may be half of that, see gauge.lua.
const ttl = 2 * gauge.Lease

// A Syncer syncs the tables of one Redis and namespace.
type Syncer struct {
	client  redis.UniversalClient
	keys    ratesync.Keyspace
	cluster bool
	timeout time.Duration
	now     func() int64
	// replicator knows what can't be reached and how many nodes there are, and logs what fails.
	replicator *ratesync.Replicator
	// strictTimeout is how long a request waits for an answer, in nanoseconds.
	strictTimeout atomic.Int64
	// trips is how often a shard was lost to requests, and timeouts how many have waited for an
	// answer until the timeout.
	trips, timeouts atomic.Int64

	mu       sync.Mutex
	sources  map[*Source]struct{}
	flushing *flush // the last one
}

// New does no network I/O. timeout bounds a call in the background and strict one that a request
// waits for; now is the node's clock in nanoseconds.
func New(client redis.UniversalClient, namespace string, timeout, strict time.Duration, now func() int64, r *ratesync.Replicator) *Syncer {
	_, cluster := client.(*redis.ClusterClient)
	s := &Syncer{
		client: client, keys: ratesync.NewKeyspace(namespace), cluster: cluster, timeout: timeout, now: now,
		replicator: r, sources: make(map[*Source]struct{}),
	}
	s.SetTimeout(strict)
	return s
}

// SetTimeout changes how long requests wait for an answer.
func (s *Syncer) SetTimeout(strict time.Duration) { s.strictTimeout.Store(int64(strict)) }

// A Source is what the sync knows of one table. It lives as long as its table: the name of its node
// and its sequence numbers go on when a reload attaches it to another Syncer.
type Source struct {
	table *gauge.Table
	zone  string
	node  string
	seq   atomic.Int64
	wake  ratesync.Waker

	mu sync.Mutex // one Attach or Detach at a time
	at atomic.Pointer[attachment]
}

// attachment is a Source at a Syncer.
type attachment struct {
	to     *Syncer
	cancel func()
	done   chan struct{} // closed when the loop has ended

	rate     atomic.Int64  // nanoseconds
	lost     atomic.Uint64 // the shards for which the last sync failed, a bit each
	progress ratesync.Progress

	failing bool // the last cycle has failed; of the loop alone
}

// NewSource returns the Source of a zone's table, with a random name of a node.
func NewSource(t *gauge.Table, zone string) *Source {
	return &Source{table: t, zone: zone, node: ratesync.NewNode(), wake: ratesync.NewWaker()}
}

// Node is the field of this table in the store.
func (src *Source) Node() string { return src.node }

// Wake asks for a sync of the urgent keys. It never waits.
func (src *Source) Wake() { src.wake.Wake() }

// Nodes is how many nodes there are, as far as this one knows.
func (src *Source) Nodes() int64 {
	if at := src.at.Load(); at != nil {
		return at.to.replicator.Nodes()
	}
	return 1
}

// Lost returns the shards for which the last sync failed or whose server does not answer, for
// ratesync.LostFor. A table that is not attached has lost nothing.
func (src *Source) Lost() uint64 {
	at := src.at.Load()
	if at == nil {
		return 0
	}
	return at.lost.Load() | at.to.replicator.Lost()
}

// Status returns how far the sync has come, nil where the table is not attached.
func (src *Source) Status() *ratesync.TableStatus {
	if at := src.at.Load(); at != nil {
		return at.progress.Status()
	}
	return nil
}

// Attach begins to sync a table every rate, or changes the rate. A table that was attached to
// another Syncer leaves it, and has been flushed there. Attach waits for the network only for
// that.
func (s *Syncer) Attach(src *Source, rate time.Duration) {
	src.mu.Lock()
	defer src.mu.Unlock()
	old := src.at.Load()
	if old != nil && old.to == s {
		old.rate.Store(int64(rate))
		src.Wake()
		return
	}
	if old != nil {
		old.to.leave(src, old)
		src.table.Restart()
	}
	ctx, cancel := context.WithCancel(context.Background())
	at := &attachment{to: s, cancel: cancel, done: make(chan struct{})}
	at.rate.Store(int64(rate))
	src.at.Store(at)
	s.replicator.Start()
	s.mu.Lock()
	s.sources[src] = struct{}{}
	s.mu.Unlock()
	go func() {
		defer close(at.done)
		s.serve(ctx, src, at)
	}()
}

// Detach ends the sync of a table, wherever it is attached, and says before what has changed, with
// all other tables of that Redis: within two seconds for all that are detached one after the other.
func (src *Source) Detach() {
	src.mu.Lock()
	defer src.mu.Unlock()
	if at := src.at.Load(); at != nil {
		at.to.leave(src, at)
		src.at.Store(nil)
	}
}

// DetachFrom is Detach if the table is attached to s, and nothing otherwise.
func (src *Source) DetachFrom(s *Syncer) {
	if at := src.at.Load(); at != nil && at.to == s {
		src.Detach()
	}
}

// leave flushes a table and ends its loop.
func (s *Syncer) leave(src *Source, at *attachment) {
	s.flush(src)
	at.cancel()
	<-at.done
	s.mu.Lock()
	delete(s.sources, src)
	s.mu.Unlock()
}
