package strict

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// ErrClosed is the error of a Limiter that was closed before it could ask Redis, or before Redis
// answered. It says nothing of how Redis is.
var ErrClosed = errors.New("this node has let go of redis")

const (
	firstWait = 10 * time.Millisecond
	lastWait  = 100 * time.Millisecond
	// farTimeouts is how many timeouts an answer may take that shows Redis to be far away, and
	// farTime bounds what that adds to a long one. measureInterval is the time between two attempts
	// to find out.
	farTimeouts     = 5
	farTime         = 2 * time.Second
	measureInterval = time.Second
)

// probeScript does what the others do: it takes a master with memory that lets this user write.
// Like theirs, its call names more than one key: while a hash slot of a Cluster moves, only calls
// that name one are sure to be answered.
var probeScript = redis.NewScript(`redis.call('TIME')
redis.call('HSET', KEYS[1], 'probe', '1')
return redis.call('PEXPIRE', KEYS[1], ARGV[1])`)

// A circuit keeps requests from waiting for a Redis that is known not to answer: after a failure
// all fail at once until a probe, which no request waits for, has been answered in time. A call
// that was not answered in time is no failure by itself: a node whose processors are busy is late
// for what has arrived long ago. It starts a probe, and the circuit opens when that fails, too.
type circuit struct {
	down atomic.Bool
	why  atomic.Pointer[redisconn.DownError] // set before down
	// semaphore bounds the calls that are under way.
	semaphore semaphore
	// overdue is how many requests have waited too long for a call since the last answer.
	overdue atomic.Int64

	mu    sync.Mutex
	check chan struct{} // closed when the probe of a late call ends, nil while there is none
}

// unavailable is why no call may be made, nil while the circuit is closed.
func (c *circuit) unavailable() error {
	if !c.down.Load() {
		return nil
	}
	return c.why.Load()
}

// circuitOf returns the circuit of a key: in a Cluster there is one for each of the 64 shards, as a
// part of it can be lost.
func (s *Limiter) circuitOf(id [16]byte) (*circuit, int) {
	shard := ratesync.ShardOf(id)
	if s.cluster {
		return &s.circuits[shard], shard
	}
	return &s.circuits[0], 0
}

// trip opens a circuit, unless it is open, and probes until it can be closed.
func (s *Limiter) trip(id [16]byte, cause error) {
	c, shard := s.circuitOf(id)
	if c.down.Load() {
		return
	}
	c.why.Store(&redisconn.DownError{Cause: cause})
	if !c.down.CompareAndSwap(false, true) {
		return // it is probed already
	}
	s.trips.Add(1)
	s.work.Go(func() { s.probe(c, shard) })
}

// isThere reports whether Redis is there though a call was not answered in time. All calls that are
// late at once wait for one probe.
func (s *Limiter) isThere(id [16]byte, cause error) bool {
	c, shard := s.circuitOf(id)
	c.mu.Lock()
	check := c.check
	mine := check == nil && !c.down.Load()
	if mine {
		check = make(chan struct{})
		c.check = check
	}
	c.mu.Unlock()
	probe := func() {
		if s.isSilent(shard) {
			s.trip(id, cause)
		}
		c.mu.Lock()
		c.check = nil
		c.mu.Unlock()
		close(check)
	}
	if mine && !s.work.Go(probe) {
		probe() // CloseBy waits for the caller
	}
	if check != nil {
		select {
		case <-check:
		case <-s.ctx.Done():
		}
	}
	return !c.down.Load()
}

const (
	// maxProbes bounds the probes of a busy node that finds no answer to be in time.
	maxProbes = 5
	// probeStep is how often a node looks at how late it is.
	probeStep = 5 * time.Millisecond
)

// isSilent probes whether Redis doesn't answer. What a node finds while it is itself late, by a
// quarter of what Redis has for an answer, says nothing of Redis: then it probes again.
func (s *Limiter) isSilent(shard int) bool {
	for range maxProbes {
		err, lateness := error(nil), time.Duration(0)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			err = s.probeOnce(s.ctx, shard)
		}()
		for done := false; !done; {
			start := time.Now()
			time.Sleep(probeStep)
			lateness = max(lateness, time.Since(start)-probeStep)
			select {
			case <-asked:
				done = true
			default:
			}
		}
		switch {
		case err == nil, !s.isSevere(err), s.ctx.Err() != nil:
			return false
		case !redisconn.IsLate(err), !redisconn.IsQueued(err) && lateness < time.Duration(s.timeout.Load())/4:
			return true
		}
	}
	return true
}

// probeOnce asks the server whether it answers.
func (s *Limiter) probeOnce(ctx context.Context, shard int) error {
	return s.askWithin(ctx, shard, time.Duration(s.timeout.Load()))
}

func (s *Limiter) askWithin(ctx context.Context, shard int, timeout time.Duration) error {
	ctx, cancel := ratesync.CallContext(ctx, timeout)
	defer cancel()
	return probeScript.Run(ctx, s.client, s.keys.Probe(shard), ratesync.SpareTTL.Milliseconds()).Err()
}

func (s *Limiter) probe(c *circuit, shard int) {
	ctx, cancel := context.WithCancel(s.probes)
	defer cancel()
	s.work.Go(func() { s.measure(ctx, c, shard) })
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		select {
		case <-s.probes.Done():
			return
		case <-time.After(wait/2 + ratesync.NodeOffset(s.node, wait/2)):
		}
		if err := s.probeOnce(s.probes, shard); err == nil || !s.isSevere(err) {
			break
		}
	}
	c.down.Store(false)
}

// measure finds out, while a circuit is open, whether Redis answers later than requests wait: then
// that is why the circuit is open. It runs beside the probes, which close the circuit as soon as
// Redis answers in time, and must not wait for the longer answer.
func (s *Limiter) measure(ctx context.Context, c *circuit, shard int) {
	for {
		why, timeout := c.why.Load(), time.Duration(s.timeout.Load())
		took, err := s.roundTrip(ctx, shard, timeout+min((farTimeouts-1)*timeout, farTime))
		if ctx.Err() != nil {
			return
		}
		if err == nil && took > timeout && c.why.CompareAndSwap(why, &redisconn.DownError{Cause: &redisconn.FarError{Took: took, Timeout: timeout}}) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(measureInterval):
		}
	}
}

// roundTrip is how long an answer takes: the shorter of two, as the first one also makes a
// connection and loads the script.
func (s *Limiter) roundTrip(ctx context.Context, shard int, timeout time.Duration) (took time.Duration, err error) {
	for i := range 2 {
		start := time.Now()
		if err := s.askWithin(ctx, shard, timeout); err != nil {
			return 0, err
		}
		if d := time.Since(start); i == 0 || d < took {
			took = d
		}
	}
	return took, nil
}

// isSevere reports whether an error is about the server or the way to it, not about one key. What
// was asked may have been done for all that: a Cluster's client sends a call again whose reply was
// lost, and shows only what came of the last attempt. So that a hash slot moves doesn't mean that
// the call was not done before it moved.
func (s *Limiter) isSevere(err error) bool {
	return redisconn.IsSevere(err) || s.cluster && redisconn.IsMoving(err)
}
