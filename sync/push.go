package ratesync

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// batch is one call of the script. Its messages are acknowledged or failed when it returns.
func (s *Source) batch(ctx context.Context, at *attachment, messages []table.Message) error {
	r, rate := at.to.r, time.Duration(at.rate.Load())
	if !at.flushing {
		var cancel context.CancelFunc
		ctx, cancel = CallContext(ctx, r.callTime(at))
		defer cancel()
	}
	if bans := s.bans.Load(); bans != nil {
		of := make([]keys.ID, len(messages))
		for i := range messages {
			of[i] = messages[i].ID
		}
		if err := bans.Read(ctx, r.callTime(at), of); err != nil {
			r.stats.failures.Add(1)
			s.table.Fail(messages)
			return err
		}
	}
	c := pushCalls.Get().(*pushCall)
	defer pushCalls.Put(c)
	c.write(r.keys, s, rate, messages)
	reply, err := c.send(ctx, r.client)
	if err == nil {
		err = c.read(reply, messages)
	}
	if err != nil {
		r.stats.failures.Add(1)
		s.table.Fail(messages)
		return err
	}
	r.stats.calls.Add(1)
	r.stats.keys.Add(int64(len(messages)))
	now := r.now()
	r.stats.last.Store(now)
	r.stats.failedKeys.Add(int64(len(c.rejected)))
	for _, text := range c.rejected {
		if text == noSense || strings.HasPrefix(text, "WRONGTYPE") {
			r.noteForeign(s, text)
		} else {
			// It is about the whole server, such as OOM, which reports it for each write of a
			// script.
			err = redisconn.Rejection(text)
		}
	}
	if s.table.Ack(now, c.answers) {
		r.foundLoss()
	}
	if err != nil {
		r.stats.failures.Add(1)
	}
	return err
}

// A pushCall is one call of the script and its answer. They are used again, so that a key costs no
// allocation.
type pushCall struct {
	cell.Args

	answers  []table.Answer
	rejected []string // the server's errors for single keys
}

var pushCalls = sync.Pool{New: func() any { return new(pushCall) }}

// write lays out a call: the script, its keys, and its arguments as push.lua has them.
func (c *pushCall) write(in Keyspace, s *Source, rate time.Duration, messages []table.Message) {
	keys, fills := in.Table(s.spec), 0
	least, early, lower := s.least.Load(), false, false
	var ttl time.Duration
	for i := range messages {
		early, lower = early || messages[i].Early, lower || messages[i].Lower
		if messages[i].Bucket {
			fills++
		}
		ttl = max(ttl, s.spec.EpochTTL(messages[i].Span, rate))
	}
	c.Reset()
	c.End("evalsha")
	c.End(pushScript.Hash())
	sets := 0
	if least > 0 && lower {
		least = 1
	}
	if least > 0 {
		sets = 2
	}
	c.Number(int64(len(messages) + fills + sets))
	for i := range messages {
		c.Text = keys.appendEpoch(c.Text, messages[i].ID, messages[i].Epoch)
		c.Text = appendStamp(c.Text, messages[i].EpochStamp())
		c.End("")
	}
	for i := range messages {
		if messages[i].Bucket {
			c.Text = keys.appendFill(c.Text, messages[i].ID)
			c.End("")
		}
	}
	if least > 0 {
		shard := in.shardOf(messages[0].ID)
		c.End(in.Told(shard))
		c.End(in.Hurry(shard))
	}
	c.End(s.node)
	c.Number(s.seq.Add(1))
	c.Number(int64(fills))
	c.ttl(ttl, least, early)
	for i := range messages {
		c.count(&messages[i], fills > 0)
	}
	c.Finish()
}

// ttl lays out how long hashes live, and from which total on other regions are told of them, 0 for
// never; with hurry at once.
func (c *pushCall) ttl(ttl time.Duration, least int64, hurry bool) {
	c.Text = strconv.AppendInt(c.Text, ttl.Milliseconds(), 10)
	if least > 0 {
		c.Text = strconv.AppendInt(append(c.Text, ' '), least, 10)
		if hurry {
			c.Text = append(c.Text, '!')
		}
	}
	c.End("")
}

// count lays out what a message says.
func (c *pushCall) count(m *table.Message, bucket bool) {
	if m.Push {
		c.Number(m.Total)
		c.Text = strconv.AppendInt(c.Text, m.Attempts, 10)
		if m.Settles {
			c.Text = strconv.AppendInt(append(c.Text, ' '), m.Settled, 10)
		}
		c.End("")
	} else {
		c.End("")
		c.End("")
	}
	if !bucket {
		return
	}
	c.Text = strconv.AppendInt(c.Text, m.Unsent, 10)
	if m.Bucket {
		c.Text = strconv.AppendFloat(append(c.Text, ' '), m.Drain, 'g', 9, 64)
		c.Text = strconv.AppendFloat(append(c.Text, ' '), m.Level, 'f', 3, 64)
		if m.Reset.Stamp != 0 {
			c.Text = strconv.AppendInt(append(c.Text, ' '), m.Reset.Stamp, 10)
			c.Text = strconv.AppendInt(append(c.Text, ' '), m.Reset.Until/int64(time.Millisecond), 10)
		}
		if m.Resend {
			c.Text = append(c.Text, " !"...)
		}
	}
	c.End("")
}

// send calls the script, by its text where the server doesn't know it.
func (c *pushCall) send(ctx context.Context, client redis.UniversalClient) (string, error) {
	cmd := redis.NewStringCmd(ctx, c.All()...)
	err := client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		c.Replace("eval", pushSource)
		cmd = redis.NewStringCmd(ctx, c.All()...)
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// read takes the answers apart: a line for what this node's field held, and one for what all have.
func (c *pushCall) read(reply string, messages []table.Message) error {
	c.answers, c.rejected = c.answers[:0], c.rejected[:0]
	_, rest, _ := strings.Cut(reply, "\n") // the server's clock: seconds, microseconds
	_, rest, ok := strings.Cut(rest, "\n")
	for i := range messages {
		if !ok {
			return ErrReply
		}
		var held, sum string
		held, rest, ok = strings.Cut(rest, "\n")
		if !ok {
			return ErrReply
		}
		sum, rest, ok = strings.Cut(rest, "\n")
		a := parseAnswer(messages[i], held, sum)
		switch {
		case a.NewerReset.Stamp != 0: // it is sent again under that reset
		case held == "!":
			c.rejected = append(c.rejected, sum)
		case a.Failed:
			c.rejected = append(c.rejected, noSense)
		}
		c.answers = append(c.answers, a)
	}
	if ok {
		return ErrReply
	}
	return nil
}
