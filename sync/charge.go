package ratesync

import (
	"context"
	_ "embed"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

var (
	//go:embed charge_bucket.lua
	chargeBucket string
	//go:embed charge_log.lua
	chargeLog string
	//go:embed charge_tail.lua
	chargeTail string

	chargeBucketScript = redis.NewScript(strictHead + strictBucket + chargeBucket + chargeTail)
	chargeLogScript    = redis.NewScript(strictHead + strictLog + chargeLog + chargeTail)
)

// Charged are counters that a strict zone decides by while Redis can't be asked, and whose
// decisions are then charged to Redis.
type Charged interface {
	Tick()
	Charges(now int64, most int, dst []table.Charge) []table.Charge
	ChargeOf(key table.Key, now int64) (table.Charge, bool)
	Owes(key table.Key) bool
	Charged(now int64, c table.Charge, told []algorithms.Report) (refund table.Charge, owed bool)
	Uncharged(now int64, c table.Charge)
}

// Charging is where a strict zone's limit is charged: the Strict that decides for it, and its rule.
type Charging struct {
	Strict *Strict
	Rule   Rule

	rules  *ruleset
	script *redis.Script
}

// maxCharges bounds the charges of one round trip, and so those whose outcome is unknown.
const maxCharges = 100

// A bill is a charge on its way. It is frozen: until its outcome is known it is sent again as it
// is, under the same number, which Redis counts once.
type bill struct {
	table.Charge
	seq  int64
	made time.Time

	counted bool
	sending bool
	done    chan struct{} // closed when it is not sending any more
}

// bills are the charges of one Source that are on their way. mu is taken before a shard's lock.
type bills struct {
	mu  sync.Mutex
	all map[table.Key]*bill
}

func (c *Charging) prepare(zone string) {
	c.rules, _ = newRuleset(c.Strict.keys, zone, []Rule{c.Rule}, "") // fails for rules that don't go together
	c.script = chargeBucketScript
	if c.Rule.Kind == 'l' {
		c.script = chargeLogScript
	}
}

// charge sends all charges that are due. Those whose outcome is not known go first, as they were.
// Where a shard of a Cluster is lost, those of the others are sent all the same. The last error is
// returned.
func (s *Source) charge(ctx context.Context, at *attachment, c *Charging) (failed error) {
	t := s.counters.(Charged)
	for again := true; ; again = false {
		var batch []*bill
		if again {
			batch = s.unanswered()
			t.Tick()
		} else if batch = s.dueBills(t, at); len(batch) == 0 {
			return failed
		}
		start := time.Now()
		call, end := context.WithTimeout(ctx, at.to.timeout)
		lost, err := s.send(call, at, c, batch)
		end()
		for _, b := range batch {
			at.answered |= 1 << ShardOf(b.ID)
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

func (s *Source) unanswered() (batch []*bill) {
	s.bills.mu.Lock()
	defer s.bills.mu.Unlock()
	for _, b := range s.bills.all {
		if !b.sending {
			b.begin()
			batch = append(batch, b)
		}
	}
	return batch
}

func (s *Source) dueBills(t Charged, at *attachment) (batch []*bill) {
	s.bills.mu.Lock()
	defer s.bills.mu.Unlock()
	for _, c := range t.Charges(at.to.now(), maxCharges, nil) {
		batch = append(batch, s.newBill(c))
	}
	return batch
}

// newBill makes a bill of a charge. mu is held.
func (s *Source) newBill(c table.Charge) *bill {
	b := &bill{Charge: c, seq: s.seq.Add(1), made: time.Now()}
	if s.bills.all == nil {
		s.bills.all = make(map[table.Key]*bill)
	}
	s.bills.all[c.Key] = b
	b.begin()
	return b
}

func (b *bill) begin() { b.sending, b.done = true, make(chan struct{}) }

// Settle sends what was decided alone for a key, so that a request for which Redis is asked next
// is decided with it. It returns at once where there is nothing, or where Redis is known not to
// answer. After an error Redis must not be asked: it may not know.
func (s *Source) Settle(ctx context.Context, key table.Key) error {
	at := s.at.Load()
	if at == nil {
		return nil
	}
	c := at.charging.Load()
	t, _ := s.counters.(Charged)
	if c == nil || !t.Owes(key) {
		return nil
	}
	for {
		b, mine := s.billOf(t, at, key)
		switch {
		case b == nil:
			return nil
		case c.Strict.mute(b.ID) != nil:
			s.postpone(b, mine)
			return nil
		case !mine:
			if err := c.await(ctx, b); err != nil {
				return err
			}
		default:
			// The client may go away meanwhile, which is no reason to break off.
			call, end := c.Strict.callContext(context.WithoutCancel(ctx))
			_, err := s.send(call, at, c, []*bill{b})
			end()
			if c.Strict.closed.Load() || err == nil && !b.counted {
				return nil // the request meets the same: no Strict, or a Redis that refuses what is done to the key
			}
			if err != nil {
				return c.Strict.noteLate(b.ID, err)
			}
		}
	}
}

// await waits for a bill that another request or the turn sends, as long as Redis has for an answer.
func (c *Charging) await(ctx context.Context, b *bill) error {
	timer := time.NewTimer(time.Duration(c.Strict.timeout.Load()))
	defer timer.Stop()
	select {
	case <-b.done:
		return nil
	case <-timer.C:
		return c.Strict.noteLate(b.ID, context.DeadlineExceeded)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteLate finds out what an error says of Redis, and returns it.
func (s *Strict) noteLate(id [16]byte, err error) error {
	s.fateOf(id, err)
	if isLate(err) {
		s.timeouts.Add(1)
	}
	return err
}

// billOf returns the bill of a key that is on its way, or makes one; nil if there is nothing to
// charge. mine reports that the caller is to send it.
func (s *Source) billOf(t Charged, at *attachment, key table.Key) (b *bill, mine bool) {
	s.bills.mu.Lock()
	defer s.bills.mu.Unlock()
	if b = s.bills.all[key]; b != nil {
		if b.sending {
			return b, false
		}
		b.begin()
		return b, true
	}
	c, ok := t.ChargeOf(key, at.to.now())
	if !ok {
		return nil, false
	}
	return s.newBill(c), true
}

// postpone leaves a bill to the next turn.
func (s *Source) postpone(b *bill, mine bool) {
	if b == nil || !mine {
		return
	}
	s.bills.mu.Lock()
	b.sending = false
	close(b.done)
	s.bills.mu.Unlock()
}

// send sends bills and notes their outcome. An error that is about the server, or the way to it,
// leaves a bill as it is: nobody knows whether it was counted. One that is about the key gives the
// charge back to the table. shards are those in which an error of the first kind came.
func (s *Source) send(
	ctx context.Context, at *attachment, c *Charging, batch []*bill,
) (shards uint64, failed error) {
	if len(batch) == 0 {
		return 0, nil
	}
	replies := c.call(ctx, s.node, batch)
	for i, b := range batch {
		told, err := c.read(replies[i])
		switch {
		case err == nil:
			at.to.stats.keys.Add(1)
		case c.Strict.severe(err) && time.Since(b.made) < c.lasts():
			shards, failed = shards|1<<ShardOf(b.ID), err
		case errors.Is(err, errReply):
			at.to.noteForeign(s, noSense)
		default:
			at.to.noteForeign(s, redisconn.Classify(err))
		}
		s.note(at, c, b, told, err, failed)
	}
	if failed != nil {
		at.to.stats.failures.Add(1)
		return shards, failed
	}
	at.to.stats.exchanges.Add(1)
	at.to.stats.last.Store(at.to.now())
	return 0, nil
}

// lasts is how long a bill whose outcome is unknown is sent again: as long as Redis remembers it.
// What it charges has drained, or left the window, by then.
func (c *Charging) lasts() time.Duration {
	if c.Rule.Kind == 'l' {
		return c.Rule.Window + time.Minute/2
	}
	return c.Rule.drainTTL() - time.Minute/2
}

// note notes what came of a bill.
func (s *Source) note(
	at *attachment, c *Charging, b *bill, told []algorithms.Report, err, unknown error,
) {
	t, now := s.counters.(Charged), at.to.now()
	s.bills.mu.Lock()
	defer s.bills.mu.Unlock()
	b.sending = false
	close(b.done)
	if s.bills.all[b.Key] != b || err != nil && err == unknown {
		return
	}
	delete(s.bills.all, b.Key)
	b.counted = err == nil
	if err != nil {
		t.Uncharged(now, b.Charge)
		return
	}
	if refund, owed := t.Charged(now, b.Charge, told); owed {
		s.newBill(refund).sending = false // the next turn sends it
	}
}

// dropBills gives all charges back to the table: what was counted of them is another store's
// business, or nobody's.
func (s *Source) dropBills(now int64) {
	t, ok := s.counters.(Charged)
	if !ok {
		return
	}
	s.bills.mu.Lock()
	defer s.bills.mu.Unlock()
	for _, b := range s.bills.all {
		t.Uncharged(now, b.Charge)
	}
	clear(s.bills.all)
}

// call sends bills in one round trip.
func (c *Charging) call(ctx context.Context, field string, batch []*bill) []*redis.Cmd {
	replies := make([]*redis.Cmd, len(batch))
	run := func(eval func(redis.Pipeliner, *bill) *redis.Cmd, unknown bool) {
		pipe := c.Strict.client.Pipeline()
		for i, b := range batch {
			if !unknown || redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
				replies[i] = eval(pipe, b)
			}
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each reply has its error
		}
	}
	run(func(p redis.Pipeliner, b *bill) *redis.Cmd {
		return p.EvalSha(ctx, c.script.Hash(), c.keys(b), c.args(field, b)...)
	}, false)
	run(func(p redis.Pipeliner, b *bill) *redis.Cmd {
		return c.script.Eval(ctx, p, c.keys(b), c.args(field, b)...)
	}, true)
	return replies
}

// keys are the record of charges and the base of the rule's keys.
func (c *Charging) keys(b *bill) []string {
	keys := c.rules.keys[1]
	return []string{keys.ChargesOf(b.ID), keys.Of(b.ID)}
}

func (c *Charging) args(field string, b *bill) []any {
	parts := max(1, len(b.Hits))
	args := make([]any, 0, 6+3*parts+5)
	args = append(args, field, b.seq, 0, 0, 0, parts)
	if c.Rule.Kind == 'l' {
		for _, h := range b.Hits {
			args = append(args, h.At/int64(time.Microsecond), h.N, 0)
		}
	} else {
		_, unit := inLua(c.Rule.Window)
		per := 1000 / unit // nanoseconds
		args = append(args, b.At/int64(time.Microsecond), b.Whole, (b.Part+per-1)/per)
	}
	return append(args, c.Rule.args(c.rules.zone)...)
}

// read reads what Redis holds of a key after a charge.
func (c *Charging) read(reply *redis.Cmd) ([]algorithms.Report, error) {
	v, err := reply.Result()
	if err != nil {
		return nil, err
	}
	o, err := parseOutcome(v, 1, 0)
	if err != nil {
		return nil, err
	}
	return verdicts([]Rule{c.Rule}, o, 1, nil)[0].Reports, nil
}
