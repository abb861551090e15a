package table

import (
	"math"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// syncState is what an entry knows of its syncs, beside the ledger in its state.
type syncState struct {
	estimate
	// full is the largest limit that was found used up here, and fullIn when: see lately.
	// othersDenied is set where others were denied something before the last answer in which they
	// had asked for anything.
	full         uint32
	fullIn       uint8
	othersDenied bool
	flags        uint8
	regions      uint8 // inOthers and hasLower
	// said is the number of the latest message, 0 where its answer is not to be heard: see say.go.
	said int64
	// imported is the number of the call whose answer was imported last: see Import.
	imported int64
}

// What a key knows of other regions: that one of them has it too, and that a request of it had a
// limit below that of the configuration.
const (
	inOthers uint8 = 1 << iota
	hasLower
)

// observe brings a key that is synced to now, and estimates what others spent unseen.
func (t *Table[S]) observe(st *stripe[S], b *SyncConfig, l algorithms.Limit, i uint32, now int64, o Offset) (e entry[S], pending int64) {
	e = t.applyStep(st, l, i, now, o)
	t.machine.Advance(&e.state, l, now)
	ledger := t.machine.Ledger(&e.state)
	if e.At != 0 && now-e.At > int64(3*b.Rate+time.Second) {
		ledger.Synced = false // and so no estimate either
	}
	if b.Certain {
		return e, 0
	}
	if pending = t.pending(e, ledger, l.History); pending > 0 && b.Mixed && b.Early {
		pending = t.bound(b, e, l, now, pending)
	}
	return e, pending
}

// record notes that a key is dirty after so many attempts, which were decided as d under a limit.
// An attempt is a request, however many units it asks for: else one request could have this node
// take itself for the only one. It reports whether the replicator should be woken.
func (t *Table[S]) record(st *stripe[S], b *SyncConfig, e entry[S], i uint32, d *Taken, limit algorithms.Limit, attempts int64) (wake bool) {
	l := t.machine.Ledger(&e.state)
	l.Attempts = addAttempts(l.Attempts, attempts)
	if b.Mixed && !d.Allowed && attempts > 0 {
		t.noteFull(b, e, limit, d)
	}
	e.flags &^= confirm
	st.markDirty(i, e)
	regions := b.Regions
	if regions > 1 && limit.Size < b.Limit.Size {
		e.regions |= hasLower
	}
	if e.regions&inOthers != 0 {
		regions = 1
	}
	if !b.Early || b.Certain && l.Synced || e.flags&(urgent|inFlight|failed) != 0 ||
		!e.NeedsSync(l, limit, d.Remaining, d.At, regions) && (len(st.urgent) > 0 || !e.NeedsRefresh(b.Rate, limit, d.Remaining, d.At)) {
		return false
	}
	return t.markUrgent(st, i, e)
}

// pending is the estimate of what others have spent unseen, unless the shard of the key is lost.
func (t *Table[S]) pending(e entry[S], l *algorithms.Ledger, history int) int64 {
	if lost := t.lost.Load(); lost != 0 && lost>>(e.id[0]&63)&1 != 0 {
		return 0
	}
	return e.Pending(l, history)
}

// SetLost sets the shards that can't be reached, a bit each: estimates for their keys stop. A key's
// shard is the lowest six bits of its ID's first byte.
func (t *Table[S]) SetLost(shards uint64) { t.lost.Store(shards) }

// Drain takes keys out, until there are about most messages, and appends these to dst: the keys
// that are outgoing, or where early is set the urgent ones. Each message must come back through Ack
// or Fail; until then its key has no other. now is the caller's clock.
func (t *Table[S]) Drain(now int64, most int, early bool, dst []Message) []Message {
	b := t.config.Load()
	if !b.IsShared() || b.Charges {
		return dst
	}
	t.taking.Lock()
	defer t.taking.Unlock()
	t.drain(b, now, most, early, func(e entry[S], now int64, _ Offset) int {
		if early && (e.flags&failed != 0 || e.At != 0 && now-e.At < int64(earlyPause)) {
			return 0 // it was answered since; what came after waits for the next cycle
		}
		had := len(dst)
		dst = t.messages(b, e, now, early && e.At == 0, dst)
		e.flags |= inFlight
		if !early && e.flags&confirm != 0 {
			e.flags = e.flags&^confirm | confirming
		}
		return len(dst) - had
	})
	return dst
}

// messages appends what there is to send and to ask about one key. newest asks only for the current
// epoch and the one before: of a key that a node meets for the first time, the older sub-windows of
// a finely cut window can wait for the next cycle, or for the next request.
func (t *Table[S]) messages(b *SyncConfig, e entry[S], now int64, newest bool, dst []Message) []Message {
	t.machine.Advance(&e.state, b.Limit, now)
	l := t.machine.Ledger(&e.state)
	m := Message{Key: e.key, ID: e.id, Span: b.Epoch, At: now, Settles: b.Params.Reserves}
	first := len(dst)
	for age := range int64(b.Limit.History + 1) {
		m.Epoch = l.Epoch - age
		c, ok := l.Prepare(m.Epoch)
		if !ok {
			break
		}
		m.Total, m.Attempts = c.Own, 0
		m.Push = c.Own != c.Acked || l.Resend != 0 && c.Own != 0 || l.Resend&^(algorithms.Forgotten|algorithms.Unconfirmed) != 0
		m.Bucket = b.Params.Kind.Traits().Draining && age == 0
		if m.Settles {
			m.Settled = t.unsettled.Settled(e.key, m.Epoch, c.Own)
		}
		if age == 0 {
			m.Attempts = int64(l.Attempts)
			m.Push = m.Push || l.Attempts != e.Attempts
		}
		if age > 0 && !m.Push && (l.Final(m.Epoch) || newest && age > 1) {
			continue
		}
		dst = append(dst, m)
	}
	if l.Resend&algorithms.Moved != 0 {
		m.Total, m.Attempts, m.Settled, m.Push, m.Bucket = 0, 0, 0, true, false
		for ahead := range int64(l.Rewound) {
			m.Epoch = l.Epoch + ahead + 1
			dst = append(dst, m)
		}
	}
	for i := range dst[first:] {
		dst[first+i].Reasons, dst[first+i].Lower = l.Resend, e.regions&hasLower != 0
	}
	nameReset(dst[first:], t.resetOf(e.id))
	if b.Params.Kind.Traits().Draining {
		level, rate := t.machine.Level(&e.state, b.Limit, now)
		fillMessages(dst[first:], l, Bucket{SyncConfig: b, Level: level, Rate: rate, Synced: e.At, Now: now})
	}
	l.Resend &^= algorithms.Settled
	return dst
}

// Ack merges answers; those of one key stand together. It reports whether the store has
// forgotten something that it had confirmed, and that is not sent again already.
func (t *Table[S]) Ack(now int64, answers []Answer) (forgot bool) {
	b := t.config.Load()
	if b == nil {
		return false
	}
	defer t.applyNewer(now, answers)
	early := b.Params.Reserves && t.unsettled.InDoubt(now, b.Rate) || t.isEarly(b, now)
	var reports [algorithms.MaxHistory + 1]algorithms.Report
	for len(answers) > 0 {
		key, n := answers[0].Key, 1
		for n < len(answers) && answers[n].Key == key {
			n++
		}
		st, i, ok := t.lock(key)
		if ok {
			e, at, _ := t.current(st, b.Limit, i, now)
			forgot = t.ackKey(b, e, at, answers[:n], early, reports[:0]) || forgot
			if e.flags&dirty == 0 && (e.flags&failed != 0 || e.flags&confirming == 0) {
				e.flags |= confirm // others may have sent after this one asked
				st.markDirty(i, e)
			}
			e.flags &^= confirming
		}
		st.mu.Unlock()
		answers = answers[n:]
	}
	return forgot
}

// ackKey merges the store's answers for one key, and reports whether the store has forgotten
// something of it that was not known: what answers a resend, or was on its way when one began, is
// no new loss. What the store rejected before says nothing of other keys, so a loss of it is one.
func (t *Table[S]) ackKey(b *SyncConfig, e entry[S], now int64, answers []Answer, early bool, reports []algorithms.Report) (forgot bool) {
	ignore, rejected := e.flags&outdated != 0 || b.Charges, e.flags&failed != 0
	e.flags &^= inFlight | outdated | failed
	if ignore {
		return false // its epochs have other numbers now, under which it is dirty
	}
	t.machine.Advance(&e.state, b.Limit, now)
	l := t.machine.Ledger(&e.state)
	if anyAnswer(answers, func(a *Answer) bool { return a.Failed }) {
		l.Resend |= algorithms.Forgotten // what the store holds of this key is in doubt
		e.flags |= failed
		return false
	}
	e.hear(answers)
	var sent int64
	known := l.Resend&algorithms.Forgotten != 0 && !rejected
	epoch, level, news, less := l.Epoch, seenOfOthers(l, answers), false, false
	for i := range answers {
		a := &answers[i]
		mine := a.Held
		c, _ := l.At(a.Epoch)
		if a.Push {
			mine = a.Total
		}
		final := now > (a.Epoch+1)*int64(a.Span)+int64(2*b.Rate+time.Second)
		remote, lost, ok := l.Ack(a.Epoch, a.Held, mine, a.Sum, early, final)
		if !ok {
			continue
		}
		sent += a.newlySent(b, l, c, lost)
		less, news = less || lost, news || remote > c.Remote || sent > 0
		r := algorithms.Report{Epoch: a.Epoch, Remote: remote}
		if a.Known {
			r.Level, r.LevelAt = level, now
		}
		if a.Epoch == epoch {
			e.learn(a, remote-c.Remote, l.Synced && e.At != 0)
		}
		if b.Params.Reserves {
			e.Alone()
			r.Remote = t.unsettled.Merge(a, c.Acked, remote, early || less)
		}
		reports = append(reports, r)
	}
	if l.Resend &^= answers[0].Reasons &^ algorithms.Settled; l.Resend&algorithms.Moved == 0 {
		l.Rewound = 0
	}
	e.hearFill(l, answers)
	forgot = less && t.lose(l, known)
	if b.Params.Kind.Traits().Draining {
		sent = 0
	}
	passed := now - e.At
	e.Sent(sent, time.Duration(now-answers[0].At), time.Duration(passed))
	e.At = now
	t.mergeAll(b, e, now, reports)
	t.askAgain(b, e, passed, news)
	return forgot
}

// mergeAll merges reports. Where others have refunded what stood in a bucket, what this node has
// reserved there ends to count sooner.
func (t *Table[S]) mergeAll(b *SyncConfig, e entry[S], now int64, reports []algorithms.Report) {
	if !b.Params.Reserves || !b.Params.Kind.Traits().Draining {
		t.machine.Merge(&e.state, b.Limit, now, reports)
		return
	}
	before, _ := t.machine.Level(&e.state, b.Limit, now)
	t.machine.Merge(&e.state, b.Limit, now, reports)
	if after, _ := t.machine.Level(&e.state, b.Limit, now); after < before {
		t.unsettled.Sink(e.key, nil, int64(math.Ceil(before-after)))
	}
}

// hear notes whether another region has a key.
func (s *syncState) hear(answers []Answer) {
	s.regions &^= inOthers
	if anyAnswer(answers, func(a *Answer) bool { return a.Regions }) {
		s.regions |= inOthers
	}
}

// hearFill has the level of a bucket sent with the next sync where the store has totals without a
// fill and was not told the level: it has lost the fill, unless the message has brought all there
// is. That sync comes even if this was the last one.
func (s *syncState) hearFill(l *algorithms.Ledger, answers []Answer) {
	first := &answers[0]
	if first.Bucket && !first.Known && !first.Resend && anyAnswer(answers, func(a *Answer) bool { return a.Sum > 0 && (!a.Push || a.Sum > a.Total) }) {
		l.Resend |= algorithms.Forgotten
		s.flags &^= confirming
	}
}

// anyAnswer reports whether something holds of one of them. They are large, so none is copied.
func anyAnswer(answers []Answer, is func(*Answer) bool) bool {
	for i := range answers {
		if is(&answers[i]) {
			return true
		}
	}
	return false
}

// lose notes that the store has forgotten something of a key, which is known where all is sent
// again for that. It reports whether it is not.
func (t *Table[S]) lose(l *algorithms.Ledger, known bool) (forgot bool) {
	t.unsettled.Lose()
	if !known {
		l.Resend |= algorithms.Forgotten
	}
	return !known
}

// Import takes in what a store that decides by itself says of a key, so that this node can go on
// when the store is unavailable. The reports, all, have the total of all nodes as Remote. Of a
// machine that is Chargeable they replace what the store reported before. A key without a slot gets
// one, unless raw is nil. Calls are numbered, and what an earlier one than the last said is not
// imported: requests that share a key come with their answers in any order.
func (t *Table[S]) Import(l algorithms.Limit, key keys.Key, raw []byte, now, call int64, all []algorithms.Report) {
	st, i, ok := t.lockOrEnter(l, key, raw, now)
	defer st.mu.Unlock()
	if !ok {
		return
	}
	e, at, _ := t.current(st, l, i, now)
	if call < e.imported {
		return
	}
	e.imported = call
	if c, ok := t.machine.(algorithms.Chargeable[S]); ok {
		importCharged(e, c, l, at, all)
		return
	}
	t.machine.Advance(&e.state, l, at)
	ledger := t.machine.Ledger(&e.state)
	for j := range all {
		if c, ok := ledger.At(all[j].Epoch); ok {
			all[j].Remote = max(0, all[j].Remote-c.Acked)
		}
	}
	ledger.Synced = false // this is all that was spent, not what came since
	t.machine.Merge(&e.state, l, at, all)
	ledger.Synced = false
	if b := t.config.Load(); b != nil && b.Params.Reserves {
		t.unsettled.setStored(key, all)
	}
}

// Fail gives messages back that got no answer. Their keys stay dirty.
func (t *Table[S]) Fail(messages []Message) {
	for i := range messages {
		key := messages[i].Key
		if i > 0 && messages[i-1].Key == key {
			continue
		}
		st, j, ok := t.lock(key)
		if ok {
			e := t.withSyncState(st, j)
			e.flags &^= inFlight | confirming | outdated
			t.machine.Ledger(&e.state).Resend |= messages[i].Reasons & algorithms.Settled
			st.markDirty(j, e)
		}
		st.mu.Unlock()
	}
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
	return t.forgotten(sure && !t.isEarly(b, now))
}

// forgotten is Forgotten; keep says whether what is known of the others stays.
func (t *Table[S]) forgotten(keep bool) (keys int) {
	t.eachSynced(func(_ *stripe[S], _ uint32, e entry[S]) {
		l := t.machine.Ledger(&e.state)
		if l.Resend |= algorithms.Forgotten; keep && t.Says() {
			l.Keep()
		}
		e.flags &^= confirm
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
	if !t.config.Load().IsShared() {
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
	t.unsettled.Lose()
	t.walking.Lock()
	defer t.walking.Unlock()
	over := inFlight | outdated | failed | confirm | confirming
	if t.Says() {
		over &^= asking // the call goes on
	}
	t.each(func(st *stripe[S], i uint32, _ entry[S]) {
		e := t.withSyncState(st, i)
		l := t.machine.Ledger(&e.state)
		l.ResetAcks()
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

	// pendingKeys is how many keys have counts that the store lacks or has lost, and pending what
	// they are. Of corrections other keys the store has too much, or lacks that they are settled.
	pendingKeys, corrections int
	pending                  int64
}

// Totals walks over all keys.
func (t *Table[S]) Totals(now int64) (sum Totals) {
	b := t.config.Load()
	if b == nil {
		return sum
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock().In(now)
	charged := t.chargeable(b)
	t.each(func(_ *stripe[S], _ uint32, e entry[S]) {
		own, remote := t.machine.Spent(&e.state, b.Limit, now)
		l := t.machine.Ledger(&e.state)
		unsent := l.Unsent(b.Limit.History)
		pending := unsent
		if charged != nil {
			unsent = charged.Uncounted(&e.state, b.Limit, now)
			pending = unsent
		} else if l.Resend&^algorithms.Settled != 0 {
			pending = own
		}
		sum.Keys++
		sum.Own, sum.Remote = sum.Own+own, sum.Remote+remote
		sum.Unsent += unsent
		if pending > 0 {
			sum.pendingKeys++
			sum.pending += pending
		} else if charged == nil && l.Corrects(b.Limit.History) {
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
	return sum.pendingKeys, sum.pending, sum.corrections
}

// withSyncState returns a slot as at does, with a sync state where it has none yet.
func (t *Table[S]) withSyncState(st *stripe[S], i uint32) entry[S] {
	if x := &st.synced[i/chunkSize]; *x == nil {
		*x = new([chunkSize]syncState)
		for j := range *x {
			(*x)[j].flags = parity(t.clock())
		}
	}
	return st.at(i)
}
