package table

import "time"

// drift is what a clock may go wrong by between two readings of the store's time. More is a step.
const drift = 100 * time.Millisecond

// SetClock brings the table to the store's time, which is ahead of the caller's clock by so much,
// give or take uncertainty. A step moves what is stored along with it, so that it neither frees nor
// locks out anyone. It is not brought in little by little: nodes that disagree on the boundaries of
// windows count into different ones meanwhile. now is the caller's clock.
func (t *Table[S]) SetClock(now int64, ahead, uncertainty time.Duration) {
	off, first := (ahead - t.Offset()).Abs(), !t.clocked.Swap(true)
	switch b := t.background.Load(); {
	case off <= uncertainty+time.Millisecond:
	case first && t.Keys() == 0:
		t.SetOffset(now, ahead, false)
	default:
		t.SetOffset(now, ahead, off > drift || b != nil && off >= b.Params.Window/2)
	}
}
