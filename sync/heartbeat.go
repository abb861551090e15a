package ratesync

import (
	"context"
	"time"

	"github.com/caddy-tide/ratelimit/internal/health"
)

// Start begins to tell other nodes that this one is there, if it has not begun.
func (r *Replicator) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.stop, r.done = cancel, done
	go func() {
		defer close(done)
		r.heartbeats(ctx)
	}()
}

// heartbeats renews this node's lease every second, and reads the server's time, how many
// nodes there are, and whether the server has forgotten.
func (r *Replicator) heartbeats(ctx context.Context) {
	for {
		wait, lost := heartbeatRate, r.lost.Load()
		err := r.heartbeat(ctx)
		r.note(nil, health.Heartbeat, err)
		if err == nil {
			r.log((*health.State).Expire)
			r.log((*health.State).SumFlaps)
			r.resend()
		}
		if ctx.Err() == nil {
			r.findLost(ctx, err)
		}
		now := r.lost.Load()
		if back := lost &^ now; back != 0 {
			r.retry(back)
		}
		if err != nil || now != 0 {
			wait = minWait
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// findLost notes which shards are lost, after a heartbeat: all where there is one server, and in a
// Cluster those whose server does not answer.
func (r *Replicator) findLost(ctx context.Context, err error) {
	switch {
	case r.cluster:
		lost, why := r.reach(ctx)
		if ctx.Err() == nil {
			r.lost.Store(lost)
			r.note(nil, health.Shards, why)
		}
	case err == nil:
		r.lost.Store(0)
	default:
		r.lost.Store(allShards)
	}
}

func (r *Replicator) heartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(r.timeout, heartbeatRate))
	defer cancel()
	r.seq++ // only the heartbeat's own goroutine uses it
	start := r.now()
	reply, err := heartbeatScript.Run(ctx, r.client, []string{r.keys.Nodes(0)}, r.node, r.seq, Lease.Milliseconds(), r.answered).Slice()
	end := r.now()
	if err != nil {
		return err
	}
	if len(reply) != 5 {
		return ErrReply
	}
	server, ok := parseTime(reply[0], reply[1])
	held, ok2 := reply[2].(int64)
	nodes, ok3 := reply[3].(int64)
	mark, ok4 := reply[4].(int64)
	if !ok || !ok2 || !ok3 || !ok4 {
		return ErrReply
	}
	r.nodes.Store(nodes)
	switch away := time.Since(r.answeredAt) >= Lease; {
	case mark <= r.mark:
	case held < 0 && away:
		// The lease has ended, or the server has forgotten as well: nobody can tell.
		r.noteLoss(false)
	default:
		r.noteLoss(true)
	}
	r.mark = max(r.mark, mark)
	r.answered, r.answeredAt = r.seq, time.Now()
	r.keepTime(server, start, end)
	return nil
}

// retry has every table that has lost one of these shards try again at once: they are back, and the
// next cycle may be an hour away.
func (r *Replicator) retry(back uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sources {
		if at := s.at.Load(); at != nil && at.lost.Load()&back != 0 {
			at.due.Store(true)
			s.Wake()
		}
	}
}
