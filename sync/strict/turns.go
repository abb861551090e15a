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

// A turn is the next call of one key. Its key's goroutine waits for a place among the calls that
// are under way; a place carries the calls of several keys where more keys wait than there are
// places.
type turn struct {
	zone  string
	waits *atomic.Bool
	// woken gets the turns that this one's goroutine is to make, with itself, or nil when another
	// goroutine has made it.
	woken chan []*turn
	// prepare takes out what is to be asked, nil where there is nothing and the key has stopped.
	prepare func() *say
	asked   *say
}

type commander interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// places are the calls of one circuit that are under way, and the turns that wait. It is safe for
// concurrent use.
type places struct {
	mu    sync.Mutex
	free  int
	lanes []lane
}

// A lane is the turns of one zone, in the order in which they came.
type lane struct {
	zone  string
	turns []*turn
}

// enter waits for a place. It returns the turns that the caller is to make, and leave the place
// after; none where another goroutine has made the caller's.
func (p *places) enter(t *turn) []*turn {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return []*turn{t}
	}
	p.add(t)
	p.mu.Unlock()
	t.waits.Store(true)
	defer t.waits.Store(false)
	return <-t.woken
}

// tryEnter takes a place if one is free.
func (p *places) tryEnter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		return false
	}
	p.free--
	return true
}

func (p *places) add(t *turn) {
	for i := range p.lanes {
		if l := &p.lanes[i]; l.zone == t.zone {
			l.turns = append(l.turns, t)
			return
		}
	}
	p.lanes = append(p.lanes, lane{t.zone, []*turn{t}})
}

// leave gives the place to those that wait, if somebody does.
func (p *places) leave() {
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

// next takes out the turns that one place carries: of each zone one after the other, so that a zone
// with many keys doesn't hold up another one.
func (p *places) next() (all []*turn) {
	for len(p.lanes) > 0 && len(all) < maxPipelined {
		l := p.lanes[0]
		p.lanes = p.lanes[1:]
		all = append(all, l.turns[0])
		if l.turns = l.turns[1:]; len(l.turns) > 0 {
			p.lanes = append(p.lanes, l)
		}
	}
	return all
}

// turn makes a turn's call, perhaps with those of others, or has another goroutine make it.
func (s *Limiter) turn(p *places, t *turn) {
	turns := p.enter(t)
	if turns == nil {
		return
	}
	s.make(p, turns)
	for _, other := range turns {
		if other != t {
			other.woken <- nil
		}
	}
}

// make makes turns' calls in a place, which it leaves.
func (s *Limiter) make(p *places, turns []*turn) {
	all := make([]*say, 0, len(turns))
	for _, t := range turns { // only now: who came meanwhile shares the call
		if t.asked = t.prepare(); t.asked != nil {
			all = append(all, t.asked)
		}
	}
	s.send(all)
	p.leave()
}

// send asks Redis, in one round trip.
func (s *Limiter) send(all []*say) {
	if len(all) == 0 {
		return
	}
	ctx, cancel := ratesync.CallContext(s.ctx, s.Timeout())
	defer cancel()
	for _, known := range []bool{true, false} {
		todo := slices.DeleteFunc(slices.Clone(all), func(r *say) bool { return !r.isUnknown() })
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
