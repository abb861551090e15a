// A ledger keeps what one key has spent, by epochs: on this node and on the others. It is what
// windows decide by, and what is sent to a store and merged from it. For that it notes what the
// store has confirmed, what it may have forgotten, and what must be sent again.
//
// It knows nothing of limits, has no clock and does no I/O. A Ledger belongs to one caller at a
// time.

package algorithms

import (
	"math"
	"math/bits"
	"slices"

	"github.com/caddy-tide/ratelimit/internal/saturate"
)

// An EpochCount is what one key has spent in one epoch.
type EpochCount struct {
	// Own was admitted on this node, sent or not. It falls with a refund.
	Own int64
	// Acked is what the store has of Own for certain. It falls with a refund, as that may have
	// reached the store unanswered.
	Acked int64
	// Remote was admitted on the other nodes, as of the last reply.
	Remote int64
}

// Total is the view of this node: what the others spent at the last reply and all of its own, sent
// or not.
func (c EpochCount) Total() int64 { return max(0, saturate.Add(c.Own, c.Remote)) }

// Unsent is the part of Own that the store doesn't know of.
func (c EpochCount) Unsent() int64 { return max(0, c.Own-c.Acked) }

// A Ledger holds a key's counts by epoch: the current one, the one before, and more where a window
// is cut finer. For windows it is what decides; for the others it is only what the sync sends and
// merges.
type Ledger struct {
	// Epoch is the number of Cur: floor(now / length).
	Epoch int64
	Cur   EpochCount
	Prev  EpochCount
	// older are the epochs before Prev; nil for all but finely cut windows.
	older *older
	// onlyRises has a bit by age (bit 0 is Cur) for an epoch that the store forgot: what is known
	// of it is kept.
	onlyRises uint32
	// Attempts are the requests that arrived on this node in Cur, admitted or not. It saturates.
	Attempts uint32
	// Synced reports that a reply of the store has been merged lately. The owner of the state
	// clears it for a key whose last sync is too long ago for "what came since" to mean
	// anything. A bucket that was merged once goes by it only where its epochs lack something,
	// see BucketState.
	Synced bool
	// Resend says why totals must be sent that the store seems to have. The sync clears it.
	Resend Resend
}

// Resend is a set of reasons to send totals again.
type Resend uint8

const (
	// Forgotten: the store has lost what it had confirmed, or may have.
	Forgotten Resend = 1 << iota
	// Returned: something was refunded, and Acked was lowered for it.
	Returned
	// Unconfirmed: the store is another one, or a step of the clock has changed which epochs the
	// totals are of. What counts as unsent is all that was ever spent, and not only what is new.
	Unconfirmed
	// Settled: what was reserved is settled. It is cleared when it is sent, and set again where no
	// answer comes.
	Settled
)

// MaxHistory bounds how many epochs before the current one a ledger can hold.
const MaxHistory = 31

// At returns the count of an epoch; ok is false where it is not held.
func (l *Ledger) At(epoch int64) (c EpochCount, ok bool) {
	switch age := l.Epoch - epoch; {
	case age == 0:
		return l.Cur, true
	case age == 1:
		return l.Prev, true
	case age >= 2 && age-2 < l.older.len():
		return l.older.at(age - 2), true
	}
	return EpochCount{}, false
}

// Put sets the count of an epoch that is held.
func (l *Ledger) Put(epoch int64, c EpochCount) {
	switch age := l.Epoch - epoch; {
	case age == 0:
		l.Cur = c
	case age == 1:
		l.Prev = c
	case age >= 2 && age-2 < l.older.len():
		l.older.put(age-2, c)
	}
}

// merge sets what the others have spent in the epochs that are held.
func (l *Ledger) merge(reports []Report) {
	for _, r := range reports {
		if c, ok := l.At(r.Epoch); ok {
			c.Remote = max(0, r.Remote)
			l.Put(r.Epoch, c)
			l.Synced = true
		}
	}
}

// adopt counts n units of this node in an epoch that is held.
func (l *Ledger) adopt(epoch, n int64) {
	if c, ok := l.At(epoch); ok {
		c.Own = saturate.Add(c.Own, n)
		l.Put(epoch, c)
	}
}

