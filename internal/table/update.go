package table

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What this node has spent of a key is said in full, under a number that grows, whenever it differs
// from what the store has of it. So a message that is lost, late or repeated does no harm: the next
// one says it all again.

// An Update is what this node has spent of one key, on its way to the store.
type Update struct {
	Key   keys.Key
	ID    keys.ID
	State cell.State
	// At is when it was made, by the table's clock.
	At int64
	// Reasons are why it is said where the store seems to have it.
	Reasons algorithms.Resend
	// Size, Rate, Decided and Filled are those of a bucket: see algorithms.BucketUpdate.
	Size, Rate      int64
	Decided, Filled bool
}

// TakeUpdates takes keys out, until there are most, and appends what is to be said of them to dst,
// under a number above all before: the keys that are outgoing, or where urgent is set the urgent
// ones. Each comes back through Merge or Unanswered; until then its key has no other. now is the
// caller's clock.
func (t *Table[S]) TakeUpdates(now, seq int64, most int, urgent bool, dst []Update) []Update {
	b := t.config.Load()
	if !b.IsSynced() {
		return dst
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	t.dequeue(b, now, most, urgent, func(e entry[S], at int64) int {
		if urgent && !b.StoreDecides && (e.flags&failed != 0 || e.At != 0 && at-e.At < int64(earlyPause)) {
			return 0 // it was answered since; what came after waits for the next cycle
		}
		dst = t.updateOf(b, e, at, seq, b.Interval, dst)
		if e.flags |= inFlight; !urgent && e.flags&reread != 0 {
			e.flags = e.flags&^reread | rereading
		}
		return 1
	})
	return dst
}

// updateOf appends what is to be said of one key to dst, and uses room for totals that dst has
// left. interval is that of the syncs, 0 in a strict call.
func (t *Table[S]) updateOf(b *SyncConfig, e entry[S], at, seq int64, interval time.Duration, dst []Update) []Update {
	t.machine.Advance(&e.state, b.Limit, at)
	l := t.machine.Ledger(&e.state)
	var totals []int64
	if n := len(dst); n < cap(dst) {
		totals = dst[:n+1][n].State.Totals[:0]
	}
	m := Update{Key: e.key, ID: e.id, At: at, Reasons: l.Resend}
	m.State = cell.State{Seq: seq, Stamp: t.resetOf(t.stripe(e.key), e.id, at).Stamp, Epoch: l.Epoch}
	m.State.Reserved, _ = t.reservations.In(e.key, l.Epoch)
	e.sentSeq, l.Resend = seq, l.Resend&^algorithms.Settled
	if t.bucket != nil {
		if seq == 0 {
			interval = algorithms.ReadsOnly
		}
		has := t.bucket.Update(&e.state, b.Limit, at, interval)
		l.LowerAcked(l.Epoch)
		m.Size, m.Rate, m.Decided, m.Filled = has.Size, has.Rate, has.Decided, has.Filled
		m.State.Incarnation, m.State.Total, m.State.Unacked, m.State.UnackedFor = has.Incarnation, has.Total, has.Unacked, has.UnackedFor
		m.State.AnsweredSeq, m.State.Whole, m.State.Rest = e.answered, has.Whole, has.Rest
		return append(dst, m)
	}
	end := 0
	for age := range int64(b.Limit.History + 1) {
		c, ok := l.LowerAcked(l.Epoch - age)
		if !ok {
			break
		}
		if totals = append(totals, c.Own); c.Own > 0 {
			end = len(totals)
		}
	}
	m.State.Totals = totals[:end]
	return append(dst, m)
}

// Merge merges answers, which the store gave at an instant of its clock. It reports whether the
// store has forgotten something that it had confirmed, and that is not said again already.
func (t *Table[S]) Merge(now, server int64, updates []Update, replies []cell.Reply) (forgot bool) {
	b := t.config.Load()
	if b == nil {
		return false
	}
	incomplete := t.mayBeIncomplete(b, now)
	reports := make([]algorithms.Report, 0, b.Limit.History+1)
	for i := range updates {
		m, h := &updates[i], &replies[i]
		st, j, ok := t.lock(m.Key)
		if ok {
			e, at := t.current(st, j, now)
			e.flags &^= inFlight
			if m.State.Seq == e.sentSeq {
				forgot = t.mergeOne(b, e, at, server, m, h, incomplete, reports) || forgot
			}
			if e.flags&dirty == 0 && (e.flags&failed != 0 || e.flags&rereading == 0) {
				e.flags |= reread // others may have said something after this one asked
				st.markDirty(j, e)
			}
			if e.flags &^= rereading; h.NewerStamp > t.resetOf(st, m.ID, at).Stamp {
				t.applyReset(st, b, j, now, resetAt(h.NewerStamp, server, b))
			}
		}
		st.mu.Unlock()
	}
	return forgot
}

// mergeOne merges the answer to the latest message of one key. There is room for reports.
func (t *Table[S]) mergeOne(b *SyncConfig, e entry[S], at, server int64, m *Update, h *cell.Reply, incomplete bool, reports []algorithms.Report) (forgot bool) {
	rejected := e.flags&failed != 0
	e.flags &^= failed
	l := t.machine.Ledger(&e.state)
	t.machine.Advance(&e.state, b.Limit, at)
	newest := b.Epochs.At(server) // by the store's clock
	first, last := max(l.Epoch, newest)-int64(b.Limit.History), min(l.Epoch, newest+1)
	switch {
	case h.Err != "", h.NewerStamp == 0 && t.bucket == nil && lessThanSaid(m, h, first, last):
		l.Resend |= algorithms.Forgotten // what the store holds of this key is in doubt
		e.flags |= failed
		return false
	case h.NewerStamp > 0:
		return false
	}
	if h.Sum.Stamp < m.State.Stamp {
		// The store has yet to hear of the reset, and what it told is forgiven by that.
		h.Previous, h.Sum = cell.State{}, cell.Sum{}
	}
	t.stripe(m.Key).noteStored(b, server, m.ID, h.Sum.Stamp)
	known, lately := l.Resend&algorithms.Forgotten != 0 && !rejected, l.Synced && e.At != 0
	var sent, theirs int64
	var less bool
	if t.bucket != nil {
		doubt := l.Resend&algorithms.Forgotten != 0 && (l.KeepsRemote() || h.Previous.Seq == 0)
		if sent, theirs, less = t.mergeBucket(b, e, at, m, h, doubt || !b.StoreDecides && server > at+int64(drift)); !less {
			l.RemoteMayFall()
		}
	} else {
		sent, theirs, less = t.mergeEpochs(b, e, at, first, last, m, h, incomplete, reports)
	}
	if l.Resend &^= m.Reasons &^ algorithms.Settled; less {
		forgot = t.lose(l, known)
	}
	if t.goesByStore(b) {
		l.RemoteMayFall()
	}
	if b.Params.Reserves {
		e.Alone()
		t.reservations.setOthers(m.Key, h.Sum.Epoch, max(0, h.Sum.Reserved-ownReserved(m, h)))
	} else {
		e.noteSpent(sent, theirs, lately)
	}
	if e.regions &^= inOtherRegions; h.Regions {
		e.regions |= inOtherRegions
	}
	passed, units := at-e.At, sent
	if t.bucket != nil {
		units = 0 // they drain meanwhile
	}
	e.Sent(units, time.Duration(at-m.At), time.Duration(passed))
	if e.At = at; b.StoreDecides {
		e.At = m.At
	}
	t.pollAgain(b, e, passed, sent > 0 || theirs > 0)
	return forgot
}

// mergeEpochs takes in what all have spent in the epochs that count. It returns how much the store
// has that it had not, of this node and of others, and whether it has less than it had confirmed.
func (t *Table[S]) mergeEpochs(b *SyncConfig, e entry[S], at, first, last int64, m *Update, h *cell.Reply, incomplete bool, reports []algorithms.Report) (sent, theirs int64, less bool) {
	l := t.machine.Ledger(&e.state)
	for epoch := first; epoch <= last; epoch++ {
		before, mine := h.Previous.At(epoch), m.State.At(epoch)
		if h.Previous.Seq >= m.State.Seq {
			mine = before // the store has had this message before, or it only asks
		}
		c, _ := l.At(epoch)
		remote, lost, ok := l.Ack(epoch, before, mine, h.Sum.In(epoch), incomplete)
		if !ok {
			continue
		}
		sent += max(0, mine-c.Acked)
		theirs += max(0, remote-c.Remote)
		less = less || lost
		reports = append(reports, algorithms.Report{Epoch: epoch, Remote: remote})
	}
	t.machine.Merge(&e.state, b.Limit, at, reports)
	return sent, theirs, less
}

// mergeBucket takes in what is in a bucket. If the store has less of this node than it had
// confirmed, and some of that has not drained, the bucket stays as it is known here and is sent
// again, as one that the store doesn't know. With doubt the same holds for any answer that has less
// than is known here: the store has lost something, if not of this key, or its clock has stepped
// ahead and drained the bucket. After a silence, which may be no loss, doubt is set only if the
// store has nothing of this node: otherwise others may have refunded the difference.
func (t *Table[S]) mergeBucket(b *SyncConfig, e entry[S], at int64, m *Update, h *cell.Reply, doubt bool) (sent, theirs int64, less bool) {
	l := t.machine.Ledger(&e.state)
	c := l.Cur
	e.answered = max(e.answered, m.State.Seq)
	level, _ := t.machine.Level(&e.state, b.Limit, at)
	less = level > 0 && (h.Previous.Total < c.Acked || doubt && t.hasLess(b, e, at, m, h, level))
	if less && h.Previous.Incarnation == m.State.Incarnation && h.Previous.Seq > 0 {
		if h.Previous.Seq < m.State.Seq {
			l.Cur.Acked = m.State.Total // what was said is in the bucket now
		}
		t.bucket.Restart(&e.state, at)
		return 0, 0, true
	}
	mine := m.State.Total
	if h.Previous.Seq >= m.State.Seq {
		if mine = 0; h.Previous.Incarnation == m.State.Incarnation {
			mine = h.Previous.Total // the store has had this message before, or it only asks
		} else if m.State.Seq == 0 && h.Previous.Incarnation > m.State.Incarnation {
			mine = c.Own // it has what was said after the fork
		}
	}
	reply := algorithms.BucketReply{Added: h.Sum.Added, Total: mine, Others: max(0, h.Sum.Total-mine), BucketLevel: levelOf(&h.Sum, at), ReadOnly: m.State.Seq == 0}
	t.bucket.MergeReply(&e.state, b.Limit, at, reply)
	if b.Params.Reserves {
		// Where others have refunded what stood in it, what this node has reserved there ends to
		// count sooner.
		if after, _ := t.machine.Level(&e.state, b.Limit, at); level-after > .5 {
			t.reservations.ExpireSooner(m.Key, nil, int64(math.Round(level-after)))
		}
	}
	return max(0, mine-c.Acked), max(0, reply.Others-c.Remote), less
}

// hasLess reports whether an answer has less in a bucket than is known here.
func (t *Table[S]) hasLess(b *SyncConfig, e entry[S], at int64, m *Update, h *cell.Reply, known float64) bool {
	s := t.bucket.StateAt(b.Limit, at, levelOf(&h.Sum, at), 0)
	level, _ := t.machine.Level(&s, b.Limit, at)
	since := t.machine.Ledger(&e.state).Cur.Own - m.State.Total
	return known-level-float64(since) > .5
}

// levelOf is what a sum says is in a bucket.
func levelOf(sum *cell.Sum, at int64) algorithms.BucketLevel {
	if sum.At == 0 { // the store has nothing
		return algorithms.BucketLevel{At: at}
	}
	return algorithms.BucketLevel{Whole: sum.Whole, Rest: sum.Rest, At: sum.At * int64(time.Microsecond), Rate: sum.Rate}
}

// lessThanSaid reports whether an answer makes no sense: all have less in an epoch than this node
// alone has said there.
func lessThanSaid(m *Update, h *cell.Reply, first, last int64) bool {
	for epoch := first; epoch <= last && h.Previous.Seq < m.State.Seq; epoch++ {
		if h.Sum.In(epoch) < m.State.At(epoch) {
			return true
		}
	}
	return false
}

// ownReserved is the part of what is reserved in a sum that is this node's.
func ownReserved(m *Update, h *cell.Reply) int64 {
	mine := &m.State
	if h.Previous.Seq >= mine.Seq {
		mine = &h.Previous // the store has had this message before, or it only asks
	}
	if h.Sum.Epoch != mine.Epoch {
		return 0
	}
	return mine.Reserved
}

// Unanswered gives messages back that got no answer. Their keys stay dirty.
func (t *Table[S]) Unanswered(updates []Update) {
	for i := range updates {
		st, j, ok := t.lock(updates[i].Key)
		if ok {
			e := t.withSyncState(st, j)
			e.flags &^= inFlight | rereading
			t.machine.Ledger(&e.state).Resend |= updates[i].Reasons & algorithms.Settled
			st.markDirty(j, e)
		}
		st.mu.Unlock()
	}
}
