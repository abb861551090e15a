package ratesync

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Charged are counters that a strict zone decides by while Redis can't be asked, and whose
// decisions are then charged to Redis.
type Charged interface {
	// Tick makes the keys due that are dirty now, and Charges takes out the charges of due keys.
	Tick()
	Charges(now int64, most int, dst []table.Charge) []table.Charge
	// Owes reports whether a key has something to be charged, and ChargeOf takes that out.
	Owes(key table.Key) bool
	ChargeOf(key table.Key, now int64) (c table.Charge, ok bool)
	// Charged notes that Redis has counted a charge, and merges what it has of the key now. What
	// was refunded meanwhile is a charge of its own.
	Charged(now int64, c table.Charge, reports []algorithms.Report) (refund table.Charge, ok bool)
	// Uncharged gives a charge back to the table.
	Uncharged(now int64, c table.Charge)
}

// A Charger has Redis count what a strict zone's node has decided alone.
type Charger interface {
	// Charge sends charges of a node in one round trip, and returns as many receipts.
	Charge(ctx context.Context, node string, charges []Charge) []Receipt
	// Unavailable is why Redis can't be asked about an id, nil if it can.
	Unavailable(id table.ID) error
	// CallContext is the context of a call that a request waits for.
	CallContext(parent context.Context) (context.Context, context.CancelFunc)
	// Failed notes that such a call has failed, and returns the request's error: nil if it is to
	// ask Redis all the same.
	Failed(id table.ID, err error) error
}

// A Charge is a table's charge with the number under which Redis counts it once, however often it
// is sent.
type Charge struct {
	table.Charge
	Seq  int64
	Made time.Time // when it got its number
}

// A Receipt is what came of a charge.
type Receipt struct {
	Reports []algorithms.Report // what Redis has of the key now
	Err     error
	// Unknown is set with an error after which nobody knows whether the charge was counted.
	Unknown bool
}

// maxCharges bounds the charges of one round trip, and so those whose outcome is unknown.
const maxCharges = 100

// A pendingCharge is a charge that Redis has not confirmed. It is frozen: until its outcome is
// known it is sent again as it is.
type pendingCharge struct {
	Charge
	counted bool
	sending bool
	done    chan struct{} // closed when it is not sending any more
}

// pendingCharges are those of one Source. mu is taken before a shard's lock.
type pendingCharges struct {
	mu  sync.Mutex
	all map[table.Key]*pendingCharge
}

// charge sends all charges that are due. Those whose outcome is not known go first, as they were.
// Where a shard of a Cluster is lost, those of the others are sent all the same. The last error is
// returned.
func (s *Source) charge(ctx context.Context, at *attachment, c Charger) (failed error) {
	t := s.counters.(Charged)
	for again := true; ; again = false {
		var batch []*pendingCharge
		if again {
			batch = s.unanswered()
			t.Tick()
		} else if batch = s.takeDue(t, at); len(batch) == 0 {
			return failed
		}
		start := time.Now()
		call, end := context.WithTimeout(ctx, at.to.timeout)
		lost, err := s.send(call, at, c, batch)
		end()
		for _, p := range batch {
			at.answered |= 1 << ShardOf(p.ID)
		}
		at.failed |= lost
		at.answered &^= lost
		if err != nil {
			failed = err
			if !at.to.cluster || at.answered == 0 || ctx.Err() != nil {
				return failed
			}
		}
		if len(batch) == maxCharges {
			pauseFor(ctx, time.Since(start)) // requests, and Redis' other users, come in between
		}
	}
}

func (s *Source) unanswered() (batch []*pendingCharge) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for _, p := range s.pending.all {
		if !p.sending {
			p.begin()
			batch = append(batch, p)
		}
	}
	return batch
}

func (s *Source) takeDue(t Charged, at *attachment) (batch []*pendingCharge) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for _, c := range t.Charges(at.to.now(), maxCharges, nil) {
		batch = append(batch, s.newPending(c))
	}
	return batch
}

// newPending makes a charge a pending one. mu is held.
func (s *Source) newPending(c table.Charge) *pendingCharge {
	p := &pendingCharge{Charge: Charge{Charge: c, Seq: s.seq.Add(1), Made: time.Now()}}
	if s.pending.all == nil {
		s.pending.all = make(map[table.Key]*pendingCharge)
	}
	s.pending.all[c.Key] = p
	p.begin()
	return p
}

func (p *pendingCharge) begin() { p.sending, p.done = true, make(chan struct{}) }

