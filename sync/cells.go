package ratesync

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

var sayHash = redis.NewScript(cell.Script).Hash()

// NextSeq is the number of a call that is about to be made of the states of tables that are read
// after it. It begins at the time, so that a node whose clock is right is above what it said
// before.
func NextSeq(of ...*TableSyncer) int64 {
	seq := time.Now().UnixMicro()
	for i := 0; i < len(of); {
		switch last := of[i].seq.Load(); {
		case last >= seq:
			seq, i = last+1, 0
		case of[i].seq.CompareAndSwap(last, seq):
			i++
		}
	}
	return seq
}

// A cellsOut says what a table has spent.
type cellsOut struct {
	sender[table.Update]

	s *TableSyncer
	a *attachment
}

var cellBuffers sync.Pool

func (x *cellsOut) dequeue(most int, urgent bool, dst []table.Update) []table.Update {
	return x.s.table.TakeUpdates(x.a.group.r.now(), NextSeq(x.s), most, urgent, dst)
}

func (x *cellsOut) idOf(m table.Update) keys.ID { return m.ID }

func (x *cellsOut) skipped() uint64 { return unavailableBy(x.a, x.failed) }

func (x *cellsOut) call(ctx context.Context, updates []table.Update) error {
	return x.s.push(ctx, x.a, updates)
}

func (x *cellsOut) fail(updates []table.Update) { x.s.table.Unanswered(updates) }

// push is one call of the script. Its messages are answered or not when it returns.
func (s *TableSyncer) push(ctx context.Context, a *attachment, updates []table.Update) error {
	r := a.group.r
	if !a.flushing {
		var cancel context.CancelFunc
		ctx, cancel = CallContext(ctx, r.callTime(a))
		defer cancel()
	}
	c := NewPushCall(updates[0].State.Seq)
	defer c.Free()
	in, bans, asks := r.keys.Cells(s.spec), s.bans.Load(), []ban.Message(nil)
	for i := range updates {
		c.Push(s, in, &updates[i], false)
		if bans != nil {
			asks = append(asks, bans.Ask(updates[i].ID, r.now()))
			c.Ban(bans.keys, asks[i])
		}
	}
	c.Tell(r.keys, s, updates[0].ID)
	err := c.Send(ctx, r.client)
	if err != nil {
		r.stats.failures.Add(1)
		s.table.Unanswered(updates)
		return err
	}
	now := r.now()
	r.notePushed(s, c, now)
	if bans != nil {
		bans.ack(asks, &c.Answer)
	}
	if s.table.Merge(now, c.Now*int64(time.Microsecond), updates, c.Answer.Cells) {
		r.foundLoss()
	}
	if err = c.Rejection(); err != nil {
		r.stats.failures.Add(1)
	}
	return err
}

// PushLate says what has changed of a table whose zone has gone, as responses that begin later
// settle what they have cost. Once nothing uses its Redis any more, nothing is said. It doesn't
// wait for a zone that is going: what comes too late for its last sync is said when it has gone.
func (s *TableSyncer) PushLate() {
	if s.current.Load() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Load() == nil { // a reload may have brought it back
		s.pushLate(s.last)
	}
}

func (s *TableSyncer) pushLate(a *attachment) {
	if a == nil || s.late.Add(1) > 1 {
		return // who says it is under way
	}
	r := a.group.r
	if !r.work.Go(func() {
		<-a.done           // what its loop has sent is answered or not,
		a.flushing = false // and no flush bounds the calls
		for n := int32(0); !s.late.CompareAndSwap(n, 0); {
			if n = s.late.Load(); s.current.Load() != nil {
				continue // a reload has brought the zone back meanwhile, which says all
			}
			s.table.MakeOutgoing()
			updates := s.table.TakeUpdates(r.now(), NextSeq(s), sayLate, false, nil)
			for i := range updates {
				_ = s.push(context.Background(), a, updates[i:i+1])
			}
		}
	}) {
		s.late.Store(0)
	}
}

