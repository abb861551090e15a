package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// Where the store decides on each request, a request says what its key has spent and asks for more
// in one message. What it is granted is this node's own from then on, as if it had decided alone.
// While it is on its way nothing else is said of the key: a state without the grant would take it
// back. After a call without an answer that is what happens.

// A GrantRequest is a request that the store was asked for.
type GrantRequest struct {
	Limit    algorithms.Limit
	N        int64
	Want     algorithms.Want
	Admitted bool
}

// GrantUpdate is the update of one key of which more is asked, until GrantAnswered or
// GrantUnanswered. ok is false where the table is full and has no slot for the key, and busy while
// it is asked for otherwise, or where something was said under a later number: that would take back
// what is granted. Number 0 is for forks, which only read: the answer comes back through Merge. It
// doesn't wait for a reset under way: what is said of a key that this one has emptied is less,
// under the earlier stamp, and all that is granted is said again under the later one.
func (t *Table[S]) GrantUpdate(l algorithms.Limit, key keys.Key, raw []byte, now, seq int64) (m Update, busy, ok bool) {
	b := t.config.Load()
	if b == nil {
		return m, false, false
	}
	st, i, ok := t.lockOrEnter(l, key, raw, now)
	defer st.mu.Unlock()
	if !ok {
		return m, false, false
	}
	e, at := t.current(st, i, now)
	if seq > 0 && (e.flags&granting != 0 || seq <= e.sentSeq) {
		return m, true, true
	}
	e.flags |= granting
	var one [1]Update
	return t.updateOf(b, e, at, seq, 0, one[:0])[0], false, true
}

// GrantAnswered takes in the answer to a message that asked for more at now, and appends what each
// of the requests is told: in their order, so that each one sees what is left by those before it.
func (t *Table[S]) GrantAnswered(now, server int64, update *Update, reply *cell.Reply, all []GrantRequest, dst []Taken) (took []Taken, forgot bool) {
	b := t.config.Load()
	// What is granted is of the store's time. Where its clock has taken a step, or no heartbeat was
	// answered yet, the answer tells before they do.
	if offset := t.Offset(); server < update.At-int64(drift) || server > now+int64(offset+drift) {
		half := max(0, time.Duration(now-update.At)+offset) / 2
		t.SetClock(now, time.Duration(server-now)+half, half)
	}
	reports, units := make([]algorithms.Report, 0, b.Limit.History+1), int64(0)
	for i := range all {
		if all[i].Admitted {
			units += all[i].N
		}
	}
	st, i, ok := t.lock(update.Key)
	takenAt := server
	if ok {
		e := t.withSyncState(st, i)
		e.flags &^= granting
		isLatest := update.State.Seq == e.sentSeq // or a clock step, or another store
		if isLatest || update.State.Stamp == t.resetOf(st, update.ID, server).Stamp {
			t.creditGrant(b, e, server, units)
			if isLatest {
				update.add(b, b.Epochs.At(server), units, t.bucket != nil)
				forgot = t.mergeOne(b, e, server, server, update, reply, t.mayBeIncomplete(b, now), reports[:0])
			}
			if l := t.machine.Ledger(&e.state); l.Unsent(b.Limit.History) > 0 || l.Corrects(b.Limit.History) {
				t.changed(st, b, e, i)
			}
		} else {
			takenAt = update.At // before the key was forgiven, so that nothing is refunded
			t.changed(st, b, e, i)
		}
	}
	clock := st.clock
	st.mu.Unlock()
	s, before := t.stateOf(b, server, reply, reports), int64(0)
	for i := range all {
		g := &all[i]
		if g.Admitted {
			before += g.N
		}
		taken := Taken{N: g.N, At: takenAt, clock: clock, Unspent: !g.Admitted || g.N == 0}
		if t.bucket != nil {
			t.decideBucketGrant(server, g, levelOf(&reply.Sum, server), units-before, &taken)
		} else {
			t.decideGrant(&s, server, g, units-before, &taken)
		}
		switch {
		case g.Want&Reserve == 0 || g.N == 0:
		case t.bucket != nil && g.Want&InParts != 0:
			taken.addedBefore = reply.Sum.Added - (units - before)
			t.reserveInParts(g.Limit, update.Key, &taken)
		case g.Admitted:
			t.reserve(g.Limit, update.Key, &taken, b.Epochs.At(server))
		}
		dst = append(dst, taken)
	}
	return dst, forgot
}

// creditGrant makes what was granted this node's own.
func (t *Table[S]) creditGrant(b *SyncConfig, e entry[S], server, units int64) {
	if units == 0 {
		return
	}
	t.machine.Advance(&e.state, b.Limit, server)
	epoch := min(b.Epochs.At(server), t.machine.Ledger(&e.state).Epoch)
	t.machine.Adopt(&e.state, b.Limit, epoch, units)
}

// add makes what was granted in an epoch part of what was said, as the store has it.
func (update *Update) add(b *SyncConfig, epoch, units int64, isBucket bool) {
	if isBucket {
		update.State.Total += units
	}
	if apart := epoch - update.State.Epoch; units == 0 || max(apart, -apart) > algorithms.MaxHistory {
		return // no window is so far from another one, and what is not noted is said once more
	}
	if b.Params.Reserves {
		if update.State.Epoch < epoch {
			update.State.Reserved = 0
		}
		update.State.Reserved += units
	}
	for update.State.Epoch < epoch {
		update.State.Totals = append([]int64{0}, update.State.Totals...)
		update.State.Epoch++
	}
	for len(update.State.Totals) <= int(update.State.Epoch-epoch) {
		update.State.Totals = append(update.State.Totals, 0)
	}
	update.State.Totals[update.State.Epoch-epoch] += units
}

