package table

import (
	"testing"
	"time"
)

// A slot's marks of both epochs go along to another slot, and fade there as they would have.
func TestMarksMoveWithTheirKey(t *testing.T) {
	const older, newer, plain, olderTo, newerTo, plainTo = 3, 40, 41, 100, 5, 70
	minute := int64(time.Minute)
	start := sketchStart - sketchStart%minute
	s, m := newSketch(minSketchWidth, 10, time.Minute), new(sketchMarks)
	m.Add(older, s, start)
	m.Add(newer, s, start+minute)
	for from, to := range map[uint32]uint32{older: olderTo, newer: newerTo, plain: plainTo} {
		m.Move(from, to)
	}
	has := func(now int64, want ...uint32) {
		t.Helper()
		for _, slot := range []uint32{older, newer, plain, olderTo, newerTo, plainTo} {
			marked := false
			for _, w := range want {
				marked = marked || w == slot
			}
			if m.Has(slot, s, now) != marked {
				t.Errorf("after %v slot %d is marked: %t", time.Duration(now-start), slot, !marked)
			}
		}
	}
	has(start+minute, olderTo, newerTo)
	has(start+2*minute, newerTo)
	has(start + 3*minute)
	var none *sketchMarks
	none.Move(1, 2)
	none.Remove(1)
	if none.Has(2, s, start) {
		t.Error("nil marks have one")
	}
}