// sayLate is how many keys are said at once of a table whose zone has gone.
const sayLate = 1 << 16

// notePushed notes that a call of a table was answered.
func (r *Replicator) notePushed(s *TableSyncer, c *PushCall, now int64) {
	r.stats.calls.Add(1)
	r.stats.keys.Add(int64(len(c.Call.Cells)))
	r.stats.last.Store(now)
	for i := range c.Answer.Cells {
		if why := c.Answer.Cells[i].Err; why != "" {
			r.stats.failedKeys.Add(1)
			if isForeign(why) {
				r.noteForeign(s, why)
			}
		}
	}
}

// isForeign reports whether an error is about one key, which another program uses. Others are about
// the whole server, such as OOM, which reports it for each write of a script.
func isForeign(why string) bool { return why == cell.NoSense || strings.HasPrefix(why, "WRONGTYPE") }

// A PushCall is one call of the script of cells and its answer. They are used again, so that a key
// costs no allocation.
type PushCall struct {
	cell.Call
	cell.Answer
	args cell.Args
	keys []byte // of the cells
	ends []int
}

var pushCalls = sync.Pool{New: func() any { return new(PushCall) }}

// NewPushCall returns an empty call with a number. Free gives it back.
func NewPushCall(seq int64) *PushCall {
	c := pushCalls.Get().(*PushCall)
	c.Call = cell.Call{Seq: seq, Cells: c.Call.Cells[:0], Bans: c.Call.Bans[:0], Asks: c.Call.Asks[:0]}
	c.keys, c.ends = c.keys[:0], c.ends[:0]
	return c
}

// Free ends the use of a call.
func (c *PushCall) Free() { pushCalls.Put(c) }

// Push adds what a table, whose cells have these keys, says of a key. reserved is set where
// what is granted is reserved until it is settled.
func (c *PushCall) Push(s *TableSyncer, in Keys, m *table.Update, reserved bool) {
	c.add(in, m.ID, cell.Update{Rule: s.ruleOf(m, reserved), Node: s.node, State: m.State})
}

// add adds an update of a cell, except its key.
func (c *PushCall) add(in Keys, id keys.ID, u cell.Update) {
	c.keys = in.append(c.keys, id)
	c.ends = append(c.ends, len(c.keys))
	c.Call.Cells = append(c.Call.Cells, u)
}

// Tell has other regions told of what a table says, in a call for the shard of an id.
func (c *PushCall) Tell(in Keyspace, s *TableSyncer, id keys.ID) {
	least := s.least.Load()
	if least == 0 {
		return
	}
	c.Told = in.Told(in.shardOf(id))
	if c.Least == 0 || least < c.Least {
		c.Least = least
	}
}

// Cmd is the command that makes the call: by the text of the script where the server doesn't know
// it.
func (c *PushCall) Cmd(ctx context.Context, known bool) *redis.StringCmd {
	all, from := string(c.keys), 0
	for i, end := range c.ends {
		c.Call.Cells[i].Key = all[from:end]
		from = end
	}
	c.args.Reset()
	if known {
		c.args.End("evalsha")
		c.args.End(sayHash)
	} else {
		c.args.End("eval")
		c.args.End(cell.Script)
	}
	c.Append(&c.args)
	c.args.Finish()
	return redis.NewStringCmd(ctx, c.args.All()...)
}

// Send makes the call and reads the answer.
func (c *PushCall) Send(ctx context.Context, client redis.UniversalClient) error {
	cmd := c.Cmd(ctx, true)
	err := client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = c.Cmd(ctx, false)
		err = client.Process(ctx, cmd)
	}
	if err != nil {
		return err
	}
	return c.Read(cmd.Val(), &c.Answer)
}

// Rejection is an error about the whole server that it reported for a cell, nil for none.
func (c *PushCall) Rejection() error {
	for i := range c.Answer.Cells {
		if why := c.Answer.Cells[i].Err; why != "" && !isForeign(why) {
			return redisconn.Rejection(why)
		}
	}
	return nil
}
