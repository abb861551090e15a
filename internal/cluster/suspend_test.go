//go:build chaos && unix

package cluster_test

import (
	"testing"
	"time"
)

// A node that gets no CPU for a while, again and again, finds that the time of its calls is over,
// with a Redis that has answered. Counts stay exact, and what the node logs is at most that a call
// took too long.
func TestFaultNodeLate(t *testing.T) {
	s := simple(t)
	late := s.Nodes[2]
	s.inject(fault{
		name: "a node gets no CPU for half a second, again and again", mayLog: "timeout",
		begin: often(s, 5, func(int) {
			if err := late.Suspend(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond) // the fault itself
			if err := late.Resume(); err != nil {
				t.Fatal(err)
			}
		}),
		end: nothing,
	})
}
