package ratesync

import (
	"context"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Look asks the server about keys, with messages that push nothing, and returns what it says.
// Nothing is written there.
func (s *Source) Look(ctx context.Context, messages []table.Message) ([]table.Answer, error) {
	at := s.at.Load()
	if at == nil || LostFor(s.Lost(), messages[0].ID) {
		return nil, redisconn.ErrDown
	}
	c := pushCalls.Get().(*pushCall)
	defer pushCalls.Put(c)
	c.write(at.to.r.keys, s, time.Duration(at.rate.Load()), messages)
	reply, err := c.send(ctx, at.to.r.client)
	if err == nil {
		err = c.read(reply, messages)
	}
	if err == nil && len(c.rejected) > 0 {
		err = redisconn.Rejection(c.rejected[0])
	}
	if err != nil {
		return nil, err
	}
	return slices.Clone(c.answers), nil
}
