package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// syncState is what an entry knows of its syncs, beside the ledger in its state.
type syncState struct {
	estimate
	// usedUp is the largest limit that was found used up here, and usedUpIn when: see recentPeriod.
	usedUp   uint32
	usedUpIn uint8
	flags    uint8
	regions  uint8 // inOtherRegions or 0
	// sentSeq is the number of the latest update, and answered that of the last one that was
	// answered, of a bucket.
	sentSeq, answered int64
}

// inOtherRegions is set where another region has the key too.
const inOtherRegions uint8 = 1

// observe brings a key that is synced to at, and estimates what others spent unseen.
func (t *Table[S]) observe(st *stripe[S], b *SyncConfig, l algorithms.Limit, i uint32, at int64) (e entry[S], unseen int64) {
	e = t.withSyncState(st, i)
	t.machine.Advance(&e.state, l, at)
	ledger := t.machine.Ledger(&e.state)
	if e.At != 0 && at-e.At > int64(3*b.Interval+time.Second) {
		ledger.Synced = false // and so no estimate either
	}
	if b.NoEstimates {
		return e, 0
	}
	if unseen = t.unseen(e, ledger, l.History); unseen > 0 && b.LimitsVary && b.Early {
		unseen = t.bound(b, e, l, at, unseen)
	}
	return e, unseen
}

// noteAttempts notes that a key is dirty after so many attempts, which were decided as d under a
// limit. An attempt is a request, however many units it asks for. It reports whether the replicator
// should be woken.
func (t *Table[S]) noteAttempts(st *stripe[S], b *SyncConfig, e entry[S], i uint32, d *Taken, limit algorithms.Limit, attempts int64) (wake bool) {
	if b.StoreDecides && d.N == 0 {
		return false // it has only looked
	}
	l := t.machine.Ledger(&e.state)
	l.Attempts = add32(l.Attempts, attempts)
	if b.LimitsVary && !d.Allowed && attempts > 0 {
		t.noteUsedUp(b, e, limit, d)
	}
	e.flags &^= reread
	st.markDirty(i, e)
	regions := b.Regions
	if e.regions&inOtherRegions != 0 {
		regions = 1
	}
	if d.Allowed {
		e.flags &^= denied
	}
	if !b.Early || b.NoEstimates && l.Synced || e.flags&(urgent|inFlight|failed) != 0 {
		return false
	}
	// Denials that count tell nobody more than that the key is spent.
	news := (e.flags&denied == 0 || !l.Synced) && e.NeedsSync(l, limit, d.Remaining, d.At, regions)
	if !news && (len(st.urgent) > 0 || !e.NeedsRefresh(b.Interval, limit, d.Remaining, d.At)) {
		return false
	}
	if !d.Allowed && l.Synced {
		e.flags |= denied
	}
	return t.markUrgent(st, i, e)
}

// unseen is the estimate of what others have spent unseen, unless two syncs have missed the
// shard of the key.
func (t *Table[S]) unseen(e entry[S], l *algorithms.Ledger, history int) int64 {
	if missed := t.missedTwice.Load(); missed != 0 && missed>>(e.id[0]&63)&1 != 0 {
		return 0
	}
	return e.Unseen(l, history)
}

// SetMissedTwice sets the shards that two syncs have missed, a bit each: estimates for their keys
// stop. A key's shard is the lowest six bits of its ID's first byte.
func (t *Table[S]) SetMissedTwice(shards uint64) { t.missedTwice.Store(shards) }

// lose notes that the store has forgotten something of a key. known is set where all is being sent
// again for that loss already. It reports whether the loss is news.
func (t *Table[S]) lose(l *algorithms.Ledger, known bool) (forgot bool) {
	t.reservations.Lose()
	if !known {
		l.Resend |= algorithms.Forgotten
	}
	return !known
}

// Resend has all totals that count sent again, at the pace of the syncs: the store has forgotten,
// or it is another one.
func (t *Table[S]) Resend() {
	t.forgotten(true)
	t.ResendRest()
}

// Forgotten notes that the store has forgotten all totals: a key that gets a request is sent again
// with it, and the rest when ResendRest says so. Where it is sure, what is known of the others
// stays for their epochs. It returns how many keys there are. now is the caller's clock.
func (t *Table[S]) Forgotten(now int64, sure bool) (keys int) {
	b := t.config.Load()
	if b == nil {
		return 0
	}
	// A step of the clock ends leases, which looks the same.
	return t.forgotten(sure && !t.inStepGrace(b, now))
}

