package strict

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Counter is what Redis decides by in one limit of a zone.
type Counter struct {
	Table  table.Strict
	Syncer *ratesync.TableSyncer
}

// A Request asks for N units of a key in each limit of a zone.
type Request struct {
	// Counters are those of the zone's limits that the request goes by, and Limits what each
	// admits.
	Counters []Counter
	Limits   []algorithms.Limit
	Key      keys.Key
	Raw      []byte
	N        int64
	Want     algorithms.Want
	// Remembers is set where what Redis has just denied is denied again without a call, and Queues
	// where who leaves keeps his place, as others may stand behind it.
	Remembers, Queues bool
}

// ErrFull is the error of a request whose key has no counter of its own, or whose counter was in
// use for too long: this node decides.
var ErrFull = errors.New("the key has no counter of its own")

// keyQueues are the queues of one zone's keys.
type keyQueues struct {
	zone    string
	stripes [16]struct {
		mu     sync.Mutex
		queues map[keys.Key]*keyQueue
	}
}

// A keyQueue has the requests of one key that wait for its next call. It is there as long as
// somebody makes calls for the key, one after the other.
type keyQueue struct {
	of      *keyQueues
	key     keys.Key
	raw     []byte // a copy, as requests that leave use theirs again
	id      keys.ID
	waiters []*waiter // the stripe's mutex guards it
	// waits is set while its next call waits for the semaphore, and behind where the last one could
	// not take all.
	waits, behind atomic.Bool
}

// A waiter is a request that waits. What it waits for is written before done is closed.
type waiter struct {
	*Request
	done  chan struct{}
	gone  bool // its context has ended, or it has waited for too long
	asked bool // a call that asks for it is under way
	late  int  // how many calls that it was in were not answered in time
	took  []table.Taken
	err   error
}

// queuesOf are those of a zone.
func (s *Limiter) queuesOf(zone string) *keyQueues {
	if a, ok := s.byZone.Load(zone); ok {
		return a.(*keyQueues)
	}
	a, _ := s.byZone.LoadOrStore(zone, &keyQueues{zone: zone})
	return a.(*keyQueues)
}

func (a *keyQueues) lock(key keys.Key) (unlock func(), queues *map[keys.Key]*keyQueue) {
	st := &a.stripes[key.B>>60]
	st.mu.Lock()
	return st.mu.Unlock, &st.queues
}

// Ask has Redis decide on a request of a zone, in all limits or none, and appends to dst what each
// limit says: the units are taken where that is Allowed. An error means that Redis has not decided.
// The end of the context is one as well, and what is granted later is refunded.
func (s *Limiter) Ask(ctx context.Context, zone string, r *Request, dst []table.Taken) ([]table.Taken, error) {
	id := keys.IDOf(r.Raw)
	c, _ := s.circuitOf(id)
	if err := cmp.Or(s.ended(), c.unavailable(), ctx.Err()); err != nil {
		return dst, err
	}
	w := &waiter{Request: r, took: dst, done: make(chan struct{})}
	a := s.queuesOf(zone)
	unlock, queues := a.lock(r.Key)
	l := (*queues)[r.Key]
	if l != nil {
		l.waiters = append(l.waiters, w)
		unlock()
		return s.await(ctx, c, l, w, dst)
	}
	if l = (&keyQueue{of: a, key: r.Key, raw: slices.Clone(r.Raw), id: id, waiters: []*waiter{w}}); *queues == nil {
		*queues = make(map[keys.Key]*keyQueue)
	}
	(*queues)[r.Key] = l
	unlock()
	// Where a call may be made at once, the request makes it.
	makes := func() {
		if l.once(s, c) {
			s.work.Go(func() { l.run(s, c) })
		}
	}
	ok := false
	if c.semaphore.tryEnter() {
		if ok = s.work.Do(makes); !ok {
			c.semaphore.leave()
		}
	} else {
		ok = s.work.Go(func() { l.run(s, c) })
	}
	if !ok {
		l.fail(ErrClosed)
	}
	return s.await(ctx, c, l, w, dst)
}

func (s *Limiter) ended() error {
	if s.work.HasEnded() {
		return ErrClosed
	}
	return nil
}

// Recall has Redis' last word deny a request. It reports whether it does, and appends to dst what
// each limit says then.
func (r *Request) Recall(dst *[]table.Taken) bool {
	if !r.Remembers || r.N == 0 {
		return false
	}
	now, denied, had := clock.Now(), false, len(*dst)
	for i := range r.Counters {
		t, ok := r.Counters[i].Table.Recall(r.Limits[i], r.Key, now, r.N, r.Want)
		if !ok {
			*dst = (*dst)[:had]
			return false
		}
		*dst, denied = append(*dst, t), denied || !t.Allowed
	}
	if !denied {
		*dst = (*dst)[:had]
	}
	return denied
}

