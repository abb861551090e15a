package ratesync

import (
	"context"
	_ "embed"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/gauge"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
)

var (
	//go:embed slots.lua
	slotsSource string
	slotsScript = redis.NewScript(slotsSource)
)

// slotsTTL is how long a hash stays after its last message: twice as long as that counts. It is not
// set with each message, so it may be half of that, see slots.lua.
const slotsTTL = 2 * gauge.Lease

// A slotAnswer is what Redis answers to a message.
type slotAnswer struct {
	gauge.Answer
	err error
}

// call sends messages and returns an answer to each. Their keys are in one hash slot.
func (s *Slots) call(ctx context.Context, src *SlotSyncer, messages []gauge.Message) ([]slotAnswer, error) {
	of := s.r.keys.Zone(src.zone, "concurrent")
	keys := make([]string, len(messages))
	args := make([]any, 0, 4+2*len(messages))
	args = append(args, src.node, src.seq.Add(1), gauge.Lease.Milliseconds(), slotsTTL.Milliseconds())
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
	reply, err := slotsScript.Run(ctx, s.r.client, keys, args...).Text()
	if err != nil {
		return nil, err
	}
	return readSlots(reply, messages)
}

// readSlots takes a reply apart. What makes no sense is not believed.
func readSlots(reply string, messages []gauge.Message) ([]slotAnswer, error) {
	lines := strings.Split(reply, "\n")
	if len(lines) != len(messages) {
		return nil, ErrReply
	}
	all := make([]slotAnswer, len(messages))
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
			a.err = ErrReply
		}
	}
	return all, nil
}
