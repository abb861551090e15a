// Package ratesync exchanges counts between nodes through Redis: in the background, every node pushes
// its totals and pulls those of all, see Replicator. Where Redis decides itself, that is package
// strict, with keys of the same Keyspace.
package ratesync

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

var (
	//go:embed push.lua
	pushSource string
	//go:embed beat.lua
	beatSource string

	pushScript = redis.NewScript(pushSource)
	beatScript = redis.NewScript(beatSource)
)

const (
	batchSize = cycle.BatchSize
	parallel  = 4              // calls under way at once for one table
	roundSize = 10 * batchSize // messages taken out of a table at once, where there is no time to lose
	minWait   = cycle.MinWait
	beatRate  = cycle.Heartbeat
)

// A Replicator exchanges the counts of all tables that share one Redis and one namespace. Its loops run from Start or the first Attach
// until Close; it never returns an error to a request.
type Replicator struct {
	client  redis.UniversalClient
	keys    Keyspace
	cluster bool
	timeout time.Duration
	now     func() int64
	logger  *zap.Logger

	// lost are the shards whose server the beat does not reach, a bit each: in a Cluster some of them, elsewhere all or none.
	lost  atomic.Uint64
	nodes atomic.Int64
	stats counters

	// seq and beaten number the beats, the last one sent and the last one answered, and mark is the one at which the server was last found
	// to have forgotten. Only the beat's goroutine uses them.
	seq, beaten, mark int64
	beatenAt          time.Time

	mu       sync.Mutex
	node     string
	sources  map[*Source]struct{}
	health   health
	flushing *flush // the last one
	clock    clock
	stop     context.CancelFunc
	done     chan struct{}

	leaving sync.WaitGroup // the loops of tables that were detached
}

type counters struct {
	exchanges, keys, failures, failedKeys atomic.Int64
	last                                  atomic.Int64
}

// Status is what a Replicator tells about itself.
type Status struct {
	// Up says that everything was exchanged the last time it was tried; Failing names what was not and why.
	Up      bool              `json:"up"`
	Failing map[string]string `json:"failing,omitempty"`
	Nodes   int64             `json:"nodes"`
	// Exchanges are the calls that were answered, Keys the counts in them, Failures the calls that were not.
	Exchanges int64 `json:"exchanges"`
	Keys      int64 `json:"keys"`
	Failures  int64 `json:"failures"`
	// FailedKeys are the counts in answered calls that Redis could not do, or of which it said what makes no sense.
	FailedKeys int64 `json:"failed_keys"`
	// Last is when the last call was answered, zero if never.
	Last time.Time `json:"last"`
	// Offset is how far the server's clock is ahead of this node's, as a duration like 1.5ms.
	Offset string `json:"clock_offset"`
}

// NewReplicator doesn't touch the network. now is the node's clock, in nanoseconds since the epoch; timeout bounds a call to the server.
func NewReplicator(client redis.UniversalClient, namespace string, timeout time.Duration, now func() int64, log *zap.Logger) *Replicator {
	_, cluster := client.(*redis.ClusterClient)
	return &Replicator{
		client: client, keys: NewKeyspace(namespace), beaten: -1, cluster: cluster, timeout: timeout, now: now, logger: log,
		node: NewNode(), sources: make(map[*Source]struct{}),
	}
}

// Attach begins to exchange a table every rate, or changes the rate.
// A table that was attached to another Replicator leaves it and brings its counts along. Attach doesn't wait for the network.
func (r *Replicator) Attach(s *Source, rate time.Duration) {
	r.attach(s, rate, nil)
}

// AttachCharged is Attach for a table whose decisions are charged in place of being exchanged.
func (r *Replicator) AttachCharged(s *Source, rate time.Duration, c Charger) { r.attach(s, rate, &c) }

func (r *Replicator) attach(s *Source, rate time.Duration, c *Charger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.at.Load()
	if old != nil && old.to == r {
		old.rate.Store(int64(rate))
		old.charges.Store(c)
		old.due.Store(true) // a zone that asks Redis from now on must find there what was counted until now
		s.Wake()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	at := &attachment{
		to: r, name: s.spec.Zone + " " + s.spec.Window.String(), cancel: cancel, done: make(chan struct{}), flushes: make(chan *flushRequest),
	}
	at.rate.Store(int64(rate))
	at.charges.Store(c)
	last := s.last
	s.last = at
	s.at.Store(at)
	r.Start()
	r.mu.Lock()
	r.sources[s] = struct{}{}
	r.mu.Unlock()
	if old != nil {
		old.to.leave(s, old)
	}
	go func() {
		defer close(at.done)
		if last != nil {
			<-last.done // its last answers are in
			if last.to != r {
				s.dropBills(r.now())
				s.counters.Adopt()
			}
		}
		r.serve(ctx, s, at)
	}()
}

// Detach ends the exchange of a table, wherever it is attached, and sends before what is unsent; that takes two seconds at most. Tables that are detached one
// after the other share these two seconds: all that have something unsent are synced when the first of them leaves.
// Detach doesn't wait for a server that can't be reached. What could not be sent is logged.
func (s *Source) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at.Load()
	if at == nil {
		return
	}
	reason := at.to.flush(s, at)
	s.at.Store(nil)
	at.to.leave(s, at)
	if reason != "" {
		at.to.noteUnsent(s, reason)
	}
	s.dropBills(at.to.now())
}