// await waits until a request is decided. An error means that it was not, and has left its queue.
func (s *Limiter) await(ctx context.Context, c *circuit, l *keyQueue, w *waiter, dst []table.Taken) ([]table.Taken, error) {
	select {
	case <-w.done:
		if err := ctx.Err(); err != nil && w.err == nil {
			w.refund()
			return w.took, err
		}
	default:
		if err := s.waitFor(ctx, c, l, w); err != nil {
			return dst, err
		}
	}
	if w.err != nil && redisconn.IsLate(w.err) {
		s.timeouts.Add(1)
	}
	return w.took, w.err
}

// waitFor waits for others.
func (s *Limiter) waitFor(ctx context.Context, c *circuit, l *keyQueue, w *waiter) error {
	timeout := s.Timeout()
	queued := time.NewTimer(timeout)
	defer queued.Stop()
	for {
		select {
		case <-w.done:
			return nil
		case <-queued.C:
			if err := l.leave(w, ErrBacklog); err != nil {
				c.overdue.Add(1)
				s.timeouts.Add(1)
				return err
			}
			queued.Reset(max(timeout/4, time.Millisecond)) // a call is under way
		case <-ctx.Done():
			return l.leave(w, ctx.Err())
		case <-s.ctx.Done():
			return l.leave(w, ErrClosed)
		}
	}
}

// leave takes a request out that waits no longer, and returns why, nil where its answer is there. A
// backlog is why only where no call has asked for it yet. One that will be in the next call waits
// for the one under way, which has a timeout: where that takes longer, this node is busy, and no
// backlog is there. What is granted all the same is noted elsewhere, as who has left uses its own
// list again.
func (l *keyQueue) leave(w *waiter, why error) error {
	unlock, _ := l.of.lock(l.key)
	defer unlock()
	select {
	case <-w.done:
		return nil
	default:
	}
	if why == ErrBacklog && (w.asked || !l.waits.Load() && !l.behind.Load()) {
		return nil
	}
	w.gone, w.took = true, nil
	return why
}

// fail ends a queue, with an error for all who wait.
func (l *keyQueue) fail(err error) {
	unlock, queues := l.of.lock(l.key)
	defer unlock()
	delete(*queues, l.key)
	for _, w := range l.waiters {
		w.end(err)
	}
	l.waiters = nil
}

func (w *waiter) end(err error) {
	if !w.gone {
		w.err = err
		close(w.done)
	}
}

// refund refunds what a request was granted that has left.
func (w *waiter) refund() {
	for i, t := range w.took[len(w.took)-len(w.Counters):] {
		if t.Unspent || w.Queues {
			continue
		}
		if by := w.Counters[i].Table; w.Want&table.Reserve != 0 {
			by.Settle(w.Key, by.ReservationOf(w.Limits[i], w.Key, t), clock.Now(), table.RolledBack)
		} else {
			by.Refund(w.Limits[i], w.Key, t, t.N)
		}
	}
}

// run makes calls for a key until nobody waits.
func (l *keyQueue) run(s *Limiter, c *circuit) {
	t := l.job(s)
	for {
		s.do(&c.semaphore, t)
		if t.asked == nil || !t.asked.finish(s, c) {
			return
		}
	}
}

// once makes one call, after enter, and reports whether somebody waits for another one.
func (l *keyQueue) once(s *Limiter, c *circuit) (more bool) {
	t := l.job(s)
	s.perform(&c.semaphore, []*job{t})
	return t.asked != nil && t.asked.finish(s, c)
}

func (l *keyQueue) job(s *Limiter) *job {
	return &job{zone: l.of.zone, waits: &l.waits, woken: make(chan []*job, 1), prepare: func() *batch { return s.prepareBatch(l) }}
}

// A batch is one call for the requests of a queue.
type batch struct {
	*ratesync.PushCall
	of      *keyQueue
	waiters []*waiter
	updates []table.Update // by counter
	bans    *ban.Register  // nil where the zone has none
	ban     ban.Message
	now     int64
	reply   *redis.StringCmd
}

const (
	// maxAsks bounds the requests of one call, and maxRuns those of them that differ from the one
	// before.
	maxAsks = 1024
	maxRuns = 256
)