// stateOf is how a key stands by an answer alone.
func (t *Table[S]) stateOf(b *SyncConfig, server int64, reply *cell.Reply, reports []algorithms.Report) (s S) {
	if t.bucket != nil {
		return s
	}
	newest := b.Epochs.At(server)
	for age := range int64(b.Limit.History + 1) {
		reports = append(reports, algorithms.Report{Epoch: newest - age, Remote: reply.Sum.In(newest - age)})
	}
	t.machine.Merge(&s, b.Limit, server, reports)
	return s
}

// decideBucketGrant is decideGrant for a bucket.
func (t *Table[S]) decideBucketGrant(server int64, g *GrantRequest, level algorithms.BucketLevel, behind int64, taken *Taken) {
	if g.Admitted {
		behind += g.N
	}
	s, takes := t.bucket.StateAt(g.Limit, server, level, behind), int64(0)
	if g.Admitted {
		takes = g.N
	}
	t.tell(&s, server, g, takes, taken)
}

// decideGrant works out what a request is told, where so many units were granted to those behind
// it.
func (t *Table[S]) decideGrant(s *S, server int64, g *GrantRequest, behind int64, taken *Taken) {
	l := t.machine.Ledger(s)
	c, _ := l.At(l.Epoch)
	c.Remote -= behind
	l.Put(l.Epoch, c)
	t.tell(s, server, g, 0, taken)
	c.Remote += behind
	l.Put(l.Epoch, c)
}

// tell tells a request how its key stands at an instant, after it has taken so many units there.
func (t *Table[S]) tell(s *S, at int64, g *GrantRequest, takes int64, taken *Taken) {
	taken.Result = t.machine.Take(s, g.Limit, at, takes, 0)
	want := g.Want
	if taken.Allowed = g.Admitted || g.N == 0 || taken.Remaining >= g.N; !taken.Allowed {
		want |= algorithms.WantRetry
	}
	if want != 0 {
		taken.Waits = t.machine.Waits(s, g.Limit, at, g.N, 0, want)
	}
}

// GrantUnanswered notes that a message got no answer: the next one, soon, takes back what it may
// have been granted.
func (t *Table[S]) GrantUnanswered(update *Update) {
	st, i, ok := t.lock(update.Key)
	defer st.mu.Unlock()
	if !ok {
		return
	}
	e := t.withSyncState(st, i)
	e.flags &^= granting
	if b := t.config.Load(); b.IsSynced() { // else a reload has ended that meanwhile
		e.At = 0 // nothing that was known before is remembered
		t.machine.Ledger(&e.state).Resend |= update.Reasons & algorithms.Settled
		t.changed(st, b, e, i)
	}
}

// Prepare has a table that no configuration has been applied to yet go by one, so that the store
// can be asked.
func (t *Table[S]) Prepare(b SyncConfig) { t.config.CompareAndSwap(nil, b.Compile()) }

// changed notes that a key differs from what the store has of it. Where the store decides on each
// request it is said at once.
func (t *Table[S]) changed(st *stripe[S], b *SyncConfig, e entry[S], i uint32) {
	e.flags &^= reread
	st.markDirty(i, e)
	if b.StoreDecides && e.flags&(granting|urgent) == 0 && t.markUrgent(st, i, e) {
		b.Waker.Wake()
	}
}

// rememberFor is how long the store's word holds that denies a request.
const rememberFor = time.Second

// Recall returns what a request is told by the last word of the store, where that is not a second
// old; ok is false where it is, or the table has no such key. It spends nothing. A bucket drains at
// the rate of the request that asked the store last. One with a higher limit is to ask the store,
// so that the bucket drains at its rate: ok is false for it as well.
func (t *Table[S]) Recall(l algorithms.Limit, key keys.Key, now, n int64, want algorithms.Want) (taken Taken, ok bool) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if !ok {
		return taken, false
	}
	e, at := t.current(st, i, now)
	if e.At == 0 || at-e.At >= int64(rememberFor) {
		return taken, false
	}
	taken = t.look(e, l, at, st.clock, n, want)
	if t.bucket == nil || taken.Allowed || l.N == 0 {
		return taken, true
	}
	_, rate := t.machine.Level(&e.state, l, at)
	if rate > l.N { // it would drain slower from now on
		s := t.machine.Clone(&e.state)
		t.machine.Take(&s, l, at, n, 0)
		taken.Waits = t.machine.Waits(&s, l, at, n, 0, want|algorithms.WantRetry)
	}
	return taken, rate >= l.N
}

// Look returns how a key stands at now for a request of n units, and spends nothing.
func (t *Table[S]) Look(l algorithms.Limit, key keys.Key, now, n int64, want algorithms.Want) (taken Taken) {
	st, i, ok := t.lock(key)
	defer st.mu.Unlock()
	if ok {
		e, at := t.current(st, i, now)
		taken = t.look(e, l, at, st.clock, n, want)
	}
	return taken
}

func (t *Table[S]) look(e entry[S], l algorithms.Limit, at int64, clock Clock, n int64, want algorithms.Want) (taken Taken) {
	taken = Taken{N: n, At: at, clock: clock, Unspent: true}
	t.tell(&e.state, at, &GrantRequest{Limit: l, N: n, Want: want}, 0, &taken)
	return taken
}
