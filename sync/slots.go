package ratesync

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

// Slots share between nodes how many slots of each key they have given out: the option concurrent
// of zones.
//
// A node says what it has, never what has changed, in a field of its own that expires. So a message
// that is lost, repeated or late changes nothing for long, and neither does a node that is killed
// or a Redis that forgets: the next message says all there is to say.
type Slots struct {
	group
	// strictTimeout is how long a request waits for an answer, in nanoseconds.
	strictTimeout atomic.Int64
	// trips is how often a shard became missed by requests, and timeouts how many have waited for
	// an answer until the timeout.
	trips, timeouts atomic.Int64
}

// NewSlots does no network I/O. strict bounds a call that a request waits for.
func NewSlots(r *Replicator, strict time.Duration) *Slots {
	s := &Slots{}
	s.group = group{r: r, slots: s, links: make(map[*link]struct{})}
	s.SetTimeout(strict)
	return s
}

// SetTimeout changes how long requests wait for an answer.
func (s *Slots) SetTimeout(strict time.Duration) { s.strictTimeout.Store(int64(strict)) }

// A SlotSyncer is what the sync knows of one zone's slots.
type SlotSyncer struct {
	link
	table *gauge.Table
	zone  string
}

// NewSlotSyncer returns the SlotSyncer of a zone's table, with a random name of a node.
func NewSlotSyncer(t *gauge.Table, zone string) *SlotSyncer {
	s := &SlotSyncer{table: t, zone: zone}
	s.init(s, "")
	return s
}

// Nodes is how many nodes there are, as far as this one knows.
func (src *SlotSyncer) Nodes() int64 {
	if a := src.current.Load(); a != nil {
		return a.group.r.Nodes()
	}
	return 1
}

// Attach begins to sync a table every interval, or changes that. A table that was attached to
// another Redis leaves that, and has been flushed there. Attach waits for the network only for
// that.
func (s *Slots) Attach(src *SlotSyncer, interval time.Duration) {
	if a := src.current.Load(); a != nil && a.group != &s.group {
		src.Detach()
	}
	s.attach(&src.link, min(interval, gauge.Refresh))
}

// A slotsOut sends messages of one table.
type slotsOut struct {
	sender[gauge.Message]

	s        *Slots
	src      *SlotSyncer
	rejected error // the last one that says nothing of a shard; mu guards it
}

// slotRound is how many messages are taken out of a table at once.
const slotRound = 10 * batchSize

var slotBuffers sync.Pool

// sync sends what is urgent, and where it is not early what is due. What a shard doesn't take is
// due again with the next cycle.
func (src *SlotSyncer) sync(ctx context.Context, a *attachment, early bool) (missed uint64, err error) {
	r := a.group.r
	if !early && !src.table.MakeOutgoing(r.now()) {
		return 0, nil
	}
	if r.unreachable.Load() == allShards {
		return allShards, redisconn.ErrDown
	}
	x := &slotsOut{s: a.group.slots, src: src}
	x.sender = sender[gauge.Message]{out: x, cluster: r.cluster, buffers: &slotBuffers, semaphore: make(chan struct{}, parallel)}
	for x.nextRound(ctx, slotRound, early) == slotRound {
		x.calls.Wait()
	}
	x.calls.Wait()
	if missed = x.failed; early { // an early sync says nothing of the other shards
		missed |= a.missed.Load() &^ x.answered
	}
	return missed, cmp.Or(x.err, x.rejected)
}

func (x *slotsOut) dequeue(most int, urgent bool, dst []gauge.Message) []gauge.Message {
	return x.src.table.Drain(x.s.r.now(), !urgent, most, dst)
}

func (x *slotsOut) idOf(m gauge.Message) keys.ID { return m.ID }

func (x *slotsOut) skipped() uint64 { return x.s.r.unreachable.Load() }

func (x *slotsOut) call(ctx context.Context, messages []gauge.Message) (severe error) {
	ctx, cancel := context.WithTimeout(ctx, x.s.r.timeout)
	defer cancel()
	all, err := x.s.call(ctx, x.src, messages)
	for i := range messages {
		m := &messages[i]
		if err != nil {
			x.src.table.Fail(m, err)
		} else if why := all[i].err; why != nil {
			x.src.table.Fail(m, why)
			x.reject(why)
		} else if next, more := x.src.table.Ack(m, all[i].Answer); more {
			x.s.ask(x.src, next)
		}
	}
	if err != nil && !redisconn.IsSevere(err) && !errors.Is(err, redisconn.ErrDown) {
		x.reject(err)
		return nil
	}
	return err
}

func (x *slotsOut) reject(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rejected = err
}

func (x *slotsOut) fail(messages []gauge.Message) {
	for i := range messages {
		x.src.table.Fail(&messages[i], redisconn.ErrDown)
	}
}

// note reports what has failed until all is sent again: an early sync shows nothing of that.
func (src *SlotSyncer) note(a *attachment, early bool, err error) {
	if err != nil || !early && a.failing {
		a.failing = err != nil
		a.group.r.Report(src.zone+" concurrent", err)
	}
}

func (src *SlotSyncer) urgent() bool { return src.table.Urgent() }

func (src *SlotSyncer) unsent(int64) (n int64, some bool) {
	n = int64(src.table.Unsent())
	return n, n > 0
}

func (src *SlotSyncer) storeChanged(int64)       { src.table.Restart() }
func (src *SlotSyncer) setMissedTwice(uint64)    {}
func (src *SlotSyncer) left(*Replicator, string) {}
