package strict

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/reset"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Limiter lets Redis decide, request by request (sync_rate strict): atomically, by Redis' own
// clock, all limits of a zone in one call.
//
// For each key one call is in flight at a time; requests that come meanwhile share the next one. A
// call carries a number that rises, so that one that is sent twice counts once. Of a call that was
// sent and not answered nobody knows whether it counted: the next one for the same key rolls it
// back. When Redis is unavailable, Take fails at once, and the caller decides by its own counters.
// After CloseBy it fails with ErrClosed.
//
// It is safe for concurrent use.
type Limiter struct {
	client  redis.UniversalClient
	keys    ratesync.Keyspace
	node    string
	timeout atomic.Int64 // nanoseconds
	cluster bool

	// seq numbers the calls. It begins at the time, so that a client of a later process never
	// repeats a number.
	seq atomic.Int64
	// bans are those of the zones that have some; nil where none has.
	bans atomic.Pointer[map[string]*ban.Register]
	// resets are what was reset, by zone; nil where nothing was.
	resets    atomic.Pointer[map[string]*reset.Set]
	suspended atomic.Int64 // keys whose queue is suspended
	circuits  [ratesync.ShardCount]circuit
	trips     atomic.Int64
	timeouts  atomic.Int64
	backlog   backlogs

	ctx        context.Context // ends when CloseBy gives up
	cancel     context.CancelFunc
	probes     context.Context // ends when CloseBy begins
	stopProbes context.CancelFunc

	work ratesync.Work // that CloseBy waits for

	askers sync.Map // by zone

	mu       sync.Mutex
	made     int
	zones    map[string][]*ruleset
	memories map[string]*Memory // by zone
}

const (
	// rulesetTime is how long a ruleset is kept that nobody asks for.
	rulesetTime = time.Minute
	// maxSuspended bounds the keys that are remembered because a call's outcome is not known.
	// Beyond it a grant that nobody used stays spent.
	maxSuspended = 4096
)

// New makes a Limiter of a namespace. It does no network I/O. timeout bounds a call from the moment
// at which it has its connection.
func New(client redis.UniversalClient, namespace string, timeout time.Duration) *Limiter {
	s := &Limiter{client: client, keys: ratesync.NewKeyspace(namespace), node: ratesync.NewNode(), zones: make(map[string][]*ruleset), memories: make(map[string]*Memory)}
	_, s.cluster = client.(*redis.ClusterClient)
	s.SetTimeout(timeout)
	s.seq.Store(time.Now().UnixMicro())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.probes, s.stopProbes = context.WithCancel(s.ctx)
	n := s.callsAtOnce()
	for i := range s.circuits {
		s.circuits[i].places.free = n
	}
	return s
}

// SetTimeout changes the timeout of the calls to come.
func (s *Limiter) SetTimeout(timeout time.Duration) { s.timeout.Store(int64(timeout)) }

// Timeout is how long a request waits for an answer.
func (s *Limiter) Timeout() time.Duration { return time.Duration(s.timeout.Load()) }

// callsAtOnce is how many calls one circuit may have under way. It keeps them from waiting for a
// connection longer than for Redis: a pool has as many connections, and the pool of a Cluster's
// node serves a part of the circuits.
func (s *Limiter) callsAtOnce() int {
	switch c := s.client.(type) {
	case *redis.Client:
		return max(1, c.Options().PoolSize)
	case *redis.ClusterClient:
		return max(1, c.Options().PoolSize/8)
	}
	return 10
}

// A Grant is what a Take got, for giving it back. The zero Grant is none.
type Grant struct {
	By *Limiter // who decided, nil for nobody
	N  int64    // units asked for
	// Seq is the number of the call that decided, and Granted how much it had granted, to all
	// requests in it up to those with the same limits, when what it says of the limits held.
	Seq, Granted int64
	// Asked is when the call was made, by the process' clock. Redis decided then or later.
	Asked int64

	ruleset *ruleset
	rules   []Rule
	reset   reset.Reset
	id      [16]byte
	at      int64
	unit    int64 // the first of them, from 1; 0 where the request was denied
}

// Admitted reports whether what was asked for was spent in each limit.
func (g Grant) Admitted() bool { return g.unit > 0 }

// Take asks for n units of a key in each limit of a zone, and appends what they say to dst. None
// are always granted. The zone's rules must stay as they are. It waits for the call that
// asks for it, however many ask at once. An error means that Redis has not decided; the context's
// end is one as well, and what is granted later is refunded. Where denied requests count, one that
// is denied is charged with the key's next call, as a penalty at the instant of the denial: buckets
// fill at most to their size. What the rules say is how they stand with that.
func (s *Limiter) Take(ctx context.Context, zone string, rules []Rule, id [16]byte, n int64, dst []Verdict) ([]Verdict, Grant, error) {
	if s.work.HasEnded() {
		return dst, Grant{}, ErrClosed
	}
	c, _ := s.circuitOf(id)
	if err := c.unavailable(); err != nil {
		return dst, Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return dst, Grant{}, err
	}
	rs, err := s.ruleset(zone, rules)
	if err != nil {
		return dst, Grant{}, err
	}
	w := &waiter{done: make(chan struct{}), rules: rules, cost: n, reset: s.resetOf(zone, id)}
	if !s.join(rs, id, w) {
		return dst, Grant{}, ErrClosed
	}
	if err := s.wait(ctx, rs, id, w); err != nil {
		return dst, Grant{}, err
	}
	if w.err != nil {
		if redisconn.IsLate(w.err) {
			s.timeouts.Add(1)
		}
		return dst, Grant{}, w.err
	}
	o := w.outcome
	g := Grant{By: s, N: n, Seq: o.seq, Granted: o.before + o.granted, Asked: o.asked, ruleset: rs, rules: rules, reset: w.reset, id: id, at: o.at}
	if w.place.admitted {
		g.unit = o.before + w.place.before + 1
	}
	return verdicts(rules, o, w.place, dst), g, nil
}