// DetachFrom is Detach if the table is attached to r, and nothing otherwise.
func (s *Source) DetachFrom(r *Replicator) {
	if at := s.at.Load(); at != nil && at.to == r {
		s.Detach()
	}
}

// leave ends a table's loop, without waiting for it.
func (r *Replicator) leave(s *Source, at *attachment) {
	at.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving.Go(func() { <-at.done })
	delete(r.sources, s)
	r.health.forget(at.name)
}

// Close ends the loops. Tables still attached are not flushed. It doesn't wait for calls under way beyond FlushEnds; they end with the client's connections.
func (r *Replicator) Close() {
	patience := time.After(time.Until(r.FlushEnds()))
	r.mu.Lock()
	stop, done := r.stop, r.done
	r.stop = nil
	r.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-done
		r.leaving.Wait()
	}()
	select {
	case <-ended:
	case <-patience:
	}
}

// Status tells how the exchange is going.
func (r *Replicator) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Up: len(r.health.failing) == 0, Failing: r.health.reasons(), Nodes: r.nodes.Load(),
		Exchanges: r.stats.exchanges.Load(), Keys: r.stats.keys.Load(), Failures: r.stats.failures.Load(), FailedKeys: r.stats.failedKeys.Load(),
		Offset: r.clock.offset.String(),
	}
	if last := r.stats.last.Load(); last != 0 {
		s.Last = time.Unix(0, last)
	}
	return s
}

// Nodes is how many nodes share the namespace, as far as this one knows; at least 1.
func (r *Replicator) Nodes() int64 { return max(1, r.nodes.Load()) }

// serve drives a table's loop: an exchange every rate, and early ones for urgent keys in between.
func (r *Replicator) serve(ctx context.Context, s *Source, at *attachment) {
	var state cycle.State
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var event cycle.Event
		var flush *flushRequest
		select {
		case <-ctx.Done():
			return
		case flush = <-at.flushes:
			event.Kind = cycle.Force
		case <-timer.C:
		case <-s.wake:
			event.Kind = cycle.Wake
		}
		if at.due.Swap(false) {
			event.Kind = cycle.Force
		}
		rate := time.Duration(at.rate.Load())
		next, action, wait := state.Next(event, time.Since(began), rate)
		if action != cycle.Await {
			event = r.turn(ctx, s, at, action == cycle.SyncUrgent, flush)
			next, _, wait = next.Next(event, time.Since(began), rate)
			s.counters.SetLost(next.Unreachable)
		}
		state = next
		timer.Reset(wait)
	}
}

