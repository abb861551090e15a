package ratesync

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// forgedHeartbeats answers heartbeats with what it is given, and well where that is nil.
type forgedHeartbeats struct {
	*fakeServer
	reply []any
}

func (f *forgedHeartbeats) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := f.fakeServer.EvalSha(ctx, sha, keys, args...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reply == nil || cmd.Err() != nil {
		return cmd
	}
	return redis.NewCmdResult(f.reply, nil)
}

func (f *forgedHeartbeats) answer(reply []any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reply = reply
}

// A reply to a heartbeat that makes no sense is a failure, which changes neither the clock nor what
// is known of other nodes; the next good one ends it.
func TestNonsenseInAHeartbeat(t *testing.T) {
	for _, reply := range [][]any{
		{}, {"1", "0"}, {"1", "0", int64(1), int64(9), int64(0), int64(0)},
		{int64(1), "0", int64(1), int64(9), int64(0)}, {"1", int64(0), int64(1), int64(9), int64(0)},
		{"soon", "0", int64(1), int64(9), int64(0)}, {"1", "", int64(1), int64(9), int64(0)},
		{"1", "0", "1", int64(9), int64(0)}, {"1", "0", int64(1), nil, int64(0)}, {"1", "0", int64(1), int64(9), "mark"},
	} {
		if len(reply) == 5 { // what follows is about the control record
			reply = append(reply, "", []any{}, int64(1), []any{})
		}
		synctest.Test(t, func(t *testing.T) {
			n := newVnode(t)
			f := &forgedHeartbeats{fakeServer: &n.fakeServer}
			n.rep.client = f
			n.rep.Start()
			time.Sleep(2 * time.Second)
			before := n.rep.Status()
			if !before.Up || before.Nodes != 1 {
				t.Fatalf("before it: %+v, want one node that is up", before)
			}
			f.answer(reply)
			time.Sleep(2 * time.Second)
			if s := n.rep.Status(); s.Up || s.Nodes != 1 || s.Offset != before.Offset {
				t.Errorf("%v: %+v, want a failure and nothing else changed from %+v", reply, s, before)
			}
			f.answer(nil)
			time.Sleep(10 * time.Second)
			if s := n.rep.Status(); !s.Up {
				t.Errorf("%v: %+v after good ones", reply, s)
			}
		})
	}
}
