package table

import "time"

// Clocked is a table's clock: what it adds to that of its callers.
type Clocked interface {
	Offset() time.Duration
	SetOffset(now int64, offset time.Duration, shift bool)
	Keys() int
}

// drift is what a clock may go wrong by between two readings of the store's time. More is a step.
const drift = 100 * time.Millisecond

// Steer brings a table to the store's time, which is ahead of the caller's clock by so much, give
// or take doubt. A step moves what is stored along with it, so that it neither frees nor locks out
// anyone. It is not brought in little by little: nodes that disagree on the edges of windows count
// into different ones meanwhile. now is the caller's clock; first says that the table has not been
// steered before.
func Steer(c Clocked, now int64, ahead, doubt, window time.Duration, first bool) {
	off := ahead - c.Offset()
	switch {
	case off.Abs() <= doubt+time.Millisecond:
	case first && c.Keys() == 0:
		c.SetOffset(now, ahead, false)
	default:
		c.SetOffset(now, ahead, off.Abs() > drift || off.Abs() >= window/2)
	}
}
