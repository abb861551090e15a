package ratesync

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// batch is one call of the script. Its messages are settled or failed when it returns.
func (r *Replicator) batch(ctx context.Context, s *Source, at *attachment, messages []table.Message) error {
	rate := time.Duration(at.rate.Load())
	if !at.flushing {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cycle.CallTime(r.timeout, rate))
		defer cancel()
	}
	l := letters.Get().(*letter)
	defer letters.Put(l)
	l.write(r.keys, s, rate, messages)
	reply, err := l.send(ctx, r.client)
	if err == nil {
		err = l.read(reply, messages)
	}
	if err != nil {
		r.stats.failures.Add(1)
		s.counters.Fail(messages)
		return err
	}
	r.stats.exchanges.Add(1)
	r.stats.keys.Add(int64(len(messages)))
	now := r.now()
	r.stats.last.Store(now)
	r.stats.failedKeys.Add(int64(len(l.refused)))
	for _, text := range l.refused {
		if text == noSense || strings.HasPrefix(text, "WRONGTYPE") {
			r.noteForeign(s, text)
		} else {
			err = refusal(text)
		}
	}
	if s.counters.Settle(now, l.answers) {
		r.noteLoss(true)
	}
	if err != nil {
		r.stats.failures.Add(1)
	}
	return err
}

// A refusal is an error of the server in the answer for one key that is about the server, such as OOM: it says that of each write of a script, and
// not of the script.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError makes it an error like those that the client returns.
func (refusal) RedisError() {}

// A letter is one call of the script and its answer. Letters are used again, so that a key costs no allocation: what a call needs is one text, of which
// all arguments are parts.
type letter struct {
	text  []byte
	ends  []int // of the arguments in text
	parts []string
	args  []any // pointers to parts

	answers []table.Answer
	refused []string // what the server said of keys that it could not do
}

var letters = sync.Pool{New: func() any { return new(letter) }}

// write lays out a call: the script, its keys, and its arguments as push.lua has them.
func (l *letter) write(in Keyspace, s *Source, rate time.Duration, messages []table.Message) {
	keys, fills := in.Table(s.spec), 0
	var ttl time.Duration
	for i := range messages {
		if messages[i].Bucket {
			fills++
		}
		ttl = max(ttl, s.spec.EpochTTL(messages[i].Span, rate))
	}
	l.text, l.ends = l.text[:0], l.ends[:0]
	l.end("evalsha")
	l.end(pushScript.Hash())
	l.number(int64(len(messages) + fills))
	for i := range messages {
		l.text = keys.appendEpoch(l.text, messages[i].ID, messages[i].Epoch)
		l.end("")
	}
	for i := range messages {
		if messages[i].Bucket {
			l.text = keys.appendFill(l.text, messages[i].ID)
			l.end("")
		}
	}
	l.end(s.node)
	l.number(s.seq.Add(1))
	l.number(int64(fills))
	l.number(ttl.Milliseconds())
	for i := range messages {
		l.count(&messages[i], fills > 0)
	}
	l.seal()
}

// count lays out what a message says.
func (l *letter) count(m *table.Message, bucket bool) {
	if m.Push {
		l.number(m.Total)
		l.number(m.Attempts)
	} else {
		l.end("")
		l.end("")
	}
	if !bucket {
		return
	}
	l.text = strconv.AppendInt(l.text, m.Unsent, 10)
	if m.Bucket {
		l.text = strconv.AppendFloat(append(l.text, ' '), m.Drain, 'g', 9, 64)
		l.text = strconv.AppendFloat(append(l.text, ' '), m.Level, 'f', 3, 64)
		if m.Resend {
			l.text = append(l.text, " !"...)
		}
	}
	l.end("")
}

func (l *letter) number(n int64) {
	l.text = strconv.AppendInt(l.text, n, 10)
	l.end("")
}

// end ends an argument, after its last part.
func (l *letter) end(part string) {
	l.text = append(l.text, part...)
	l.ends = append(l.ends, len(l.text))
}

// seal makes the arguments of the text.
func (l *letter) seal() {
	text, from := string(l.text), 0
	l.parts = l.parts[:0]
	for _, end := range l.ends {
		l.parts = append(l.parts, text[from:end])
		from = end
	}
	l.args = l.args[:0]
	for i := range l.parts {
		l.args = append(l.args, &l.parts[i])
	}
}

// send calls the script, by its text where the server doesn't know it.
func (l *letter) send(ctx context.Context, client redis.UniversalClient) (string, error) {
	cmd := redis.NewStringCmd(ctx, l.args...)
	err := client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		l.parts[0], l.parts[1] = "eval", pushSource
		cmd = redis.NewStringCmd(ctx, l.args...)
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// read takes the answers apart: a line for what this node's field held, and one for what all have.
func (l *letter) read(reply string, messages []table.Message) error {
	l.answers, l.refused = l.answers[:0], l.refused[:0]
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
		case held == "!":
			l.refused = append(l.refused, sum)
		case a.Failed:
			l.refused = append(l.refused, noSense)
		}
		l.answers = append(l.answers, a)
	}
	if ok {
		return ErrReply
	}
	return nil
}