// ChargeNow sends what was decided alone for a key, so that a request for which Redis is asked next
// is decided with it. It returns at once where there is nothing, or where Redis is known not to
// answer. After an error Redis must not be asked: it may not know.
func (s *Source) ChargeNow(ctx context.Context, key table.Key) error {
	at := s.at.Load()
	if at == nil {
		return nil
	}
	c := at.charger()
	t, _ := s.counters.(Charged)
	if c == nil || !t.Owes(key) {
		return nil
	}
	for {
		p, done, mine := s.pendingOf(t, at, key)
		switch {
		case p == nil:
			return nil
		case c.Unavailable(p.ID) != nil:
			s.postpone(p, mine)
			return nil
		case !mine:
			if err := p.await(ctx, c, done); err != nil {
				return err
			}
		default:
			// The client may go away meanwhile, which is no reason to break off.
			call, end := c.CallContext(context.WithoutCancel(ctx))
			_, err := s.send(call, at, c, []*pendingCharge{p})
			end()
			if err != nil {
				return c.Failed(p.ID, err)
			}
			if !p.counted {
				return nil // Redis rejects what is done to the key, as the request will find
			}
		}
	}
}

// await waits for a pending charge that another request or a cycle sends, as long as Redis has for
// an answer.
func (p *pendingCharge) await(ctx context.Context, c Charger, done <-chan struct{}) error {
	wait, end := c.CallContext(ctx)
	defer end()
	select {
	case <-done:
		return nil
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return err
		}
		return c.Failed(p.ID, context.DeadlineExceeded)
	}
}

// pendingOf returns the pending charge of a key that is on its way, or makes one; nil if there is
// nothing to charge. done is closed when it has been sent; mine reports that the caller is to.
func (s *Source) pendingOf(t Charged, at *attachment, key table.Key) (p *pendingCharge, done <-chan struct{}, mine bool) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	if p = s.pending.all[key]; p != nil {
		if p.sending {
			return p, p.done, false
		}
		p.begin()
		return p, p.done, true
	}
	c, ok := t.ChargeOf(key, at.to.now())
	if !ok {
		return nil, nil, false
	}
	p = s.newPending(c)
	return p, p.done, true
}

// postpone leaves a pending charge to the next cycle.
func (s *Source) postpone(p *pendingCharge, mine bool) {
	if !mine {
		return
	}
	s.pending.mu.Lock()
	p.sending = false
	close(p.done)
	s.pending.mu.Unlock()
}

// send sends pending charges and notes their outcome. Where it is unknown a pending charge stays as
// it is. An error that is about the key gives the charge back to the table. shards are those with
// an unknown outcome.
func (s *Source) send(ctx context.Context, at *attachment, c Charger, batch []*pendingCharge) (shards uint64, failed error) {
	if len(batch) == 0 {
		return 0, nil
	}
	charges := make([]Charge, len(batch))
	for i, p := range batch {
		charges[i] = p.Charge
	}
	for i, r := range c.Charge(ctx, s.node, charges) {
		p := batch[i]
		switch {
		case r.Err == nil:
			at.to.stats.keys.Add(1)
		case r.Unknown:
			shards, failed = shards|1<<ShardOf(p.ID), r.Err
		case errors.Is(r.Err, ErrReply):
			at.to.noteForeign(s, noSense)
		default:
			at.to.noteForeign(s, redisconn.Classify(r.Err))
		}
		s.receive(at, p, r)
	}
	if failed != nil {
		at.to.stats.failures.Add(1)
		return shards, failed
	}
	at.to.stats.calls.Add(1)
	at.to.stats.last.Store(at.to.now())
	return 0, nil
}

// receive notes what came of a pending charge.
func (s *Source) receive(at *attachment, p *pendingCharge, r Receipt) {
	t, now := s.counters.(Charged), at.to.now()
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	p.sending = false
	close(p.done)
	if s.pending.all[p.Key] != p || r.Unknown {
		return
	}
	delete(s.pending.all, p.Key)
	p.counted = r.Err == nil
	if r.Err != nil {
		t.Uncharged(now, p.Charge.Charge)
		return
	}
	if refund, ok := t.Charged(now, p.Charge.Charge, r.Reports); ok {
		s.newPending(refund).sending = false // the next cycle sends it
	}
}

// dropCharges gives all charges back to the table: what was counted of them is another store's
// business, or nobody's.
func (s *Source) dropCharges(now int64) {
	t, ok := s.counters.(Charged)
	if !ok {
		return
	}
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for _, p := range s.pending.all {
		t.Uncharged(now, p.Charge.Charge)
	}
	clear(s.pending.all)
}
