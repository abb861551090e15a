package ratesync

import (
	"testing"
	"time"
)

// When the server's clock steps ahead, what others have said has expired, and a limit more of
// places is given until they say it again. A step back gives none.
func TestPlacesAfterAStepOfTheServersClock(t *testing.T) {
	for by, want := range map[time.Duration]int{time.Hour: slotLimit, -time.Hour: 0} {
		withSlotNodes(t, 3, true, func(t *testing.T, st *luaStore, nodes []*slotNode) {
			take := func(n *slotNode) bool {
				slot, s, err := n.sync.Take(t.Context(), n.src, askOf("k"))
				if err != nil {
					t.Fatal(err)
				}
				n.keep("k", slot, s)
				return s.Allowed
			}
			for range slotLimit {
				if !take(nodes[0]) {
					t.Fatal("denied below the limit")
				}
			}
			st.step(by)
			more := 0
			for i := range 100 {
				if take(nodes[1+i%2]) {
					more++
				}
				time.Sleep(100 * time.Millisecond)
			}
			if more != want {
				t.Errorf("%d more places after a step of %s, want %d", more, by, want)
			}
		})
	}
}
