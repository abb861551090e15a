package ratesync

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A syncer is what a Replicator syncs, each with a loop of its own: the counts of a table, or the
// slots of a zone.
type syncer interface {
	// sync sends what has changed, or with early what should not wait. It returns the shards that
	// the syncer misses then, a bit each, and the last error. note notes how it went.
	sync(ctx context.Context, a *attachment, early bool) (missed uint64, err error)
	note(a *attachment, early bool, err error)
	// urgent reports whether something should not wait for the next sync.
	urgent() bool
	// setMissedTwice sets the shards that two syncs have not reached, one after the other.
	setMissedTwice(shards uint64)
	// unsent is how much the store doesn't have that it should. some reports whether there is
	// anything to send.
	unsent(now int64) (n int64, some bool)
	// storeChanged prepares for another store, which has confirmed nothing.
	storeChanged(now int64)
	// left notes that the syncer has left, and why not all was sent, "" if it was.
	left(from *Replicator, reason string)
}

// A group is the syncers of one kind at a Replicator, which are flushed together.
type group struct {
	r     *Replicator
	slots *Slots // nil for counts

	// The Replicator's mu guards these.
	links    map[*link]struct{}
	flushing *flush // the last one
}

// A link is what one syncer has at Replicators. It lives as long as the syncer: the name of its
// node and its sequence numbers go on when a reload attaches it to another Replicator, so that
// nothing that it says is ever taken for something else.
type link struct {
	syncer      syncer
	name        string // in the list of what fails, "" for one that reports that itself
	node        string
	seq         atomic.Int64
	cycle.Waker // asks for a sync of what is urgent

	mu      sync.Mutex                 // one Attach or Detach at a time
	last    *attachment                // the latest one, also when it has ended
	current atomic.Pointer[attachment] // nil where the syncer is not attached
}

// attachment is a link at a Replicator.
type attachment struct {
	group  *group
	cancel func()
	done   chan struct{} // closed when the loop has ended

	interval atomic.Int64  // nanoseconds
	missed   atomic.Uint64 // the shards that the syncer misses since the last sync, a bit each
	syncAll  atomic.Bool   // all that is dirty is to be synced at once
	// resendRestAt is when what the server has forgotten is sent again that had no request since,
	// by the node's clock; 0 never.
	resendRestAt atomic.Int64
	// catchesUp is set, so that there are no pauses, if the last sync took most of the interval, or
	// while a flush waits for this one.
	catchesUp atomic.Bool

	flushes chan *flushRequest
	// Only the loop uses what follows, the calls that it waits for, and pushLate after it. flushing
	// is set while a flush waits for them.
	flushing bool
	// failed and answered are the shards that have in this cycle, a bit each, and failing is set
	// where the last cycle has failed.
	failed, answered uint64
	failing          bool

	// cycles is how many were completed, and synced when the last of them was that showed something
	// of the store, by the node's clock; 0 never.
	cycles, synced atomic.Int64
}

// A TableStatus is how far the sync of one table has come. A cycle sends all that became dirty
// before it began.
type TableStatus struct {
	// Cycles is how many were completed since the table was attached: all that was outgoing was
	// sent and answered. Where nothing was, that is at once.
	Cycles int64 `json:"cycles"`
	// Synced is when the last of them was completed, zero if none. One in which nothing was sent
	// counts only where the store answers heartbeats.
	Synced time.Time `json:"synced"`
}

// init is for a new syncer, with a random name of a node.
func (l *link) init(of syncer, name string) {
	l.syncer, l.name, l.node, l.Waker = of, name, NewNode(), cycle.NewWaker()
}

// Node is the field of this syncer in the store.
func (l *link) Node() string { return l.node }

// UnavailableShards returns the shards for which the last sync failed or whose server does not
// answer, for HasShardOf; all or none where there is no Cluster. A syncer that is not attached
// misses nothing: its configuration is about to begin or to end.
func (l *link) UnavailableShards() uint64 {
	a := l.current.Load()
	if a == nil {
		return 0
	}
	return a.missed.Load() | a.group.r.unreachable.Load()
}

// IsUnavailable reports whether the shard of a key is one of them: what other nodes have of it
// can't be had.
func (l *link) IsUnavailable(raw []byte) bool {
	unavailable := l.UnavailableShards()
	return unavailable != 0 && HasShardOf(unavailable, keys.IDOf(raw))
}

// Status returns how far the sync has come, nil where the syncer is not attached.
func (l *link) Status() *TableStatus {
	a := l.current.Load()
	if a == nil {
		return nil
	}
	status := &TableStatus{Cycles: a.cycles.Load()}
	synced := a.synced.Load()
	if synced == 0 && status.Cycles > 0 { // who had nothing to send until then knows all as of that
		synced = a.group.r.reachedAt.Load()
	}
	if synced != 0 {
		status.Synced = time.Unix(0, synced)
	}
	return status
}

// attach begins to sync a syncer every interval, or changes that. All that was counted until now is
// sent then, as a zone that asks Redis from now on must find it there. A syncer that was attached
// to another Redis leaves that and brings what it has along. attach doesn't wait for the network.
func (g *group) attach(l *link, interval time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.current.Load()
	if old != nil && old.group == g {
		old.interval.Store(int64(interval))
		old.syncAll.Store(g.slots == nil)
		l.Wake()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &attachment{group: g, cancel: cancel, done: make(chan struct{}), flushes: make(chan *flushRequest)}
	a.interval.Store(int64(interval))
	a.syncAll.Store(g.slots == nil)
	last := l.last
	l.last = a
	l.current.Store(a)
	g.r.Start()
	g.r.mu.Lock()
	g.links[l] = struct{}{}
	g.r.mu.Unlock()
	if old != nil {
		old.leave(l)
	}
	go func() {
		defer close(a.done)
		if last != nil {
			<-last.done // its last answers are in
			if last.group != g {
				l.syncer.storeChanged(g.r.now())
			}
		}
		a.serve(ctx, l)
	}()
}

// Detach ends the sync of a syncer, wherever it is attached, and sends before what is unsent; that
// takes two seconds at most. Syncers that are detached one after the other share these two seconds:
// all that have something unsent are synced when the first of them leaves. Detach doesn't wait for
// a server that can't be reached. Counts that could not be sent are logged.
func (l *link) Detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.current.Load()
	if a == nil {
		return
	}
	reason := a.group.flush(l, a)
	l.current.Store(nil)
	a.leave(l)
	l.syncer.left(a.group.r, reason)
}

// leave ends a syncer's loop, without waiting for it.
func (a *attachment) leave(l *link) {
	a.cancel()
	r := a.group.r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.work.Go(func() { <-a.done })
	delete(a.group.links, l)
	r.health.Forget(l.name)
}
