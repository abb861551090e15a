package ratesync

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A ChargedTable is one that a strict zone decides by while Redis can't be asked, and whose
// decisions are then charged to Redis.
type ChargedTable interface {
	// Tick makes the keys due that are dirty now, and DrainCharges takes out the charges of due
	// keys.
	Tick()
	DrainCharges(now int64, most int, dst []table.Charge) []table.Charge
	// HasDebt reports whether a key may have something to be charged, and returns its ID. ChargeOf
	// takes that out.
	HasDebt(key keys.Key) (id keys.ID, ok bool)
	ChargeOf(key keys.Key, now int64) (c table.Charge, ok bool)
	// AckCharge notes that Redis has counted a charge, and merges what it has of the key now.
	AckCharge(now int64, c table.Charge, reports []algorithms.Report)
	// FailCharge gives a charge back to the table.
	FailCharge(now int64, c table.Charge)
}

// A Charger has Redis count what a strict zone's node has decided alone.
type Charger interface {
	// Charge sends charges of a node in one round trip, and returns as many receipts.
	Charge(ctx context.Context, node string, charges []Charge) []Receipt
	// Unavailable is why Redis can't be asked about an id, nil if it can.
	Unavailable(id keys.ID) error
	// CallContext is the context of a call that a request waits for.
	CallContext(parent context.Context) (context.Context, context.CancelFunc)
	// Failed notes that such a call has failed, and returns the request's error: nil if it is to
	// ask Redis all the same.
	Failed(id keys.ID, err error) error
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

// maxCharges bounds the charges of one round trip. While Redis doesn't answer, a cycle makes no
// more pending ones than that, and requests make none once it is known to be unavailable.
const maxCharges = 100

// A pendingCharge is a charge that Redis has not confirmed. It is frozen: until its outcome is
// known it is sent again as it is.
type pendingCharge struct {
	Charge
	counted bool
	sending bool
	done    chan struct{} // closed when it is not sending any more
}

// pendingCharges are those of one Source. mu is taken before a stripe's lock.
type pendingCharges struct {
	mu  sync.Mutex
	all map[keys.Key]*pendingCharge
}

// charge sends all charges that are due. Those whose outcome is not known go first, as they were.
// Where a shard of a Cluster is lost, those of the others are sent all the same. The last error is
// returned.
func (s *Source) charge(ctx context.Context, at *attachment, c Charger) (failed error) {
	t := s.table.(ChargedTable)
	again := s.unanswered()
	t.Tick()
	for {
		batch := s.takeAgain(&again, at)
		if len(batch) == 0 {
			batch = s.takeDue(t, at)
		}
		if len(batch) == 0 {
			return failed
		}
		start := time.Now()
		call, end := context.WithTimeout(ctx, at.to.r.timeout)
		lost, err := s.send(call, at, c, batch)
		end()
		for _, p := range batch {
			at.answered |= 1 << ShardOf(p.ID)
		}
		at.failed |= lost
		at.answered &^= lost
		if err != nil {
			failed = err
			if !at.to.r.cluster || at.answered == 0 || ctx.Err() != nil {
				return failed
			}
		}
		if len(batch) == maxCharges {
			pauseFor(ctx, time.Since(start)) // requests, and Redis' other users, come in between
		}
	}
}

// unanswered returns the pending charges that nobody sends.
func (s *Source) unanswered() (all []*pendingCharge) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for _, p := range s.pending.all {
		if !p.sending {
			all = append(all, p)
		}
	}
	return all
}

// takeAgain takes a batch off the pending charges to send again. Left out are those that a request
// has sent meanwhile, and those of shards that have failed in this cycle.
func (s *Source) takeAgain(all *[]*pendingCharge, at *attachment) (batch []*pendingCharge) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for len(*all) > 0 && len(batch) < maxCharges {
		p := (*all)[0]
		*all = (*all)[1:]
		if s.pending.all[p.Key] == p && !p.sending && !at.hasFailed(p.ID) {
			p.begin()
			batch = append(batch, p)
		}
	}
	return batch
}

