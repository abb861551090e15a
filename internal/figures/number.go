package figures

import "strconv"

// A number is what has passed of a number. Of its digits those are kept that can make a difference
// to a cost: however many there are, it has the same size.
type number struct {
	part part
	// digits are the first ones that are not a leading zero, and exponent is what they are
	// multiplied with, as a power of ten.
	digits   [maxDigits]byte
	n        int
	exponent int64
	// cut is set where a digit other than 0 was not kept.
	cut bool
	// written is the exponent as far as it was written.
	written            int64
	negative, inverted bool
}

// maxDigits are enough to tell a number from all others of 64 bits but in contrived cases, in which
// it is the one beside it.
const maxDigits = 40

// maxExponent is more than what the digits before it can make up for.
const maxExponent = 1 << 50

// A part is what the last byte of a number was.
type part uint8

const (
	noPart part = iota
	minus
	zero // the only digit before the point
	whole
	point
	fraction
	mark // e or E
	sign
	power
	notNumber
)

// next has the part that a byte is of, by the part of the byte before it. Its columns are 0, other
// digits, the point, e, plus and minus.
var next = [notNumber][6]part{
	noPart:   {zero, whole, notNumber, notNumber, notNumber, minus},
	minus:    {zero, whole, notNumber, notNumber, notNumber, notNumber},
	zero:     {notNumber, notNumber, point, mark, notNumber, notNumber},
	whole:    {whole, whole, point, mark, notNumber, notNumber},
	point:    {fraction, fraction, notNumber, notNumber, notNumber, notNumber},
	fraction: {fraction, fraction, notNumber, mark, notNumber, notNumber},
	mark:     {power, power, notNumber, notNumber, sign, sign},
	sign:     {power, power, notNumber, notNumber, notNumber, notNumber},
	power:    {power, power, notNumber, notNumber, notNumber, notNumber},
}

// columnOf returns the column of a byte in next, -1 for one that ends a number.
func columnOf(c byte) int {
	switch {
	case c == '0':
		return 0
	case '1' <= c && c <= '9':
		return 1
	case c == '.':
		return 2
	case c|0x20 == 'e':
		return 3
	case c == '+':
		return 4
	case c == '-':
		return 5
	}
	return -1
}

func (n *number) reset() {
	n.part, n.n, n.exponent, n.written = noPart, 0, 0, 0
	n.cut, n.negative, n.inverted = false, false, false
}

// scanNumber reads the rest of a number, up to what ends it.
func (s *Scanner) scanNumber(b []byte, i int) int {
	n, counts := &s.num, len(s.paths.nodes[s.at].lines) > 0
	for ; i < len(b); i++ {
		c := b[i]
		column := columnOf(c)
		if column < 0 {
			s.endNumber(c, counts)
			return i
		}
		if n.part = next[n.part][column]; n.part == notNumber {
			s.fail()
			return i
		}
		if counts {
			n.add(c)
		}
	}
	return i
}

// endNumber ends a number by the byte after it.
func (s *Scanner) endNumber(c byte, counts bool) {
	n, follows := &s.num, false
	switch c {
	case ' ', '\t', '\n', '\r', ',', ']', '}':
		follows = true
	}
	if part := n.part; !follows || part != zero && part != whole && part != fraction && part != power {
		s.fail()
		return
	}
	if counts && n.negative {
		s.Bad = true
	} else if counts {
		s.add(n.value())
	}
	s.endValue()
}

// add adds a byte whose part is known.
func (n *number) add(c byte) {
	switch n.part {
	case minus:
		n.negative = true
	case whole:
		if !n.keep(c) {
			n.exponent++
		}
	case fraction:
		if n.n == 0 && c == '0' || n.keep(c) {
			n.exponent--
		}
	case sign:
		n.inverted = c == '-'
	case power:
		n.written = min(10*n.written+int64(c-'0'), maxExponent)
	}
}

// keep keeps a digit if there is room for it.
func (n *number) keep(c byte) bool {
	if n.n == maxDigits {
		n.cut = n.cut || c != '0'
		return false
	}
	n.digits[n.n] = c
	n.n++
	return true
}

// value returns the number, without its sign. It is infinite where it is too large.
func (n *number) value() float64 {
	if n.n == 0 {
		return 0
	}
	exponent := n.exponent + n.written
	if n.inverted {
		exponent = n.exponent - n.written
	}
	var buffer [maxDigits + 24]byte
	text := append(buffer[:0], n.digits[:n.n]...)
	if n.cut { // it is above what the digits say
		text = append(text, '1')
		exponent--
	}
	text = append(text, 'e')
	text = strconv.AppendInt(text, exponent, 10)
	value, _ := strconv.ParseFloat(string(text), 64) // out of range is 0 or infinite
	return value
}
