package gaugesync

import (
	"context"
	_ "embed"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

var (
	//go:embed gauge.lua
	source string
	script = redis.NewScript(source)
)

// A result is what Redis answers to a message.
type result struct {
	gauge.Answer
	err error
}

// call sends messages and returns an answer to each. Their keys are in one hash slot.
func (s *Syncer) call(ctx context.Context, src *Source, messages []gauge.Message) ([]result, error) {
	of := s.keys.Zone(src.zone, "concurrent")
	keys := make([]string, len(messages))
	args := make([]any, 0, 4+2*len(messages))
	args = append(args, src.node, src.seq.Add(1), gauge.Lease.Milliseconds(), ttl.Milliseconds())
	wanted := int64(0)
	for i := range messages {
		m := &messages[i]
		keys[i] = of.Of(m.ID)
		wanted += m.Wanted
		if m.Ask {
			args = append(args, "")
		} else {
			args = append(args, m.Own)
		}
	}
	for i := 0; wanted > 0 && i < len(messages); i++ {
		args = append(args, strconv.FormatInt(messages[i].Wanted, 10)+" "+strconv.FormatInt(messages[i].Limit, 10))
	}
	reply, err := script.Run(ctx, s.client, keys, args...).Text()
	if err != nil {
		return nil, err
	}
	return read(reply, messages)
}

// read takes a reply apart. What makes no sense is not believed.
func read(reply string, messages []gauge.Message) ([]result, error) {
	lines := strings.Split(reply, "\n")
	if len(lines) != len(messages) {
		return nil, ratesync.ErrReply
	}
	all := make([]result, len(messages))
	for i, line := range lines {
		a := &all[i]
		if why, isError := strings.CutPrefix(line, "!"); isError {
			a.err = redisconn.Rejection(why)
			continue
		}
		others, granted, _ := strings.Cut(line, " ")
		var err, err2 error
		a.Others, err = strconv.ParseInt(others, 10, 32)
		if granted != "" || messages[i].Wanted > 0 {
			a.Granted, err2 = strconv.ParseInt(granted, 10, 64)
		}
		if err != nil || err2 != nil || a.Others < 0 || a.Granted < 0 || a.Granted > messages[i].Wanted {
			a.err = ratesync.ErrReply
		}
	}
	return all, nil
}
