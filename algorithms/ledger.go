package algorithms

import "math"

// A Count is what one key has spent in one epoch.
type Count struct {
	// Own was admitted on this node, sent or not. It falls when something is given back.
	Own int64
	// Acked is the Own that the store last confirmed.
	Acked int64
	// Elsewhere was admitted on the other nodes, as of the last reply.
	Elsewhere int64
}

// Total is the view of this node: what the others spent at the last reply and all of its own, sent or not.
func (c Count) Total() int64 { return max(0, addSat(c.Own, c.Elsewhere)) }

// Unsent is the part of Own that the store doesn't know of.
func (c Count) Unsent() int64 { return max(0, c.Own-c.Acked) }

// A Ledger holds a key's counts by epoch: the current one, the one before, and more where a window is cut finer.
// For windows it is what decides; for the others it is only what the exchange sends and learns.
type Ledger struct {
	// Epoch is the number of Cur: floor(now / span).
	Epoch int64
	Cur   Count
	Prev  Count
	// older are the epochs before Prev, the newest first; nil for all but finely cut windows.
	older *[]Count
	// kept and final are bits by age (bit 0 is Cur): the store forgot this epoch and what is known is kept; no node adds to it any more.
	kept, final uint32
	// Attempts are the requests that arrived on this node in Cur, admitted or not. It saturates.
	Attempts uint32
	// Scale doubles the span that many times. It never falls while a state lives, so that epochs keep their numbers.
	Scale uint8
	// Settled says that a reply of the store has been absorbed lately. The owner of the state clears it for a key whose
	// last exchange is too long ago for "what came since" to mean anything.
	Settled bool
	// Resend asks for all live totals to be sent again, confirmed or not: the store has forgotten.
	Resend bool
}

// MaxLive bounds how many epochs before the current one a ledger can hold.
const MaxLive = 31

// At returns the count of an epoch, nil where it is not held.
func (l *Ledger) At(epoch int64) *Count {
	switch age := l.Epoch - epoch; {
	case age == 0:
		return &l.Cur
	case age == 1:
		return &l.Prev
	case age >= 2 && l.older != nil && age-2 < int64(len(*l.older)):
		return &(*l.older)[age-2]
	}
	return nil
}

// Roll brings the ledger to epoch and holds live earlier ones (at most MaxLive). The epoch just before the current one is taken for the
// current one: a request that read its clock before another did. One further back is a step of the clock, and all that
// is held moves there, so nobody waits for a time that may never come. It reports whether a new epoch began.
func (l *Ledger) Roll(epoch int64, live int) bool {
	ahead := epoch - l.Epoch
	switch {
	case ahead == 0 || ahead == -1:
		return false
	case ahead < 0:
		l.Move(epoch - l.Epoch)
		return true
	case ahead > int64(max(live, 1)):
		l.Cur, l.Prev, l.kept, l.final = Count{}, Count{}, 0, 0
		l.hold(live)
		if l.older != nil {
			clear(*l.older)
		}
	default:
		for range ahead {
			l.push(live)
		}
	}
	l.Epoch, l.Attempts = epoch, 0
	return true
}

// hold makes room for live earlier epochs. A key never seen has it as well: what others spent in them may arrive.
func (l *Ledger) hold(live int) {
	if live > 1 && l.older == nil {
		older := make([]Count, live-1)
		l.older = &older
	}
}

// push makes room for a new current epoch.
func (l *Ledger) push(live int) {
	if l.hold(live); live > 1 {
		older := *l.older
		copy(older[1:], older)
		older[0] = l.Prev
	}
	l.Prev, l.Cur = l.Cur, Count{}
	l.kept, l.final = l.kept<<1, l.final<<1
}

// Move renumbers all that is held by a number of epochs. Under its new number none of it is known to the store, and the other nodes may
// have to send theirs again too: until a held epoch ends, a lower answer of the store doesn't replace what is known.
func (l *Ledger) Move(by int64) {
	if by == 0 {
		return
	}
	l.Epoch = addSat(l.Epoch, by)
	l.kept, l.final = ^uint32(0), 0
	l.unconfirm()
}

// Forget notes that the store is another one, which has confirmed nothing. What is known of the others stays for their epochs.
func (l *Ledger) Forget() {
	l.kept, l.final = math.MaxUint32, 0
	l.unconfirm()
}

func (l *Ledger) unconfirm() {
	l.Cur.Acked, l.Prev.Acked = 0, 0
	if l.older != nil {
		for i := range *l.older {
			(*l.older)[i].Acked = 0
		}
	}
}

// Settle notes the store's answer for one epoch: it holds mine as this node's total and sum as everybody's, and held was this node's total
// before the message. A held below what was confirmed means that the store has forgotten; what is known of the others is then kept for
// the rest of that epoch, as they too may have to send again. final says that nobody adds to the epoch any more. ok is false where the epoch is no longer held.
func (l *Ledger) Settle(epoch, held, mine, sum int64, final bool) (r Report, forgot, ok bool) {
	c := l.At(epoch)
	if c == nil {
		return Report{}, false, false
	}
	bit := uint32(1) << (l.Epoch - epoch)
	if forgot = held < c.Acked; forgot {
		l.kept |= bit
	}
	elsewhere := max(0, sum-mine)
	if l.kept&bit != 0 {
		elsewhere = max(elsewhere, c.Elsewhere)
	}
	if final {
		l.final |= bit
	}
	c.Acked = mine
	return Report{Epoch: epoch, Elsewhere: elsewhere}, forgot, true
}

// Final reports that the store has nothing new for an epoch.
func (l *Ledger) Final(epoch int64) bool {
	age := l.Epoch - epoch
	return age < 0 || age > MaxLive || l.final&(1<<age) != 0
}

// age is the total of the epoch that many before Cur, 0 where it is not held.
func (l *Ledger) age(age int) int64 {
	switch {
	case age == 0:
		return l.Cur.Total()
	case age == 1:
		return l.Prev.Total()
	case l.older != nil && age-2 < len(*l.older):
		return (*l.older)[age-2].Total()
	}
	return 0
}

// holds says what stands in the epochs that are live when epoch is the current one: totals that this node reported or will
// report, and totals of the others.
func (l *Ledger) holds(epoch int64, live int) (own, elsewhere bool) {
	passed := max(0, epoch-l.Epoch)
	for age := int64(0); age <= int64(live)-passed; age++ {
		if c := l.At(l.Epoch - age); c != nil {
			own = own || c.Own != 0 || c.Acked != 0
			elsewhere = elsewhere || c.Elsewhere != 0
		}
	}
	return own, elsewhere
}

// giveBack lowers what was spent in an epoch. Where that is less than n, the rest was charged to the epoch after it, by a request
// that was late. An epoch after the current one was moved by a step of the clock, and is the current one.
func (l *Ledger) giveBack(epoch, n int64) {
	for epoch = min(epoch, l.Epoch); n > 0 && epoch <= l.Epoch; epoch++ {
		c := l.At(epoch)
		if c == nil {
			return
		}
		part := min(n, c.Own)
		c.Own -= part
		n -= part
	}
}
