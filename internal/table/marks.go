package table

import "time"

// sketchMarks name the slots of keys that got them while the sketch counted something of theirs.
// What they spent there has faded when the epoch after that of the mark is over. Their owner locks;
// nil Marks have none.
type sketchMarks struct {
	window time.Duration
	epoch  int64
	bits   [2][]uint32 // slots marked in the epoch, and in the one before
}

// advance brings the marks to the epoch of now in a sketch.
func (m *sketchMarks) advance(s *sketch, now int64) {
	epoch := s.Epoch(now)
	if m.window != s.window {
		m.window, m.epoch, m.bits = s.window, epoch, [2][]uint32{}
	}
	switch ahead := epoch - m.epoch; {
	case ahead <= 0:
	case ahead == 1:
		m.bits = [2][]uint32{nil, m.bits[0]}
	default:
		m.bits = [2][]uint32{}
	}
	m.epoch = max(m.epoch, epoch)
}

// Has reports whether a slot is marked, and what its key spent in s may count at now.
func (m *sketchMarks) Has(i uint32, s *sketch, now int64) bool {
	if m == nil || m.bits[0] == nil && m.bits[1] == nil {
		return false
	}
	m.advance(s, now)
	return m.at(0, i) || m.at(1, i)
}

func (m *sketchMarks) at(age int, i uint32) bool {
	c := int(i / 32)
	return c < len(m.bits[age]) && m.bits[age][c]>>(i%32)&1 != 0
}

// Add marks a slot whose key has spent something in s.
func (m *sketchMarks) Add(i uint32, s *sketch, now int64) {
	m.advance(s, now)
	m.set(0, i)
}

func (m *sketchMarks) set(age int, i uint32) {
	for int(i/32) >= len(m.bits[age]) {
		m.bits[age] = append(m.bits[age], 0)
	}
	m.bits[age][i/32] |= 1 << (i % 32)
}

// Remove takes the mark of a slot away.
func (m *sketchMarks) Remove(i uint32) {
	if m == nil {
		return
	}
	for age := range m.bits {
		if m.at(age, i) {
			m.bits[age][i/32] &^= 1 << (i % 32)
		}
	}
}

// Move gives a key's marks to the slot that it moves to.
func (m *sketchMarks) Move(from, to uint32) {
	if m == nil {
		return
	}
	for age := range m.bits {
		if m.at(age, from) {
			m.set(age, to)
		}
	}
	m.Remove(from)
}
