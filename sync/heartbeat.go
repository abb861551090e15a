package ratesync

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Start begins to tell other nodes that this one is there, and reports whether it had not begun.
func (r *Replicator) Start() (begins bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil || r.work.HasEnded() {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.pauseSyncs()
	if r.relay != nil {
		r.loops.Go(func() { r.relay.run(ctx) })
	}
	r.loops.Go(func() { r.heartbeats(ctx) })
	return r.work.Go(func() { r.loops.Wait() })
}

// StartAndWait is Start that waits until Redis has answered a heartbeat and the control record is
// read, so that the first request can be synced at once. It waits no longer than most, and not at
// all where the heartbeats have begun before. It reports whether there is nothing more to wait for.
func (r *Replicator) StartAndWait(most time.Duration) bool {
	if !r.Start() {
		return true
	}
	select {
	case <-r.recordRead:
		return true
	case <-time.After(most):
		return false
	}
}

// A Record goes along with the heartbeats: the control record of a namespace.
type Record interface {
	// Ask returns what the next heartbeat says and asks of the record: ARGV 5 to 7 of
	// heartbeat.lua.
	Ask() []any
	// Merge merges the answer. It returns how long the next heartbeat may wait.
	Merge(a HeartbeatReply) time.Duration
	// IsEqual reports whether the record is the same here and there.
	IsEqual() bool
	// OfRegion returns what reads the record of another region.
	OfRegion() RegionRecord
	// ReadBy notes up to which revision of the record each other region has read it, 0 where that
	// is not known.
	ReadBy(regions map[string]int64)
}

// A RegionRecord merges the record of another region into that of this one.
type RegionRecord interface {
	// Version is up to which version the record was read there, "" for nothing.
	Version() string
	// Receive merges what was read: the record's version, and its entries after that one.
	Receive(version string, entries []any)
	// Revision is up to which one of the record there this region has all of it, 0 where nothing
	// is known.
	Revision() int64
}

// A HeartbeatReply is what the answer to a heartbeat says of the control record.
type HeartbeatReply struct {
	Node string
	// Server and Now are the server's time and this node's, in nanoseconds since the Unix epoch.
	Server, Now int64
	// Nodes is how many nodes there are, and KnownSince since when the server knows all heartbeats
	// of this node that it has answered, in milliseconds of its clock: another one where it has
	// forgotten.
	Nodes, KnownSince int64
	// Record is the record's version, entries, whether these are all, and leases, see
	// heartbeat.lua.
	Record []any
}

// heartbeats renews this node's lease every second, and reads the server's time, how many
// nodes there are, and whether the server has forgotten. At the end it gives the lease up.
func (r *Replicator) heartbeats(ctx context.Context) {
	defer r.endLease()
	for {
		before, since, again, nodes := r.unreachable.Load(), r.knownSince, r.resendDue(), r.Nodes()
		wait, err := r.heartbeat(ctx)
		r.note(nil, HeartbeatName, err)
		if err == nil {
			r.log((*Health).Expire)
			r.log((*Health).SumFlaps)
			r.checkEviction(ctx)
		}
		if r.knownSince != since || again && (err == nil || r.cluster) {
			r.resend(max(nodes, r.Nodes())) // a server that has forgotten knows of few
		}
		if ctx.Err() == nil {
			r.findUnreachable(ctx, err)
		}
		now := r.unreachable.Load()
		if back := before &^ now; back != 0 {
			r.retry(back)
		}
		if err != nil || now != 0 {
			wait = minWait
		}
		select {
		case <-ctx.Done():
			return
		case <-r.beat:
		case <-time.After(wait):
		}
	}
}

// States of eviction.
const (
	evictionUnasked = iota
	evictionAsked
	evictionKnown
)

// checkEviction warns once of a server that evicts keys, where windows of a calendar are counted:
// all keys here expire, so it may evict them under any other policy. A user that may not ask is
// told nothing.
func (r *Replicator) checkEviction(ctx context.Context) {
	if !r.eviction.CompareAndSwap(evictionAsked, evictionKnown) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	info := redis.NewStringCmd(ctx, "info", "memory")
	_ = r.client.Process(ctx, info)
	_, policy, _ := strings.Cut(info.Val(), "maxmemory_policy:")
	if policy, _, _ = strings.Cut(policy, "\r"); policy != "" && policy != "noeviction" {
		r.logger.Warn("redis may evict counts of a day or longer when its memory is full; set maxmemory-policy noeviction there",
			warning.Field(warning.ShortLived), zap.String("maxmemory_policy", policy))
	}
}

// Beat has the next heartbeat come at once. It never waits.
func (r *Replicator) Beat() { r.beat.Wake() }

// endLease takes this node's lease away, unless the server that has the leases is known to be
// unreachable: that of the first shard.
func (r *Replicator) endLease() {
	if r.answered < 0 || r.unreachable.Load()&1 != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(r.timeout, closeLeast))
	defer cancel()
	_ = heartbeatScript.Run(ctx, r.client, r.heartbeatKeys(), r.node, r.seq, 0).Err()
}

