package ratesync

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

// sync sends what is due, or what is urgent, and merges the answers. It returns the last error of
// any batch.
//
// Many keys are synced slowly: one call at a time, with as much rest in between as the call
// took, and what becomes urgent meanwhile goes first. So requests, and the server's other users,
// find a free processor. Where a quarter of the interval is over by then, or the sync before took
// most of it, the rest goes as fast as it can.
func (r *Replicator) sync(ctx context.Context, s *Source, at *attachment, urgent bool) error {
	if c := at.charger(); c != nil {
		return s.charge(ctx, at, c)
	}
	s.dropCharges(r.now())
	if !urgent {
		s.resendRest(at, r.now())
		s.table.Tick()
	}
	x := sender{r: r, s: s, at: at, slots: make(chan struct{}, parallel)}
	begun, rate, most := time.Now(), time.Duration(at.rate.Load()), r.round()
	fast := urgent || at.behind.Load()
	for {
		start := time.Now()
		n := x.round(ctx, most, urgent)
		if !fast {
			x.calls.Wait()
		}
		if n < most {
			break
		}
		for !urgent && s.table.Urgent() && x.round(ctx, most, true) == most {
		}
		if fast = fast || at.behind.Load() || time.Since(begun) > rate/4; !fast {
			x.calls.Wait()
			pauseFor(ctx, time.Since(start))
		}
	}
	x.calls.Wait()
	if !urgent && !x.isOver(ctx) {
		at.behind.Store(time.Since(begun) > rate-rate/4)
	}
	return x.failed
}

// round returns how many messages are taken out at once: those of one call, and in a cluster, where
// they belong to 64 shards, those of as many calls.
func (r *Replicator) round() int {
	if r.cluster {
		return batchSize * 32
	}
	return batchSize
}

// A sender sends messages of one table, a few calls at a time. The next call begins as soon as any
// of them is over, so that the slowest holds up none.
type sender struct {
	r  *Replicator
	s  *Source
	at *attachment

	slots chan struct{}
	calls sync.WaitGroup
	// mu guards what follows, and which shards have failed and have answered.
	mu     sync.Mutex
	failed error
}

// drained are the messages of one round, until the last of its calls is over.
type drained struct {
	all  []table.Message
	uses atomic.Int32
}

var messageBuffers = sync.Pool{New: func() any { return new(drained) }}

func (m *drained) done() {
	if m.uses.Add(-1) == 0 {
		messageBuffers.Put(m)
	}
}

// round takes messages out and begins to send them. It returns how many there were; none where no
// more are to be sent, after an error. A cluster goes on without the shards that fail.
func (x *sender) round(ctx context.Context, most int, urgent bool) int {
	if x.isOver(ctx) {
		return 0
	}
	m := messageBuffers.Get().(*drained)
	m.uses.Store(1)
	defer m.done()
	m.all = x.s.table.Drain(x.r.now(), most, urgent, m.all[:0])
	x.send(ctx, m, urgent)
	return len(m.all)
}

// isOver reports whether a call has failed and the rest would as well. In a Cluster those that are
// under way may show that it would not.
func (x *sender) isOver(ctx context.Context) bool {
	failed, answered := x.state()
	if failed && !answered && x.r.cluster {
		x.calls.Wait()
		_, answered = x.state()
	}
	return failed && (!x.r.cluster || !answered || ctx.Err() != nil)
}

func (x *sender) state() (failed, answered bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failed != nil, x.at.answered != 0
}

// send makes calls of messages and begins them. In a Cluster nothing is sent to shards that are
// lost.
func (x *sender) send(ctx context.Context, m *drained, urgent bool) {
	if x.r.cluster {
		slices.SortStableFunc(m.all, func(a, b table.Message) int { return ShardOf(a.ID) - ShardOf(b.ID) })
	}
	for rest := m.all; len(rest) > 0; {
		n := x.r.cut(rest)
		batch := rest[:n]
		rest = rest[n:]
		x.slots <- struct{}{}
		shards := x.r.ShardsOf(batch[0].ID)
		if x.skips(shards, urgent) {
			x.s.table.Fail(batch)
			<-x.slots
			continue
		}
		m.uses.Add(1)
		x.calls.Go(func() {
			defer func() { <-x.slots }()
			defer m.done()
			x.note(shards, x.r.batch(ctx, x.s, x.at, batch))
		})
	}
}

// skips reports whether a batch for these shards is not sent.
func (x *sender) skips(shards uint64, urgent bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	skip, err := x.r.skips(x.at, shards, x.at.failed, urgent)
	if err != nil {
		x.failed, x.at.failed = err, x.at.failed|shards
	}
	return skip
}

// note notes what came of a call.
func (x *sender) note(shards uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.failed, x.at.failed = err, x.at.failed|shards
	} else {
		x.at.answered |= shards
	}
}

// cut returns how many messages go into one call: those of one key stay together, and in a cluster
// all are of one shard.
func (r *Replicator) cut(messages []table.Message) int {
	for n := 1; n < len(messages); n++ {
		if messages[n].Key == messages[n-1].Key {
			continue
		}
		if n >= batchSize || r.cluster && ShardOf(messages[n].ID) != ShardOf(messages[0].ID) {
			return n
		}
	}
	return len(messages)
}