// Advance brings the ledger to epoch and holds so many earlier ones (at most MaxHistory). The epoch
// just before the current one is taken for the current one: a request that read its clock before
// another did. One further back is a step of the clock, and all that is held moves there, so nobody
// waits for a time that may never come. It reports whether a new epoch began.
func (l *Ledger) Advance(epoch int64, history int) bool {
	ahead := epoch - l.Epoch
	switch {
	case ahead == 0 || ahead == -1:
		return false
	case ahead < 0:
		l.Renumber(epoch - l.Epoch)
		return true
	case ahead > int64(max(history, 1)):
		l.Cur, l.Prev, l.onlyRises = EpochCount{}, EpochCount{}, 0
		l.hold(history)
		l.older.clear()
	default:
		for range ahead {
			l.push(history)
		}
	}
	l.Epoch, l.Attempts = epoch, 0
	return true
}

// Within returns how far into the current epoch now is; ok is false where it is in another one. It
// is for most requests, which so need no division.
func (l *Ledger) Within(now, length int64) (into int64, ok bool) {
	hi, begin := bits.Mul64(uint64(l.Epoch), uint64(length))
	ago := uint64(now) - begin
	return int64(ago), hi == 0 && ago < uint64(length)
}

// hold makes room for so many earlier epochs. A key never seen has it as well: what others spent in
// them may arrive.
func (l *Ledger) hold(history int) {
	if history > 1 && l.older == nil {
		l.older = &older{packed: make([]packedCount, history-1)}
	}
}

// push makes room for a new current epoch.
func (l *Ledger) push(history int) {
	if l.hold(history); history > 1 {
		l.older.push(l.Prev)
	}
	l.Prev, l.Cur = l.Cur, EpochCount{}
	l.onlyRises <<= 1
}

// ResetAcks notes that the store is another one, which has confirmed nothing. What is known of the
// others stays for their epochs.
func (l *Ledger) ResetAcks() {
	l.onlyRises = math.MaxUint32
	l.Resend |= Unconfirmed
	l.unconfirm()
}

// RemoteOnlyRises notes that the store has lost something, if not of this key: what is known of the
// others stays for their epochs, or rises.
func (l *Ledger) RemoteOnlyRises() { l.onlyRises = math.MaxUint32 }

// RemoteMayFall ends that: the store has by now what it had lost, and others may have refunded
// some.
func (l *Ledger) RemoteMayFall() { l.onlyRises = 0 }

func (l *Ledger) unconfirm() {
	l.Cur.Acked, l.Prev.Acked = 0, 0
	for age := range l.older.len() {
		c := l.older.at(age)
		c.Acked = 0
		l.older.put(age, c)
	}
}

// LowerAcked returns the count of an epoch, which is about to be sent to the store. Where that is
// less than the store had confirmed, it has for certain only what is sent now: whether the message
// arrives may never be known.
func (l *Ledger) LowerAcked(epoch int64) (c EpochCount, ok bool) {
	if c, ok = l.At(epoch); ok && c.Own < c.Acked {
		c.Acked = c.Own
		l.Put(epoch, c)
		l.Resend |= Returned
	}
	return c, ok
}

// Ack notes the store's answer for one epoch, and returns what the other nodes have spent in it. In
// the store, before was this node's total before the message, mine is it now, and sum is the total
// of all nodes now. ok is false where the ledger no longer holds the epoch.
//
// forgot is set where before is less than the store had confirmed: it has lost something. The other
// nodes may have to send again, too. So what is known of them is kept until the epoch ends, and
// only a higher sum counts. If mine is less as well, nothing was sent to put that right, and the
// sum is not believed at all: it may count more of this node than mine.
//
// incomplete is set while other nodes may not have followed the last step of the clock, or not have
// sent again what the store has lost. Until then what is known of them is kept, too.
func (l *Ledger) Ack(epoch, before, mine, sum int64, incomplete bool) (remote int64, forgot, ok bool) {
	c, ok := l.At(epoch)
	if !ok {
		return 0, false, false
	}
	bit := uint32(1) << (l.Epoch - epoch)
	if forgot = before < c.Acked; forgot {
		l.onlyRises |= bit
	}
	remote = max(0, sum-mine)
	switch {
	case mine < c.Acked:
		remote = c.Remote
	case incomplete, l.onlyRises&bit != 0:
		remote = max(remote, c.Remote)
	}
	c.Acked = mine
	l.Put(epoch, c)
	return remote, forgot, true
}

// Age is the total of the epoch that many before Cur, 0 where it is not held.
func (l *Ledger) Age(age int) int64 {
	c, _ := l.At(l.Epoch - int64(age))
	return c.Total()
}

