package ratesync

import (
	"context"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
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

// LookInCells asks the server about keys that are cells, and returns what it says, and its clock.
// Nothing is written there.
func (s *Source) LookInCells(ctx context.Context, said []table.Said) (heard []cell.Heard, server int64, err error) {
	at := s.at.Load()
	if at == nil {
		return nil, 0, redisconn.ErrDown
	}
	r := at.to.r
	c := NewSayCall(0)
	for i := range said {
		c.Say(s, r.keys.Cells(s.spec), &said[i], false)
	}
	c.Tell(r.keys, s, said[0].ID)
	if err = c.Send(ctx, r.client); err == nil {
		err = c.Rejection()
	}
	return c.Answer.Cells, c.Now * int64(time.Microsecond), err
}
