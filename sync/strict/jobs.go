package strict

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// maxPipelined bounds the calls that go to Redis together, so that none waits long for the others.
const maxPipelined = 8

// A job is the next call of one key. Its key's goroutine waits for the semaphore of calls that are
// under way. If more keys wait than calls may be under way, one round trip carries several jobs.
type job struct {
	zone  string
	waits *atomic.Bool
	// woken gets the jobs that this one's goroutine is to do, with itself, or nil when another
	// goroutine has done it.
	woken chan []*job
	// prepare takes out what is to be asked, nil where there is nothing and the key has stopped.
	prepare func() *batch
	asked   *batch
}

type commander interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A semaphore bounds the calls of one circuit that are under way, and has the jobs that wait. It is
// safe for concurrent use.
type semaphore struct {
	mu     sync.Mutex
	free   int
	queues []zoneQueue
}

// A zoneQueue has the jobs of one zone, in the order in which they came.
type zoneQueue struct {
	zone string
	jobs []*job
}

// enter waits until a call may be made. It returns the jobs that the caller is to do, and leave
// after; none where another goroutine has done the caller's.
func (p *semaphore) enter(t *job) []*job {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return []*job{t}
	}
	p.add(t)
	p.mu.Unlock()
	t.waits.Store(true)
	defer t.waits.Store(false)
	return <-t.woken
}

// tryEnter enters if nobody has to wait.
func (p *semaphore) tryEnter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		return false
	}
	p.free--
	return true
}

func (p *semaphore) add(t *job) {
	for i := range p.queues {
		if l := &p.queues[i]; l.zone == t.zone {
			l.jobs = append(l.jobs, t)
			return
		}
	}
	p.queues = append(p.queues, zoneQueue{t.zone, []*job{t}})
}

// leave lets those in that wait, if somebody does.
func (p *semaphore) leave() {
	p.mu.Lock()
	next := p.next()
	if len(next) == 0 {
		p.free++
	}
	p.mu.Unlock()
	if len(next) > 0 {
		next[0].woken <- next
	}
}

// next takes out the jobs that one round trip carries: of each zone one after the other, so that a
// zone with many keys doesn't hold up another one.
func (p *semaphore) next() (all []*job) {
	for len(p.queues) > 0 && len(all) < maxPipelined {
		l := p.queues[0]
		p.queues = p.queues[1:]
		all = append(all, l.jobs[0])
		if l.jobs = l.jobs[1:]; len(l.jobs) > 0 {
			p.queues = append(p.queues, l)
		}
	}
	return all
}

// do does a job, perhaps with those of others, or has another goroutine do it.
func (s *Limiter) do(p *semaphore, t *job) {
	jobs := p.enter(t)
	if jobs == nil {
		return
	}
	s.perform(p, jobs)
	for _, other := range jobs {
		if other != t {
			other.woken <- nil
		}
	}
}

// perform does jobs, after enter, and leaves.
func (s *Limiter) perform(p *semaphore, jobs []*job) {
	all := make([]*batch, 0, len(jobs))
	for _, t := range jobs { // only now: who came meanwhile shares the call
		if t.asked = t.prepare(); t.asked != nil {
			all = append(all, t.asked)
		}
	}
	s.send(all)
	p.leave()
}

// send asks Redis, in one round trip.
func (s *Limiter) send(all []*batch) {
	if len(all) == 0 {
		return
	}
	ctx, cancel := ratesync.CallContext(s.ctx, s.Timeout())
	defer cancel()
	for _, known := range []bool{true, false} {
		todo := slices.DeleteFunc(slices.Clone(all), func(r *batch) bool { return !r.isUnknown() })
		if len(todo) == 0 {
			return
		}
		if len(todo) == 1 {
			todo[0].issue(ctx, s.client, known)
			continue
		}
		pipe := s.client.Pipeline()
		for _, r := range todo {
			r.issue(ctx, pipe, known)
		}
		_, _ = pipe.Exec(ctx) // each reply has its error
	}
}