// turn is one exchange in a table's loop, early or not, and what is noted of it. With flush it is the one that a flush waits for.
func (r *Replicator) turn(ctx context.Context, s *Source, at *attachment, early bool, flush *flushRequest) cycle.Event {
	var err error
	at.failed, at.answered = 0, 0
	if flush != nil {
		err = r.exchangeLast(flush.ctx, s, at)
		defer func() { flush.answer <- err }()
	} else {
		err = r.exchange(ctx, s, at, early)
	}
	if !errors.Is(err, context.Canceled) { // else this node stopped it
		at.lost.Store(r.lostAfter(at, early, err))
		r.note(s, at.name, err)
		if err == nil && !early {
			at.complete(r.now())
		}
	}
	event := cycle.Event{Kind: cycle.Reply, Lost: at.lost.Load(), Urgent: s.counters.Urgent()}
	if err != nil {
		event.Kind = cycle.Failed
	}
	return event
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// messageBuffers are as long as one round of calls needs.
var messageBuffers = sync.Pool{New: func() any { return new([]table.Message) }}

// exchange sends what is due, or what is urgent, and absorbs the answers. It returns the last error of any batch.
//
// Many keys are exchanged at leisure: one call at a time, with as much rest in between as the call took, and what becomes urgent meanwhile goes first. So
// requests, and the server's other users, find a free processor. Where a quarter of the interval is over by then, or the exchange before took
// most of it, the rest goes as fast as it can.
func (r *Replicator) exchange(ctx context.Context, s *Source, at *attachment, urgent bool) error {
	if c := at.charger(); c != nil {
		return s.charge(ctx, at, c)
	}
	s.dropBills(r.now())
	if !urgent {
		s.counters.Tick()
	}
	kept := messageBuffers.Get().(*[]table.Message)
	defer messageBuffers.Put(kept)
	buf := *kept
	defer func() { *kept = buf[:0] }()
	begun, rate := time.Now(), time.Duration(at.rate.Load())
	hurry := urgent || at.behind.Load()
	var failed error
	for {
		most := r.round(hurry)
		start := time.Now()
		buf = s.counters.Drain(r.now(), most, urgent, buf[:0])
		if len(buf) == 0 {
			break
		}
		if err := r.send(ctx, s, at, buf, urgent); err != nil {
			if !r.cluster || at.answered == 0 || ctx.Err() != nil {
				return err
			}
			failed = err // the rest of the cluster goes on
		}
		if len(buf) < most {
			break
		}
		if !urgent && s.counters.Urgent() {
			if err := r.exchange(ctx, s, at, true); err != nil {
				if !r.cluster {
					return err
				}
				failed = err
			}
		}
		if hurry = hurry || at.behind.Load() || time.Since(begun) > rate/4; !hurry {
			pauseFor(ctx, time.Since(start))
		}
	}
	if !urgent {
		at.behind.Store(time.Since(begun) > rate-rate/4)
	}
	return failed
}

// round is how many messages are taken out at once. In a cluster they belong to 64 shards, and go in as many calls.
func (r *Replicator) round(hurry bool) int {
	switch {
	case r.cluster:
		return batchSize * 32
	case hurry:
		return roundSize
	}
	return batchSize
}

// send makes batches of messages and sends them, a few at a time. In a Cluster nothing is sent to shards that are lost.
func (r *Replicator) send(ctx context.Context, s *Source, at *attachment, messages []table.Message, urgent bool) error {
	if r.cluster {
		slices.SortStableFunc(messages, func(a, b table.Message) int { return ShardOf(a.ID) - ShardOf(b.ID) })
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
		slots  = make(chan struct{}, parallel)
	)
	for len(messages) > 0 {
		n := r.cut(messages)
		batch := messages[:n]
		messages = messages[n:]
		slots <- struct{}{}
		shards := r.shards(batch[0].ID)
		mu.Lock()
		known := at.failed
		mu.Unlock()
		if skip, err := r.skips(at, shards, known, urgent); skip {
			s.counters.Fail(batch)
			if err != nil {
				mu.Lock()
				failed, at.failed = err, at.failed|shards
				mu.Unlock()
			}
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			err := r.batch(ctx, s, at, batch)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				at.failed |= shards
			} else {
				at.answered |= shards
			}
		})
	}
	wg.Wait()
	return failed
}

// cut says how many messages go into one call: those of one key stay together, and in a cluster all are of one shard.
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

// noteLoss notes that the server has lost something that it had confirmed, or may have.
func (r *Replicator) noteLoss(sure bool) {
	r.mu.Lock()
	r.health.lost(sure)
	r.mu.Unlock()
	r.resend()
}

// resend has every table send all live totals again if that is due.
func (r *Replicator) resend() {
	due := false
	r.log(func(h *health, now time.Time) (e *entry) {
		due, e = h.resend(now)
		return e
	})
	if !due {
		return
	}
	for _, s := range r.attached() {
		s.counters.Resend()
	}
}

// attached are the tables that are synced.
func (r *Replicator) attached() []*Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.sources))
}

// note records how the sync of a table or, where s is nil, something else went.
func (r *Replicator) note(s *Source, name string, err error) {
	r.log(func(h *health, now time.Time) *entry {
		if _, attached := r.sources[s]; s != nil && !attached {
			return nil // it has left, and nobody would record that it works again
		}
		return h.record(name, err, now)
	})
}

// noteForeign logs that a key of a table can't be synced.
func (r *Replicator) noteForeign(s *Source, why string) {
	r.log(func(h *health, now time.Time) *entry { return h.foreignKey(s.spec.Zone, why, now) })
}

// Report notes that something else that uses this Redis fails, by a name. It is over when a heartbeat
// is answered and nothing was reported for a while: who reports may be gone by then.
func (r *Replicator) Report(name string, err error) {
	r.log(func(h *health, now time.Time) *entry { return h.report(name, err, now) })
}

// log logs what the health says. f is called under the lock, which is not held while it is logged.
func (r *Replicator) log(f func(h *health, now time.Time) *entry) {
	r.mu.Lock()
	e := f(&r.health, time.Now())
	r.mu.Unlock()
	if e != nil {
		r.logger.Log(e.level, e.message, e.fields...)
	}
}
