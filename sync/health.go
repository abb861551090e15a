package ratesync

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

var errReply = errors.New("the reply of redis has another form than its script gives")

// The beat in the list of what fails, and what it finds of the shards of a Cluster.
const (
	beatName   = "nodes"
	shardsName = "shards"
)

// note keeps the list of what fails, and logs once on the way down and once on the way up, but not more than one pair a minute. s is nil for the beat. That a connection was closed
// doesn't say why; the next attempt does, and if it succeeds there was nothing to tell.
func (r *Replicator) note(s *Source, name string, err error) {
	if errors.Is(err, context.Canceled) {
		return // this node stopped it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, attached := r.sources[s]; s != nil && !attached {
		return // it has left, and nobody would take it off the list
	}
	before := len(r.failing)
	if err == nil {
		delete(r.failing, name)
	} else {
		r.failing[name] = Classify(err)
	}
	switch {
	case len(r.failing) > 0:
		if before == 0 {
			r.since = time.Now()
		}
		if why, failed := r.failing[name]; failed && !r.told && (why != closed || time.Since(r.since) >= minWait) {
			r.tellDown(why)
		}
	case before > 0:
		r.tellUp()
	}
}

const (
	messageDown  = "exchange with redis fails; limits hold with this node's counts and the last ones of the others, and it is tried again"
	messageUp    = "exchange with redis works again"
	messageFlaps = "exchange with redis has failed and works again"
	// tellRate is the least time between two lines that say that the exchange fails: a server that comes and goes would fill the log.
	tellRate = time.Minute
)

// tellDown logs that an outage has begun, unless another one was logged within the last minute. Then it is counted when it ends, or logged when that minute
// is over.
func (r *Replicator) tellDown(why string) {
	if !r.toldAt.IsZero() && time.Since(r.toldAt) < tellRate {
		r.untold = true
		return
	}
	r.told, r.untold, r.toldAt = true, false, time.Now()
	r.log.Warn(messageDown, append(r.countFlaps(), warning.Field(warning.SyncFails), zap.String("reason", why))...)
}

// tellUp logs the end of an outage that was logged.
func (r *Replicator) tellUp() {
	if r.told {
		r.log.Info(messageUp, zap.Duration("after", time.Since(r.since)))
	}
	if r.untold {
		r.flaps++
	}
	r.told, r.untold = false, false
}

// tellFlaps logs that there were outages that no line has told of, once the last minute with a line is over and all is well.
func (r *Replicator) tellFlaps() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flaps > 0 && len(r.failing) == 0 && time.Since(r.toldAt) >= tellRate {
		r.log.Info(messageFlaps, r.countFlaps()...)
	}
}

// countFlaps gives the outages since the last line that no line has told of, and begins to count anew.
func (r *Replicator) countFlaps() (fields []zap.Field) {
	if r.flaps > 0 {
		fields = append(fields, zap.Int("outages", r.flaps))
	}
	r.flaps = 0
	return fields
}

// calm is how long nothing must have been reported of what fails for it to be well again.
const calm = 5 * time.Second

// Report tells that something else that uses this Redis fails, by a name. It is well again when a beat is answered and nothing was reported for a while:
// who reports may be gone by then.
func (r *Replicator) Report(name string, err error) {
	r.mu.Lock()
	r.reported[name] = time.Now()
	r.mu.Unlock()
	r.note(nil, name, err)
}

// calmed takes what has not been reported lately off the list of what fails.
func (r *Replicator) calmed() {
	var well []string
	r.mu.Lock()
	for name, at := range r.reported {
		if time.Since(at) > calm {
			well = append(well, name)
			delete(r.reported, name)
		}
	}
	r.mu.Unlock()
	for _, name := range well {
		r.note(nil, name, nil)
	}
}

// complain logs at most once a minute that one key can't be exchanged.
func (r *Replicator) complain(s *Source, why any) {
	r.mu.Lock()
	quiet := time.Since(r.complained) < time.Minute
	if !quiet {
		r.complained = time.Now()
	}
	r.mu.Unlock()
	if !quiet {
		r.log.Warn("redis refuses some counts of a zone, probably because another program uses their keys; other counts are not affected",
			warning.Field(warning.ForeignKey), zap.String("zone", s.spec.Zone), zap.Any("reason", why))
	}
}

// failure says why the exchange of a table fails, or that of all.
func (r *Replicator) failure(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.failing[name], r.failing[beatName], r.failing[shardsName], unreachable)
}

// mournUnsent logs that the last counts of a table could not be sent, if there are any. Of the tables of one zone, which count the same requests, the
// first one speaks.
func (r *Replicator) mournUnsent(s *Source, reason string) {
	keys, requests := s.counters.Unsent(r.now())
	if requests == 0 {
		return
	}
	r.mu.Lock()
	said, again := r.unsent[s.spec.Zone]
	quiet := again && time.Since(said) < time.Minute
	if !quiet {
		r.unsent[s.spec.Zone] = time.Now()
	}
	r.mu.Unlock()
	if !quiet {
		r.log.Warn("the last counts of a zone could not be sent to redis; the other nodes don't learn of these requests, and may admit as many more",
			warning.Field(warning.NotSent), zap.String("zone", s.spec.Zone), zap.Int("keys", keys), zap.Int64("requests", requests), zap.String("reason", reason))
	}
}

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
		r.beats(ctx)
	}()
}

// beats says every second that this node is there, and learns the server's time, how many nodes there are, and whether the server has forgotten.
func (r *Replicator) beats(ctx context.Context) {
	for {
		wait, lost := beatRate, r.lost.Load()
		err := r.beat(ctx)
		r.note(nil, beatName, err)
		if err == nil {
			r.calmed()
			r.tellFlaps()
			r.resend(false)
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

// findLost notes which shards are lost, after a beat: all where there is one server, and in a Cluster those whose server does not answer.
func (r *Replicator) findLost(ctx context.Context, err error) {
	switch {
	case r.cluster:
		lost, why := r.reach(ctx)
		if ctx.Err() == nil {
			r.lost.Store(lost)
			r.note(nil, shardsName, why)
		}
	case err == nil:
		r.lost.Store(0)
	default:
		r.lost.Store(allShards)
	}
}

func (r *Replicator) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(r.timeout, beatRate))
	defer cancel()
	r.seq++ // only the beat's own goroutine uses it
	start := r.now()
	reply, err := beatScript.Run(ctx, r.client, []string{r.keys.Nodes(0)}, r.node, r.seq, Lease.Milliseconds(), r.beaten).Slice()
	end := r.now()
	if err != nil {
		return err
	}
	if len(reply) != 5 {
		return errReply
	}
	server, ok := parseTime(reply[0], reply[1])
	held, ok2 := reply[2].(int64)
	nodes, ok3 := reply[3].(int64)
	mark, ok4 := reply[4].(int64)
	if !ok || !ok2 || !ok3 || !ok4 {
		return errReply
	}
	r.nodes.Store(nodes)
	switch away := time.Since(r.beatenAt) >= Lease; {
	case mark <= r.mark:
	case held < 0 && away:
		r.resend(true) // the lease has ended, or the server has forgotten as well: nobody can tell
	default:
		r.forgot()
	}
	r.mark = max(r.mark, mark)
	r.beaten, r.beatenAt = r.seq, time.Now()
	r.keepTime(server, start, end)
	return nil
}

// retry has every table that has lost one of these shards try again at once: they are back, and the next turn may be an hour away.
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
