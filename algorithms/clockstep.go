package algorithms

import "github.com/caddy-tide/ratelimit/internal/saturate"

// Steps of the store's clock, as a ledger sees them: its counts get other epochs. Advance is the
// one user of this file that is no step: it renumbers where the caller's clock was set back.

// Shift brings the ledger to a clock that has taken a step and says epoch now: what is held is
// renumbered by a number of epochs, which is the same on all nodes, and what is then still in an
// epoch to come is put into the current one.
func (l *Ledger) Shift(by, epoch int64) {
	l.Renumber(by)
	switch ahead := l.Epoch - epoch; {
	case ahead == 1:
		l.rewindEpoch()
	case ahead > 1:
		l.Renumber(-ahead)
	}
}

// rewindEpoch reverts the beginning of the current epoch: the clock has stepped back over its
// boundary. What was counted in it is part of the one before, on every node. Those that have
// followed before this one may have told their counts in both, so what is known of them is not kept
// against what the store says, once they all have followed.
func (l *Ledger) rewindEpoch() {
	prev := l.Prev
	prev.Own, prev.Remote = saturate.Add(prev.Own, l.Cur.Own), saturate.Add(prev.Remote, l.Cur.Remote)
	l.Cur, l.Prev = prev, l.older.pop()
	l.onlyRises = l.onlyRises >> 1 &^ 1
	l.Epoch--
	l.Resend |= Unconfirmed
}

// Renumber renumbers all that is held by a number of epochs. Under its new number none of it is
// known to the store.
func (l *Ledger) Renumber(by int64) {
	if by == 0 {
		return
	}
	l.Epoch = saturate.Add(l.Epoch, by)
	l.unconfirm()
	l.Resend |= Unconfirmed
}

// pop takes the newest out, and the oldest is one that nothing is known of.
func (o *older) pop() (c EpochCount) {
	n := o.len()
	if n == 0 {
		return EpochCount{}
	}
	c = o.at(0)
	copy(o.packed, o.packed[1:])
	if o.wide != nil {
		copy(*o.wide, (*o.wide)[1:])
	}
	o.put(n-1, EpochCount{})
	return c
}
