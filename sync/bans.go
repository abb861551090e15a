package ratesync

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Bans are those of a zone, which go along with the sync of one of the zone's tables: whatever is
// said of a key says its ban and reads it. A ban that began here is sent at once.
type Bans struct {
	*ban.Register
	client redis.UniversalClient
	keys   Keys
	space  Keyspace
	source *TableSyncer // that they go along with
	now    func() int64
}

// SyncBans has the bans of a zone go along with the sync of a table, by a client of Redis and in
// a namespace, until Unshare.
func SyncBans(r *ban.Register, s *TableSyncer, zone string, client redis.UniversalClient, namespace string, now func() int64) *Bans {
	_, cluster := client.(*redis.ClusterClient)
	space := NewKeyspace(namespace).In(cluster)
	b := &Bans{Register: r, client: client, keys: space.Zone(zone, "ban"), space: space, source: s, now: now}
	s.bans.Store(b)
	r.Share(s.Waker)
	return b
}

// Unshare ends what SyncBans began.
func (b *Bans) Unshare(s *TableSyncer) {
	b.Register.Share(nil)
	s.bans.Store(nil)
}

// A bansOut sends bans that began here, one call after the other.
type bansOut struct {
	sender[ban.Message]

	bans        *Bans
	timeout     time.Duration
	unreachable uint64        // the shards that are missed
	left        []ban.Message // that have failed
}

var banBuffers sync.Pool

// Send sends the bans that began here, except those of shards that are unreachable, a bit each.
// Each answer of a call takes timeout at most. Those that were not answered wait for the next time;
// failed are the shards of those.
func (b *Bans) Send(ctx context.Context, timeout time.Duration, unreachable uint64) (failed uint64, err error) {
	if !b.HasUnsent() {
		return 0, nil
	}
	x := &bansOut{bans: b, timeout: timeout, unreachable: unreachable}
	x.sender = sender[ban.Message]{out: x, cluster: b.space.cluster, buffers: &banBuffers, semaphore: make(chan struct{}, 1)}
	for (x.err == nil || b.space.cluster) && x.round(ctx, batchSize, true) > 0 {
		x.calls.Wait()
	}
	b.Fail(x.left)
	return x.failed, x.err
}

func (x *bansOut) dequeue(most int, _ bool, dst []ban.Message) []ban.Message {
	return x.bans.Drain(x.bans.now(), most, dst)
}

func (x *bansOut) idOf(m ban.Message) keys.ID { return m.ID }

func (x *bansOut) skipped() uint64 { return x.unreachable }

func (x *bansOut) call(ctx context.Context, messages []ban.Message) error {
	ctx, cancel := CallContext(ctx, x.timeout)
	defer cancel()
	c := NewPushCall(NextSeq(x.bans.source))
	defer c.Free()
	for _, m := range messages {
		c.Ban(x.bans.keys, m)
	}
	if len(messages) > 0 {
		c.Tell(x.bans.space, x.bans.source, messages[0].ID)
	}
	err := c.Send(ctx, x.bans.client)
	if err != nil {
		x.fail(messages)
		return err
	}
	x.bans.ack(messages, &c.Answer)
	return nil
}

// fail keeps messages until all others are sent: they would be dequeued again.
func (x *bansOut) fail(messages []ban.Message) { x.left = append(x.left, messages...) }

// Ban adds what is said of a ban, whose zone has these keys.
func (c *PushCall) Ban(in Keys, m ban.Message) {
	c.Call.Bans = append(c.Call.Bans, cell.Ban{Key: in.Of(m.ID), Known: m.State.String()})
}

// ack merges an answer.
func (b *Bans) ack(messages []ban.Message, a *cell.Answer) {
	now := b.now()
	for i, text := range a.Bans {
		b.Ack(now, a.Now, messages[i], ban.Parse(text))
	}
}
