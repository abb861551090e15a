package ratesync

import (
	"context"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Look asks the server about keys, and returns what it says, and its clock. Nothing is
// written there.
func (s *TableSyncer) Look(ctx context.Context, updates []table.Update) (replies []cell.Reply, server int64, err error) {
	a := s.current.Load()
	if a == nil {
		return nil, 0, redisconn.ErrDown
	}
	r := a.group.r
	c := NewPushCall(0)
	for i := range updates {
		c.Push(s, r.keys.Cells(s.spec), &updates[i], false)
	}
	c.Tell(r.keys, s, updates[0].ID)
	if err = c.Send(ctx, r.client); err == nil {
		err = c.Rejection()
	}
	return c.Answer.Cells, c.Now * int64(time.Microsecond), err
}