// prepareBatch takes out what the next call of a queue is to ask, nil where there is none.
func (s *Limiter) prepareBatch(l *keyQueue) *batch {
	for {
		waiters, err := s.takeAsks(l)
		if len(waiters) == 0 || err != nil {
			return nil
		}
		m := &batch{of: l, waiters: waiters, now: clock.Now()}
		if err := m.push(s); err != nil {
			unlock, _ := l.of.lock(l.key)
			for _, w := range waiters {
				w.end(err)
			}
			unlock()
			continue
		}
		for i := range waiters {
			m.add(i)
		}
		if m.bans = s.bansOf(l.of.zone); m.bans != nil {
			m.ban = m.bans.Ask(l.id, m.now)
			m.Ban(s.keys.Zone(l.of.zone, "ban"), m.ban)
		}
		return m
	}
}

// takeAsks takes out those who are in the next call: the first ones, as far as they go by the same
// counters. Where nobody waits the queue ends.
func (s *Limiter) takeAsks(l *keyQueue) (waiters []*waiter, err error) {
	unlock, queues := l.of.lock(l.key)
	defer unlock()
	if err = s.UnavailableFor(l.id); err != nil {
		for _, w := range l.waiters {
			w.end(err)
		}
		l.waiters = nil
	}
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		if w.gone {
			return true
		}
		if len(l.waiters) > 1 && w.late == 0 && w.Recall(&w.took) {
			close(w.done)
			return true
		}
		return false
	})
	n, runs := 0, 0
	for ; n < min(len(l.waiters), maxAsks) && slices.Equal(l.waiters[n].Counters, l.waiters[0].Counters); n++ {
		if n == 0 || !l.waiters[n].isLike(l.waiters[n-1]) {
			if runs++; runs > maxRuns {
				break
			}
		}
		l.waiters[n].asked = true
	}
	if n == 0 {
		delete(*queues, l.key)
		return nil, err
	}
	waiters, l.waiters = l.waiters[:n:n], l.waiters[n:]
	l.behind.Store(len(l.waiters) > 0)
	return waiters, nil
}

// isLike reports whether a request asks for the same by the same limits.
func (w *waiter) isLike(other *waiter) bool {
	return w.N == other.N && slices.Equal(w.Limits, other.Limits)
}

// push has the call carry what the key has spent in all counters.
func (m *batch) push(s *Limiter) error {
	for end := time.Now().Add(s.Timeout()); ; {
		busy, ok := m.pushOnce(s)
		if ok && !busy {
			return nil
		}
		m.abort()
		if !ok || !time.Now().Before(end) {
			return ErrFull
		}
		// Another Redis is asked, from which a configuration leaves, or an update with a later
		// number was sent.
		time.Sleep(time.Millisecond)
	}
}

func (m *batch) pushOnce(s *Limiter) (busy, ok bool) {
	first := m.waiters[0]
	var of [4]*ratesync.TableSyncer
	sources := of[:0]
	for _, c := range first.Counters {
		sources = append(sources, c.Syncer)
	}
	m.PushCall = ratesync.NewPushCall(ratesync.NextSeq(sources...))
	for i, c := range first.Counters {
		update, busy, ok := c.Table.GrantUpdate(first.Limits[i], first.Key, m.of.raw, m.now, m.Seq)
		if busy || !ok {
			return busy, ok
		}
		m.updates = append(m.updates, update)
		m.Push(c.Syncer, c.Syncer.Cells(s.keys), &m.updates[i], first.Want&table.Reserve != 0)
		m.Tell(s.keys.In(s.cluster), c.Syncer, m.of.id)
	}
	return false, true
}

// abort ends what push began: the call was not made, or has no answer.
func (m *batch) abort() {
	for i := range m.updates {
		m.waiters[0].Counters[i].Table.GrantUnanswered(&m.updates[i])
	}
	m.updates = nil
}

// add asks for one of the requests, after those before it.
func (m *batch) add(i int) {
	w := m.waiters[i]
	if i > 0 && w.isLike(m.waiters[i-1]) {
		m.Asks[len(m.Asks)-1].Count++
		return
	}
	one := cell.Ask{Count: 1, Cost: w.N}
	for _, l := range w.Limits {
		one.Limits = append(one.Limits, cell.Limit{Size: min(l.AtOnce(), cell.MaxExact-1), Rate: min(l.N, cell.MaxExact-1)})
	}
	m.Asks = append(m.Asks, one)
}