// takeDue takes a batch of charges that are due. Those of shards that have failed in this cycle
// wait for the next one.
func (s *Source) takeDue(t ChargedTable, at *attachment) (batch []*pendingCharge) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for len(batch) == 0 {
		due := t.DrainCharges(at.to.r.now(), maxCharges, nil)
		if len(due) == 0 {
			break
		}
		for _, c := range due {
			if at.hasFailed(c.ID) {
				t.FailCharge(at.to.r.now(), c)
			} else {
				batch = append(batch, s.newPending(c))
			}
		}
	}
	return batch
}

// hasFailed reports whether a call for the shard of an ID has failed in this cycle.
func (at *attachment) hasFailed(id keys.ID) bool { return at.failed>>ShardOf(id)&1 != 0 }

// newPending makes a charge a pending one. mu is held.
func (s *Source) newPending(c table.Charge) *pendingCharge {
	p := &pendingCharge{Charge: Charge{Charge: c, Seq: s.seq.Add(1), Made: time.Now()}}
	if s.pending.all == nil {
		s.pending.all = make(map[keys.Key]*pendingCharge)
	}
	s.pending.all[c.Key] = p
	p.begin()
	return p
}

func (p *pendingCharge) begin() { p.sending, p.done = true, make(chan struct{}) }

// ChargeNow sends what was decided alone for a key, so that a request for which Redis is asked next
// is decided with it. It returns at once where there is nothing, or where Redis is known not to
// answer. After an error Redis must not be asked: it may not know.
func (s *Source) ChargeNow(ctx context.Context, key keys.Key) error {
	at := s.at.Load()
	if at == nil {
		return nil
	}
	c := at.charger()
	t, _ := s.table.(ChargedTable)
	if c == nil {
		return nil
	}
	id, hasDebt := t.HasDebt(key)
	if !hasDebt {
		return nil
	}
	for c.Unavailable(id) == nil {
		p, done, mine := s.pendingOf(t, at, key)
		switch {
		case p == nil:
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
	return nil
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
func (s *Source) pendingOf(t ChargedTable, at *attachment, key keys.Key) (p *pendingCharge, done <-chan struct{}, mine bool) {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	if p = s.pending.all[key]; p != nil {
		if p.sending {
			return p, p.done, false
		}
		p.begin()
		return p, p.done, true
	}
	c, ok := t.ChargeOf(key, at.to.r.now())
	if !ok {
		return nil, nil, false
	}
	p = s.newPending(c)
	return p, p.done, true
}

// send sends pending charges and notes what came of each. One stays pending, as it is, where nobody
// knows whether Redis has counted it: shards are theirs, and failed is why. After an error that is
// about its key alone the charge goes back to the table.
func (s *Source) send(ctx context.Context, at *attachment, c Charger, batch []*pendingCharge) (shards uint64, failed error) {
	charges := make([]Charge, len(batch))
	for i, p := range batch {
		charges[i] = p.Charge
	}
	for i, r := range c.Charge(ctx, s.node, charges) {
		p := batch[i]
		switch {
		case r.Err == nil:
			at.to.r.stats.keys.Add(1)
		case r.Unknown:
			shards, failed = shards|1<<ShardOf(p.ID), r.Err
		case errors.Is(r.Err, ErrReply):
			at.to.r.noteForeign(s, noSense)
		default:
			at.to.r.noteForeign(s, redisconn.Classify(r.Err))
		}
		s.receive(at, p, r)
	}
	if failed != nil {
		at.to.r.stats.failures.Add(1)
		return shards, failed
	}
	at.to.r.stats.calls.Add(1)
	at.to.r.stats.last.Store(at.to.r.now())
	return 0, nil
}

// receive notes what came of a pending charge.
func (s *Source) receive(at *attachment, p *pendingCharge, r Receipt) {
	t, now := s.table.(ChargedTable), at.to.r.now()
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
		t.FailCharge(now, p.Charge.Charge)
		return
	}
	t.AckCharge(now, p.Charge.Charge, r.Reports)
}

// dropCharges gives all charges back to the table: what was counted of them is another store's
// business, or nobody's.
func (s *Source) dropCharges(now int64) {
	t, ok := s.table.(ChargedTable)
	if !ok {
		return
	}
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	for _, p := range s.pending.all {
		t.FailCharge(now, p.Charge.Charge)
	}
	clear(s.pending.all)
}