// wait waits until a request is decided. An error means that it was not, and has left its queue.
func (s *Limiter) wait(ctx context.Context, rs *ruleset, id [16]byte, w *waiter) error {
	timeout := time.Duration(s.timeout.Load())
	queued := time.NewTimer(timeout)
	defer queued.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-queued.C:
			if s.overdue(rs, id, w) {
				s.timeouts.Add(1)
				return ErrBacklog
			}
			queued.Reset(max(timeout/4, time.Millisecond)) // a call is under way
		case <-ctx.Done():
			if s.leave(rs, id, w) {
				return ctx.Err()
			}
			return nil
		case <-s.ctx.Done():
			if s.leave(rs, id, w) {
				return ErrClosed
			}
			return nil
		}
	}
}

// Refund returns what a Take got, because another zone denies the request. It doesn't wait for
// Redis; CloseBy does. If no request hears of the call that carries it, heard is told then how the
// rules stand; nil for nobody. It must be quick, and ask nothing of the Limiter but IsUpToDate.
func (s *Limiter) Refund(g Grant, heard func(call int64, all []Verdict)) {
	if g.unit > 0 && g.N > 0 {
		c := correction{op: refund, n: g.N, at: g.at}
		s.change(g, heard, func(q *queue) { q.correct(c, inAll) })
	}
}

// Over is the top of units that do not count any more.
const Over = -1

// Settle ends what a Take of rules that reserve has got: its request has cost m units. Those that
// it has not used are refunded in the rules in which they still count: of each tops has Over where
// they don't, and of a bucket that of the Verdict, or 0 where each request takes one unit, which is
// refunded as long as it counts. What it has cost beyond them is charged in all. Nobody waits for
// that: the key's next call carries it. heard is that of Refund.
func (s *Limiter) Settle(g Grant, m int64, tops []int64, heard func(call int64, all []Verdict)) {
	if g.unit == 0 || g.N == 0 || m == g.N {
		return
	}
	used := min(m, g.N)
	s.change(g, heard, func(q *queue) {
		if m > g.N {
			q.correct(correction{op: charged, n: m - g.N, at: g.at}, inAll)
		}
		for i, top := range tops {
			c := correction{op: refund, n: g.N - used, at: g.at}
			if top > 0 || g.N > 1 {
				c.op, c.top = unspent, top
			}
			if top != Over && c.n > 0 {
				q.correct(c, func(rule int) bool { return rule == i })
			}
		}
	})
}

// Unavailable is why Redis can't be asked about the key of a Grant, nil if it can.
func (s *Limiter) Unavailable(g Grant) error { return s.unavailable(g.id) }

func inAll(int) bool { return true }

// Status tells of the circuits that keep requests from waiting for a Redis that does not answer.
type Status struct {
	// Open is how many of them are open, and probed: of one, in a Cluster of one for each of its 64
	// shards.
	Open int `json:"open"`
	Of   int `json:"of"`
	// Trips is how often one has opened, Timeouts how many requests have waited for Redis until the
	// timeout.
	Trips    int64 `json:"trips"`
	Timeouts int64 `json:"timeouts"`
}

// Status tells how the circuits stand.
func (s *Limiter) Status() Status {
	c := Status{Of: 1, Trips: s.trips.Load(), Timeouts: s.timeouts.Load()}
	if s.cluster {
		c.Of = len(s.circuits)
	}
	for i := range s.circuits {
		if s.circuits[i].down.Load() {
			c.Open++
		}
	}
	return c
}

// RoundTrip is the longest that an open circuit has measured, 0 where none has: Redis answers, but
// later than requests wait.
func (s *Limiter) RoundTrip() (trip time.Duration) {
	for i := range s.circuits {
		trip = max(trip, s.circuits[i].roundTrip())
	}
	return trip
}

// CloseBy lets the calls under way end, sends what is still to be refunded and ends all work,
// until a deadline. A part of Redis that is known not to answer is not waited for: what was not
// sent to it by then is not sent at all.
func (s *Limiter) CloseBy(deadline time.Time) {
	s.stopProbes()
	// A call that waits for its reply can't be called off, and ends by its own deadline.
	s.work.End(deadline)
	s.cancel()
}

// ruleset finds what was made ready for a zone's rules, or makes it.
func (s *Limiter) ruleset(zone string, rules []Rule) (*ruleset, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, rs := range s.zones[zone] {
		if rs.has(rules) {
			rs.used = now
			return rs, nil
		}
	}
	s.made++
	rs, err := newRuleset(s.keys, zone, rules, s.node+"s"+strconv.Itoa(s.made))
	if err != nil {
		return nil, err
	}
	s.prune(now)
	rs.used = now
	s.zones[zone] = append(s.zones[zone], rs)
	return rs, nil
}

// prune forgets the rulesets of former configurations. A later one of the same name numbers its
// calls apart.
func (s *Limiter) prune(now time.Time) {
	for zone, all := range s.zones {
		all = slices.DeleteFunc(all, func(rs *ruleset) bool { return now.Sub(rs.used) > rulesetTime && rs.isIdle() })
		if s.zones[zone] = all; len(all) == 0 {
			delete(s.zones, zone)
		}
	}
}