// forgotten is Forgotten; keep says whether what is known of the others stays.
func (t *Table[S]) forgotten(keep bool) (keys int) {
	t.eachSynced(func(_ *stripe[S], _ uint32, e entry[S]) {
		l := t.machine.Ledger(&e.state)
		if l.Resend |= algorithms.Forgotten; keep {
			l.RemoteOnlyRises()
		}
		e.flags &^= reread
		keys++
	})
	return keys
}

// ResendRest has what the store has forgotten, and what was not sent again since, sent again.
func (t *Table[S]) ResendRest() {
	t.eachSynced(func(st *stripe[S], i uint32, e entry[S]) {
		if t.machine.Ledger(&e.state).Resend&algorithms.Forgotten != 0 {
			st.markDirty(i, e)
		}
	})
}

// eachSynced is each for a table that is synced. Every key has a sync state then.
func (t *Table[S]) eachSynced(f func(*stripe[S], uint32, entry[S])) {
	if !t.config.Load().IsSynced() {
		return
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	t.each(func(st *stripe[S], i uint32, _ entry[S]) { f(st, i, t.withSyncState(st, i)) })
}

// ResetAcks prepares for another store: nothing in it is confirmed, and what the last one reported
// of others stays.
func (t *Table[S]) ResetAcks() {
	b := t.config.Load()
	if b == nil {
		return
	}
	t.reservations.Lose()
	t.walking.Lock()
	defer t.walking.Unlock()
	over := inFlight | failed | reread | rereading // a call that asks goes on
	t.each(func(st *stripe[S], i uint32, _ entry[S]) {
		e := t.withSyncState(st, i)
		l := t.machine.Ledger(&e.state)
		if t.bucket == nil {
			l.ResetAcks()
		}
		l.Resend |= algorithms.Unconfirmed
		*e.syncState = syncState{flags: e.flags &^ over}
		st.markDirty(i, e)
	})
}

// Totals are sums over all keys of what a decision can still use.
type Totals struct {
	Keys int
	// Own was counted here and Remote on other nodes; Unsent is the part of Own that the store
	// doesn't have.
	Own, Remote, Unsent int64
	// Fingerprint differs where what was counted here of some key in some epoch does, chance
	// excepted.
	Fingerprint uint64

	// missingKeys is how many keys have counts that the store lacks or has lost, and missing what
	// they are. Of corrections other keys the store has too much, or lacks that they are settled.
	missingKeys, corrections int
	missing                  int64
}

// Totals walks over all keys.
func (t *Table[S]) Totals(now int64) (sum Totals) {
	b := t.config.Load()
	if b == nil {
		return sum
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	at := t.in(now)
	t.each(func(_ *stripe[S], _ uint32, e entry[S]) {
		own, remote := t.machine.Spent(&e.state, b.Limit, at)
		l := t.machine.Ledger(&e.state)
		unsent := l.Unsent(b.Limit.History)
		missing := unsent
		if l.Resend&^algorithms.Settled != 0 {
			missing = own
		}
		sum.Keys++
		sum.Own, sum.Remote = sum.Own+own, sum.Remote+remote
		sum.Unsent += unsent
		for age := range int64(b.Limit.History + 1) {
			if c, ok := l.At(l.Epoch - age); ok && c.Own > 0 {
				sum.Fingerprint += e.key.A * uint64((l.Epoch-age)<<20+c.Own)
			}
		}
		if missing > 0 {
			sum.missingKeys++
			sum.missing += missing
		} else if l.Corrects(b.Limit.History) {
			sum.corrections++
		}
	})
	return sum
}

// Unsent is what the store doesn't have yet, or no longer, of what a decision can still use:
// requests admitted here, and of how many keys. corrections is of how many other keys it has too
// much, or lacks that they are settled.
func (t *Table[S]) Unsent(now int64) (keys int, requests int64, corrections int) {
	sum := t.Totals(now)
	return sum.missingKeys, sum.missing, sum.corrections
}

// withSyncState returns a slot as at does, with a sync state where it has none yet.
func (t *Table[S]) withSyncState(st *stripe[S], i uint32) entry[S] {
	if x := &st.synced[i/chunkSize]; *x == nil {
		*x = new([chunkSize]syncState)
	}
	return st.at(i)
}
