package table

// An Offset is how far another clock is ahead of one that never steps, in nanoseconds. As it is one
// word, one look tells it together with the parity of the number of steps that the other clock has
// taken:
//
//	bits 63..1                                       bit 0
//	the nanoseconds, rounded down to an even number  parity of the number of steps
type Offset int64

// NS is the offset without the parity.
func (o Offset) NS() int64 { return int64(o) &^ 1 }

// In brings an instant of the clock that never steps to the other one.
func (o Offset) In(now int64) int64 { return now + o.NS() }

// Parity is that of the number of steps, 0 or 1.
func (o Offset) Parity() uint8 { return uint8(o & 1) }

// Since is how far the other clock has stepped since then was the offset.
func (o Offset) Since(then Offset) int64 {
	if o.Parity() == then.Parity() {
		return 0
	}
	return o.NS() - then.NS()
}
