// Package bandwidth lets all responses of one key share a number of bytes a second, on this node.
//
// A Zone is what a zone with the option has, for as long as the process has such a zone. Open opens
// a response of a key, and Writer has its body wait for its turns. Turns are given by queue, which
// is pure: it knows no clock and no lock.
//
// Nothing runs in the background. The goroutine that writes a response waits itself, until it is
// the first of its key and what was sent before is paid for; only the first has a timer.
//
// Locks: Zone.mu, which guards the keys, comes before key.mu, which guards one queue. Neither is
// held while a response waits or writes.
package bandwidth

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// A Zone is the bandwidth of the keys of one zone. It is safe for concurrent use.
type Zone struct {
	name string
	rate atomic.Int64
	most atomic.Int64 // keys

	bytes, waited, open atomic.Int64

	mu   sync.Mutex
	keys map[keys.Key]*key
	// over is what keys share once there are as many as allowed.
	over *key
	// closed are keys without an open response that have not yet paid for what they sent, the
	// first of them the first to be closed.
	closed []*key
}

// key is what the responses of one key share. It is there while one of them is open, and until what
// they sent is paid for.
type key struct {
	name keys.Key
	// open is how many responses are open, and listed is set while the key is in Zone.closed.
	// Zone.mu guards both.
	open   int
	listed bool

	mu    sync.Mutex
	queue queue
}

// NewZone returns the bandwidth of a zone: rate for each of maxKeys keys.
func NewZone(name string, rate Rate, maxKeys int) *Zone {
	z := &Zone{name: name, keys: map[keys.Key]*key{}, over: new(key)}
	z.Configure(rate, maxKeys)
	return z
}

// Configure sets the rate, also for responses that are open, and how many keys have a share of
// their own. Keys that are there stay.
func (z *Zone) Configure(rate Rate, maxKeys int) {
	z.rate.Store(int64(rate))
	z.most.Store(int64(maxKeys))
}

// Rate returns the bytes a second of a key.
func (z *Zone) Rate() Rate { return Rate(z.rate.Load()) }

// Open begins a response of a key. Close must be called at its end. overflow reports that the key
// has no share of its own, because there are as many keys as allowed.
func (z *Zone) Open(name keys.Key) (r *Response, overflow bool) {
	now := clock.Now()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.forget(now)
	k := z.keys[name]
	if k == nil && int64(len(z.keys)) >= z.most.Load() {
		k, overflow = z.over, true
	} else if k == nil {
		k = &key{name: name}
		z.keys[name] = k
	}
	if k.open++; k.open == 1 {
		k.mu.Lock()
		k.queue.restart(now)
		k.mu.Unlock()
	}
	z.open.Add(1)
	return &Response{zone: z, key: k}, overflow
}

// forget drops the keys that have paid for what they sent. It looks at as many as there were closed
// since, so that no call has to look at all of them.
func (z *Zone) forget(now int64) {
	for range min(2, len(z.closed)) {
		k := z.closed[0]
		if k.open == 0 && k.paid() > now {
			return
		}
		z.closed[0], z.closed = nil, z.closed[1:]
		k.listed = false
		if k.open == 0 {
			delete(z.keys, k.name)
		}
	}
}

// paid returns until when what was sent uses the rate up.
func (k *key) paid() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queue.paid
}

// Sweep drops all keys that have paid for what they sent.
func (z *Zone) Sweep(now int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for n := -1; n != len(z.closed); {
		n = len(z.closed)
		z.forget(now)
	}
}

// A Response is an open response of a key. It is used by one goroutine at a time.
type Response struct {
	zone   *Zone
	key    *key
	member member
	wake   chan struct{}
	timer  *time.Timer
}

// Close ends the response.
func (r *Response) Close() {
	z, k := r.zone, r.key
	z.mu.Lock()
	defer z.mu.Unlock()
	z.open.Add(-1)
	if k.open--; k.open == 0 && k != z.over && !k.listed {
		k.listed = true
		z.closed = append(z.closed, k)
	}
}

// Take waits until some of n bytes may be sent, 1 or more, and returns how many. It returns the
// context's error where that ends before.
func (r *Response) Take(ctx context.Context, n int) (int, error) {
	k := r.key
	start := clock.Now()
	k.mu.Lock()
	granted, wait := k.queue.take(&r.member, n, start, r.zone.Rate())
	if granted == 0 {
		r.join()
	}
	k.mu.Unlock()
	if granted > 0 {
		return granted, nil
	}
	defer func() { r.zone.waited.Add(clock.Now() - start) }()
	for {
		if err := r.sleep(ctx, wait); err != nil {
			k.mu.Lock()
			k.queue.leave(&r.member)
			k.mu.Unlock()
			return 0, err
		}
		k.mu.Lock()
		granted, wait = k.queue.take(&r.member, n, clock.Now(), r.zone.Rate())
		k.mu.Unlock()
		if granted > 0 {
			return granted, nil
		}
	}
}

// join has the response wait in its key's queue, whose lock is held.
func (r *Response) join() {
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
		r.member.wake = func() {
			select {
			case r.wake <- struct{}{}:
			default: // it will look in any case
			}
		}
	}
	r.key.queue.join(&r.member)
}

// sleep waits for d, forever if that is negative, or until the response becomes the first.
func (r *Response) sleep(ctx context.Context, d time.Duration) error {
	var due <-chan time.Time
	if d >= 0 {
		if r.timer == nil {
			r.timer = time.NewTimer(d)
		} else {
			r.timer.Reset(d)
		}
		defer r.timer.Stop()
		due = r.timer.C
	}
	select {
	case <-due:
	case <-r.wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// refund returns bytes that were taken and not sent.
func (r *Response) refund(n int) {
	r.key.mu.Lock()
	defer r.key.mu.Unlock()
	r.key.queue.refund(n, r.zone.Rate())
}

// sent counts bytes that were sent.
func (r *Response) sent(n int) { r.zone.bytes.Add(int64(n)) }

// Status is how a zone's bandwidth is used.
type Status struct {
	Zone string
	// Rate is bytes a second of each key.
	Rate Rate
	// Keys is how many there are, and Open how many responses are open.
	Keys, Open int64
	// Bytes were sent, and Waited is how long responses waited for their turns, all together.
	Bytes  int64
	Waited time.Duration
}

// Status returns how the bandwidth is used.
func (z *Zone) Status() Status {
	z.Sweep(clock.Now())
	z.mu.Lock()
	keys := len(z.keys)
	z.mu.Unlock()
	return Status{z.name, z.Rate(), int64(keys), z.open.Load(), z.bytes.Load(), time.Duration(z.waited.Load())}
}
