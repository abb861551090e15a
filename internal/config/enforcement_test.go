package config

import (
	"encoding/binary"
	"testing"
)

func TestEnforcement(t *testing.T) {
	if (Enforcement{}) != Enforce(1) {
		t.Error("the zero value doesn't enforce a zone for all keys")
	}
	for _, c := range []struct {
		share     float64
		text      string
		full, off bool
	}{
		{0, "off", false, true}, {1, "100%", true, false}, {0.25, "25%", false, false}, {0.125, "12.5%", false, false},
		{1e-9, "0.01%", false, false}, {1 - 1e-9, "99.99%", false, false}, {0.00016, "0.02%", false, false},
	} {
		e := Enforce(c.share)
		if e.String() != c.text || e.IsFull() != c.full || e.IsOff() != c.off {
			t.Errorf("Enforce(%v) = %s, full %t, off %t, want %+v", c.share, e, e.IsFull(), e.IsOff(), c)
		}
		if share, err := ParseEnforcement(e.String()); err != nil || Enforce(share) != e || Enforce(e.Share()) != e {
			t.Errorf("ParseEnforcement(%s) = %v, %v, which is not the same", e, share, err)
		}
	}
}

// Of ten thousand points each step of the share takes in one more, and lets none go.
func TestIncludesIsMonotone(t *testing.T) {
	var id [16]byte
	for point := range uint64(enforcementSteps) {
		binary.BigEndian.PutUint64(id[:], point+7*enforcementSteps)
		for _, share := range []uint64{0, 1, 2_500, enforcementSteps - 1, enforcementSteps} {
			if got, want := Enforce(float64(share)/enforcementSteps).Includes(id, 0), point < share; got != want {
				t.Fatalf("point %d at %d of %d: in %t, want %t", point, share, enforcementSteps, got, want)
			}
		}
	}
}