func (r *Replicator) heartbeatKeys() []string {
	return []string{r.keys.Nodes(0), r.keys.Control(), r.keys.Counted()}
}

// findUnreachable notes which shards are unreachable, after a heartbeat: all where there is one
// server, and in a Cluster those whose server does not answer.
func (r *Replicator) findUnreachable(ctx context.Context, err error) {
	switch {
	case r.cluster:
		shards, why := r.unanswered(ctx)
		if ctx.Err() == nil {
			r.unreachable.Store(shards)
			r.note(nil, ShardsName, why)
		}
	case err == nil:
		r.unreachable.Store(0)
	default:
		r.unreachable.Store(allShards)
	}
	if err == nil && r.unreachable.Load() == 0 {
		r.reachedAt.CompareAndSwap(0, r.now())
	}
}

// heartbeat is one of them. It returns how long the next one may wait.
func (r *Replicator) heartbeat(ctx context.Context) (wait time.Duration, err error) {
	called, cancel := context.WithTimeout(ctx, min(r.timeout, heartbeatInterval))
	defer cancel()
	r.seq++ // only the heartbeat's own goroutine uses it
	args := append(append([]any{r.node, r.seq, Lease.Milliseconds(), r.answered}, r.record.Ask()...), r.knownSince)
	start := r.now()
	reply, err := heartbeatScript.Run(called, r.client, r.heartbeatKeys(), args...).Slice()
	end := r.now()
	if err != nil {
		return 0, err
	}
	if len(reply) != 9 {
		return 0, ErrReply
	}
	server, ok := parseTime(reply[0], reply[1])
	_, ok2 := reply[2].(int64)
	nodes, ok3 := reply[3].(int64)
	knownSince, ok4 := reply[4].(int64)
	if !ok || !ok2 || !ok3 || !ok4 {
		return 0, ErrReply
	}
	r.nodes.Store(nodes)
	forgot := r.answered >= 0 && knownSince != r.knownSince
	if r.unreachable.Load()&1 != 0 || forgot { // the first shard has the record
		r.pauseSyncs()
	}
	if forgot {
		// After so long the lease has ended, or the server has forgotten: nobody can tell, also
		// where a late heartbeat has begun another lease since. A step of the server's clock ends
		// leases as well.
		r.noteLoss(time.Since(r.answeredAt) < Lease && server-r.serverAt < int64(Lease))
	} else if r.answered < 0 && r.seq > 1 && r.stats.calls.Load() > 0 {
		r.noteLoss(false) // syncs waited no longer, and what they confirmed may be forgotten
	}
	r.answered, r.knownSince, r.answeredAt, r.serverAt = r.seq, knownSince, time.Now(), server
	r.keepTime(server, start, end)
	wait = r.record.Merge(HeartbeatReply{r.node, server, start + (end-start)/2, nodes, knownSince, reply[5:]})
	if r.relay != nil {
		r.relay.wait(wait < heartbeatInterval)
	}
	equal := r.record.IsEqual()
	if h := r.paused.Load(); equal && h != nil {
		r.paused.Store(nil)
		close(h.over)
	}
	if equal || wait >= heartbeatInterval { // else there is more to read
		r.recordOnce.Do(func() { close(r.recordRead) })
	}
	return wait, nil
}

// A pause is a time in which nothing is synced.
type pause struct {
	until time.Time
	over  chan struct{} // closed when it ends before that
}

// pauseSyncs has nothing be synced until the control record is the same here and in Redis, or
// pauseTime has passed: a reset that this node has not read yet may have ended what it would send.
func (r *Replicator) pauseSyncs() {
	if r.record.IsEqual() {
		return
	}
	h := &pause{until: time.Now().Add(pauseTime), over: make(chan struct{})}
	if last := r.paused.Load(); last != nil {
		h.over = last.over
	}
	r.paused.Store(h)
}

// awaitPause waits until the pause is over.
func (r *Replicator) awaitPause(ctx context.Context) {
	for h := r.paused.Load(); h != nil && time.Until(h.until) > 0; h = r.paused.Load() {
		select {
		case <-ctx.Done():
			return
		case <-h.over:
		case <-time.After(time.Until(h.until)):
		}
	}
}

// noRecord is where nothing goes along.
type noRecord struct{}

func (noRecord) Ask() []any                         { return []any{"", "", ""} }
func (noRecord) Merge(HeartbeatReply) time.Duration { return heartbeatInterval }
func (noRecord) IsEqual() bool                      { return true }
func (noRecord) ReadBy(map[string]int64)            {}

func (noRecord) OfRegion() RegionRecord { return noRecord{} }
func (noRecord) Version() string        { return "" }
func (noRecord) Receive(string, []any)  {}
func (noRecord) Revision() int64        { return 0 }

// retry has every table that misses one of these shards try again at once: they are back, and the
// next cycle may be an hour away.
func (r *Replicator) retry(back uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.counts.links {
		if a := l.current.Load(); a != nil && a.missed.Load()&back != 0 {
			a.syncAll.Store(true)
			l.Wake()
		}
	}
}