func (m *batch) issue(ctx context.Context, to commander, known bool) {
	m.reply = m.Cmd(ctx, known)
	_ = to.Process(ctx, m.reply) // it has its error
}

func (m *batch) isUnknown() bool {
	return m.reply == nil || redis.HasErrorPrefix(m.reply.Err(), "NOSCRIPT")
}

// finish tells what came of a call, and reports whether somebody waits for another one.
func (m *batch) finish(s *Limiter, c *circuit) (more bool) {
	defer m.Free()
	err := m.reply.Err()
	if err == nil {
		err = m.Read(m.reply.Val(), &m.Answer)
	}
	result := s.resultOf(m.of.id, err)
	if err == nil {
		result, err = m.parse()
	}
	s.noteBacklog(c, result)
	if s.ctx.Err() != nil && err != nil {
		err = ErrClosed
	}
	unlock, queues := m.of.of.lock(m.of.key)
	defer unlock()
	l := m.of
	if result == answered {
		m.deliver()
	} else {
		l.waiters = append(m.again(result, err), l.waiters...)
	}
	if len(l.waiters) == 0 {
		delete(*queues, l.key)
	}
	return len(l.waiters) > 0
}

// parse reads an answer: whether it decides, and else what to do.
func (m *batch) parse() (result, error) {
	now, server := clock.Now(), m.Now*int64(time.Microsecond)
	if m.bans != nil {
		m.bans.Ack(now, m.Now, m.ban, ban.Parse(m.Answer.Bans[0]))
	}
	reset := slices.ContainsFunc(m.Answer.Cells, func(h cell.Reply) bool { return h.NewerStamp > 0 })
	if m.Status == "" && !reset {
		return answered, nil
	}
	updates := m.updates
	m.abort()
	for i := range updates {
		m.waiters[0].Counters[i].Table.Merge(now, server, updates[i:i+1], m.Answer.Cells[i:i+1])
	}
	switch {
	case reset:
		return outdated, nil
	case m.Status == "banned":
		return rejected, ErrBanned
	case m.Status == "old":
		return late, context.DeadlineExceeded
	}
	for i := range m.Answer.Cells {
		if why := m.Answer.Cells[i].Err; why != "" {
			return rejected, redisconn.Rejection(why)
		}
	}
	return rejected, ratesync.ErrReply
}

// deliver hands out what was granted. In each run those who are still there go first. What nobody
// uses is refunded.
func (m *batch) deliver() {
	all, next := make([]table.GrantRequest, 0, len(m.waiters)), m.waiters
	for run, one := range m.Asks {
		waiters := next[:one.Count]
		next = next[one.Count:]
		slices.SortStableFunc(waiters, func(a, b *waiter) int { return boolInt(a.gone) - boolInt(b.gone) })
		for i, w := range waiters {
			all = append(all, table.GrantRequest{N: w.N, Want: w.Want, Admitted: int64(i) < m.Grants[run]})
		}
	}
	now, server := clock.Now(), m.Now*int64(time.Microsecond)
	took := make([]table.Taken, 0, 4)
	for i, c := range m.waiters[0].Counters {
		for j, w := range m.waiters {
			all[j].Limit = w.Limits[i]
		}
		forgot := false
		if took, forgot = c.Table.GrantAnswered(now, server, &m.updates[i], &m.Answer.Cells[i], all, took[:0]); forgot {
			c.Syncer.FoundLoss()
		}
		for j, w := range m.waiters {
			w.took = append(w.took, took[j])
		}
	}
	for i, w := range m.waiters {
		if all[i].N > 0 && !all[i].Admitted {
			w.deny()
		}
	}
	for _, w := range m.waiters {
		if w.gone {
			w.refund()
		}
		w.end(nil)
	}
}

// deny has a limit deny a request that Redis has denied though all seem to have room: it reckons by
// other fractions of time.
func (w *waiter) deny() {
	took := w.took[len(w.took)-len(w.Counters):]
	least := 0
	for i := range took {
		if !took[i].Allowed {
			return
		}
		if took[i].Remaining < took[least].Remaining {
			least = i
		}
	}
	took[least].Allowed, took[least].Retry = false, time.Millisecond
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// again ends a call that was not answered. Its requests ask again where Redis does answer.
func (m *batch) again(r result, err error) (again []*waiter) {
	m.abort()
	for _, w := range m.waiters {
		switch {
		case w.gone:
		case r == outdated, r == late && w.late < ratesync.MaxLate:
			w.late++
			w.asked = false
			again = append(again, w)
		default:
			w.end(err)
		}
	}
	return again
}