// Sum sums what was spent in the current epoch and so many earlier ones, on this node and on the
// others.
func (l *Ledger) Sum(history int) (own, remote int64) {
	own, remote = l.Cur.Own, l.Cur.Remote
	if history > 0 {
		own, remote = saturate.Add(own, l.Prev.Own), saturate.Add(remote, l.Prev.Remote)
	}
	for i := range min(int64(history-1), l.older.len()) {
		c := l.older.at(i)
		own, remote = saturate.Add(own, c.Own), saturate.Add(remote, c.Remote)
	}
	return own, remote
}

// Unsent sums what the store doesn't have of the current epoch and so many earlier ones.
func (l *Ledger) Unsent(history int) (sum int64) {
	for age := range int64(history + 1) {
		if c, ok := l.At(l.Epoch - age); ok {
			sum = saturate.Add(sum, c.Unsent())
		}
	}
	return sum
}

// KeepsRemote reports that the store forgot one of the two newest epochs, and that what was known
// of it is kept.
func (l *Ledger) KeepsRemote() bool { return l.onlyRises&3 != 0 }

// Holds says what stands in the epochs that are live when epoch is the current one: totals that
// this node reported or will report, and totals of the others.
func (l *Ledger) Holds(epoch int64, history int) (own, remote bool) {
	passed := max(0, epoch-l.Epoch)
	for age := int64(0); age <= int64(history)-passed; age++ {
		if c, ok := l.At(l.Epoch - age); ok {
			own = own || c.Own != 0 || c.Acked != 0
			remote = remote || c.Remote != 0
		}
	}
	return own, remote
}

// Corrects reports whether the store has too much of the current epoch or of so many earlier ones,
// may have, or lacks that something is settled.
func (l *Ledger) Corrects(history int) bool {
	for age := range int64(history + 1) {
		if c, ok := l.At(l.Epoch - age); ok && c.Own < c.Acked {
			return true
		}
	}
	return l.Resend&(Returned|Settled) != 0
}

// Refund lowers what was spent in an epoch. Where that is less than n, the rest was charged to
// the epoch after it, by a request that was late. An epoch after the current one was moved by a
// step of the clock, and is the current one.
func (l *Ledger) Refund(epoch, n int64) {
	for epoch = min(epoch, l.Epoch); n > 0 && epoch <= l.Epoch; epoch++ {
		c, ok := l.At(epoch)
		if !ok {
			return
		}
		part := min(n, c.Own)
		c.Own -= part
		n -= part
		l.Put(epoch, c)
	}
}

// Clone returns a copy that shares nothing with l, for looking ahead.
func (l *Ledger) Clone() Ledger {
	c := *l
	if l.older != nil {
		c.older = &older{packed: slices.Clone(l.older.packed)}
		if l.older.wide != nil {
			wide := slices.Clone(*l.older.wide)
			c.older.wide = &wide
		}
	}
	return c
}

// older are the counts of the epochs before the last two, the newest first: in 32 bits each, or in
// 64 once one of them needs it. nil holds none.
type older struct {
	packed []packedCount
	wide   *[]EpochCount // instead of what is in packed
}

type packedCount struct{ own, acked, remote uint32 }

func (o *older) len() int64 {
	if o == nil {
		return 0
	}
	return int64(len(o.packed))
}

func (o *older) at(i int64) EpochCount {
	if o.wide != nil {
		return (*o.wide)[i]
	}
	p := o.packed[i]
	return EpochCount{Own: int64(p.own), Acked: int64(p.acked), Remote: int64(p.remote)}
}

func (o *older) put(i int64, c EpochCount) {
	if o.wide == nil && (max(c.Own, c.Acked, c.Remote) > math.MaxUint32 || min(c.Own, c.Acked, c.Remote) < 0) {
		wide := make([]EpochCount, len(o.packed))
		for j := range wide {
			wide[j] = o.at(int64(j))
		}
		o.wide = &wide
	}
	if o.wide != nil {
		(*o.wide)[i] = c
		return
	}
	o.packed[i] = packedCount{own: uint32(c.Own), acked: uint32(c.Acked), remote: uint32(c.Remote)}
}

func (o *older) clear() {
	if o != nil {
		clear(o.packed)
		o.wide = nil
	}
}

// push makes c the newest and drops the oldest.
func (o *older) push(c EpochCount) {
	copy(o.packed[1:], o.packed)
	if o.wide != nil {
		copy((*o.wide)[1:], *o.wide)
	}
	o.put(0, c)
}
