package ratesync

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// An outbox is messages of one kind, which a sender sends: counts of a table, slots of a zone, or
// bans.
type outbox[M any] interface {
	// dequeue takes out messages, up to most of them: with urgent only those that should not wait.
	// Each comes back through call or fail.
	dequeue(most int, urgent bool, dst []M) []M
	// idOf is the ID of a message's key.
	idOf(m M) keys.ID
	// skipped are the shards to which nothing is sent, a bit each. The sender's mu is held.
	skipped() uint64
	// call is one call of a script. Its messages are acknowledged or have failed when it returns.
	// An error means that their shards can't be reached.
	call(ctx context.Context, messages []M) error
	fail(messages []M)
}

// A sender sends the messages of an outbox, a few calls at a time. The next call begins as soon as
// any of them is over, so that the slowest holds up none.
type sender[M any] struct {
	out     outbox[M]
	cluster bool
	buffers *sync.Pool

	semaphore chan struct{} // one for each call that may be under way
	calls     sync.WaitGroup

	mu sync.Mutex
	// err is the last error. The shards that have failed and have answered are a bit each.
	err              error
	failed, answered uint64
	// nextCycle are the shards of which what is urgent waits for the next cycle, without an error.
	nextCycle uint64
}

// A round is messages taken out together, until the last of its calls is over.
type round[M any] struct {
	all  []M
	uses atomic.Int32
}

func (x *sender[M]) done(m *round[M]) {
	if m.uses.Add(-1) == 0 {
		x.buffers.Put(m)
	}
}

// round takes messages out, begins to send them, and returns how many there were.
func (x *sender[M]) round(ctx context.Context, most int, urgent bool) int {
	m, _ := x.buffers.Get().(*round[M])
	if m == nil {
		m = new(round[M])
	}
	m.uses.Store(1)
	defer x.done(m)
	m.all = x.out.dequeue(most, urgent, m.all[:0])
	x.send(ctx, m, urgent)
	return len(m.all)
}

// nextRound is round, but takes out nothing after an error if the rest would fail as well. A
// cluster goes on without the shards that fail.
func (x *sender[M]) nextRound(ctx context.Context, most int, urgent bool) int {
	if x.isOver(ctx) {
		return 0
	}
	return x.round(ctx, most, urgent)
}

// isOver reports whether a call has failed and the rest would as well. In a Cluster those that are
// under way may show that it would not.
func (x *sender[M]) isOver(ctx context.Context) bool {
	failed, answered := x.state()
	if failed && !answered && x.cluster {
		x.calls.Wait()
		_, answered = x.state()
	}
	return failed && (!x.cluster || !answered || ctx.Err() != nil)
}

func (x *sender[M]) state() (failed, answered bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err != nil, x.answered != 0
}

// send makes calls of messages and begins them. In a Cluster nothing is sent to shards that are
// missed.
func (x *sender[M]) send(ctx context.Context, m *round[M], urgent bool) {
	for _, batch := range byShard(x.cluster, m.all, x.out.idOf) {
		x.semaphore <- struct{}{}
		shards := shardsWith(x.cluster, x.out.idOf(batch[0]))
		if x.isSkipped(shards, urgent) {
			x.out.fail(batch)
			<-x.semaphore
			continue
		}
		m.uses.Add(1)
		x.calls.Go(func() {
			defer func() { <-x.semaphore }()
			defer x.done(m)
			x.note(shards, x.out.call(ctx, batch))
		})
	}
}

// isSkipped reports whether a batch for these shards is not sent.
func (x *sender[M]) isSkipped(shards uint64, urgent bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case urgent && x.nextCycle&shards != 0:
		return true
	case x.out.skipped()&shards != 0:
		x.err, x.failed = redisconn.ErrDown, x.failed|shards
		return true
	}
	return false
}

// note notes what came of a call.
func (x *sender[M]) note(shards uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.err, x.failed = err, x.failed|shards
	} else {
		x.answered |= shards
	}
}
