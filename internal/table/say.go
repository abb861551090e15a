package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// What this node has spent of a key is said in full, under a number that grows, whenever it differs
// from what the store has of it. So a message that is lost, late or repeated does no harm: the next
// one says it all again.

// A Said is what this node has spent of one key, on its way to the store.
type Said struct {
	Key   keys.Key
	ID    keys.ID
	State cell.State
	// At is when it was made, by the table's clock.
	At int64
	// Reasons are why it is said where the store seems to have it.
	Reasons algorithms.Resend
	// Early is set in a sync that comes before the next cycle, and Lower where a request of the key
	// had a limit below that of the configuration.
	Early, Lower bool
}

// Says reports whether the table shares its keys as cells.
func (t *Table[S]) Says() bool { return !t.kind.Traits().Draining }

// Say takes keys out, until there are most, and appends what is to be said of them to dst, under a
// number above all before: the keys that are outgoing, or where early is set the urgent ones. Each
// comes back through Hear or Unheard; until then its key has no other. now is the caller's clock.
func (t *Table[S]) Say(now, seq int64, most int, early bool, dst []Said) []Said {
	b := t.config.Load()
	if !b.IsShared() {
		return dst
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	t.drain(b, now, most, early, func(e entry[S], now int64, _ Offset) int {
		if early && !b.AtOnce && (e.flags&failed != 0 || e.At != 0 && now-e.At < int64(earlyPause)) {
			return 0 // it was answered since; what came after waits for the next cycle
		}
		dst = t.say(b, e, now, seq, dst)
		dst[len(dst)-1].Early = early
		if e.flags |= inFlight; !early && e.flags&confirm != 0 {
			e.flags = e.flags&^confirm | confirming
		}
		return 1
	})
	return dst
}

// say appends what is to be said of one key. Of what dst had before, the totals are used again.
func (t *Table[S]) say(b *SyncConfig, e entry[S], now, seq int64, dst []Said) []Said {
	t.machine.Advance(&e.state, b.Limit, now)
	l := t.machine.Ledger(&e.state)
	var totals []int64
	if n := len(dst); n < cap(dst) {
		totals = dst[:n+1][n].State.Totals[:0]
	}
	m := Said{Key: e.key, ID: e.id, At: now, Reasons: l.Resend, Lower: e.regions&hasLower != 0}
	m.State = cell.State{Seq: seq, Stamp: t.resetOf(e.id).Stamp, Epoch: l.Epoch}
	m.State.Open, _ = t.unsettled.In(e.key, l.Epoch)
	end := 0
	for age := range int64(b.Limit.History + 1) {
		c, ok := l.Prepare(l.Epoch - age)
		if !ok {
			break
		}
		if totals = append(totals, c.Own); c.Own > 0 {
			end = len(totals)
		}
	}
	m.State.Totals = totals[:end]
	e.said, l.Resend = seq, l.Resend&^algorithms.Settled
	return append(dst, m)
}

// Hear merges answers, which the store gave at an instant of its clock. It reports whether the
// store has forgotten something that it had confirmed, and that is not said again already.
func (t *Table[S]) Hear(now, server int64, said []Said, heard []cell.Heard) (forgot bool) {
	b := t.config.Load()
	if b == nil {
		return false
	}
	early := b.Params.Reserves && t.unsettled.InDoubt(now, b.Rate) || t.isEarly(b, now)
	newer := map[[16]byte]reset.Reset(nil)
	for i := range said {
		m, h := &said[i], &heard[i]
		if h.Under > t.resetOf(m.ID).Stamp {
			if newer == nil {
				newer = make(map[[16]byte]reset.Reset)
			}
			newer[m.ID] = resetAt(h.Under, server, b)
		}
		st, j, ok := t.lock(m.Key)
		if ok {
			e, at, _ := t.current(st, b.Limit, j, now)
			e.flags &^= inFlight
			if m.State.Seq == e.said {
				forgot = t.hear(b, e, at, server, m, h, early) || forgot
			}
			if e.flags&dirty == 0 && (e.flags&failed != 0 || e.flags&confirming == 0) {
				e.flags |= confirm // others may have said something after this one asked
				st.markDirty(j, e)
			}
			e.flags &^= confirming
		}
		st.mu.Unlock()
	}
	if newer != nil {
		t.Reset(now, &reset.Set{Keys: newer})
	}
	return forgot
}

// resetAt is the reset with a stamp, as far as that tells: the stamp is the instant of the reset in
// microseconds, or a little later. It matters as long as something counts that was spent before.
func resetAt(stamp, server int64, b *SyncConfig) reset.Reset {
	at := stamp * int64(time.Microsecond)
	return reset.Reset{Stamp: stamp, At: at, Until: max(at, server) + 2*int64(b.Epoch)*int64(b.Limit.History+1) + int64(time.Minute)}
}

// hear merges the answer to the latest message of one key.
func (t *Table[S]) hear(b *SyncConfig, e entry[S], now, server int64, m *Said, h *cell.Heard, early bool) (forgot bool) {
	rejected := e.flags&failed != 0
	e.flags &^= failed
	l := t.machine.Ledger(&e.state)
	t.machine.Advance(&e.state, b.Limit, now)
	newest := server / int64(b.Epoch) // by the store's clock
	first, last := max(l.Epoch, newest)-int64(b.Limit.History), min(l.Epoch, newest+1)
	switch {
	case h.Err != "", h.Under == 0 && lessThanSaid(m, h, first, last):
		l.Resend |= algorithms.Forgotten // what the store holds of this key is in doubt
		e.flags |= failed
		return false
	case h.Under > 0:
		return false
	}
	if h.Sum.Stamp < m.State.Stamp {
		h.Held, h.Sum = cell.State{}, cell.Sum{} // what was only asked about is forgiven
	}
	var reports [algorithms.MaxHistory + 1]algorithms.Report
	known, lately := l.Resend&algorithms.Forgotten != 0 && !rejected, l.Synced && e.At != 0
	n, sent, theirs, less := 0, int64(0), int64(0), false
	for epoch := first; epoch <= last; epoch++ {
		held, mine := h.Held.At(epoch), m.State.At(epoch)
		if h.Held.Seq >= m.State.Seq {
			mine = held // the store has had this message before, or it only asks
		}
		c, _ := l.At(epoch)
		remote, lost, ok := l.Ack(epoch, held, mine, h.Sum.In(epoch), early, false)
		if !ok {
			continue
		}
		sent += max(0, mine-c.Acked)
		theirs += max(0, remote-c.Remote)
		less = less || lost
		reports[n] = algorithms.Report{Epoch: epoch, Remote: remote}
		n++
	}
	if l.Resend &^= m.Reasons &^ algorithms.Settled; less {
		forgot = t.lose(l, known)
	}
	if b.Params.Reserves {
		e.Alone()
		l.Believe()
		t.unsettled.setOthers(m.Key, h.Sum.Epoch, max(0, h.Sum.Open-openOf(m, h)))
	} else {
		e.learnSpent(sent, theirs, lately)
	}
	if e.regions &^= inOthers; h.Regions {
		e.regions |= inOthers
	}
	passed := now - e.At
	e.Sent(sent, time.Duration(now-m.At), time.Duration(passed))
	if e.At = now; b.AtOnce {
		e.At = m.At
	}
	t.machine.Merge(&e.state, b.Limit, now, reports[:n])
	t.askAgain(b, e, passed, sent > 0 || theirs > 0)
	return forgot
}

// lessThanSaid reports whether an answer makes no sense: all have less in an epoch than this node
// alone has said there.
func lessThanSaid(m *Said, h *cell.Heard, first, last int64) bool {
	for epoch := first; epoch <= last && h.Held.Seq < m.State.Seq; epoch++ {
		if h.Sum.In(epoch) < m.State.At(epoch) {
			return true
		}
	}
	return false
}

// openOf is the part of what is open in a sum that is this node's.
func openOf(m *Said, h *cell.Heard) int64 {
	if h.Sum.Epoch != m.State.Epoch {
		return 0
	}
	return m.State.Open
}

// Unheard gives messages back that got no answer. Their keys stay dirty.
func (t *Table[S]) Unheard(said []Said) {
	for i := range said {
		st, j, ok := t.lock(said[i].Key)
		if ok {
			e := t.withSyncState(st, j)
			e.flags &^= inFlight | confirming
			t.machine.Ledger(&e.state).Resend |= said[i].Reasons & algorithms.Settled
			st.markDirty(j, e)
		}
		st.mu.Unlock()
	}
}
