package control

import (
	"fmt"
	"testing"
	"time"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A node that the server has forgotten, or whose lease nobody could renew, is there until its lease
// has ended by this node's clock. One that has given its lease up is gone at once.
func TestForgottenLeases(t *testing.T) {
	const lease = ratesync.Lease
	for _, test := range []struct {
		name        string
		away, later time.Duration // until the next heartbeat, and to the one after it
		mark        int64
		step        time.Duration // of the server's clock, until the next heartbeat
		back        bool          // the other node is listed once more before it is gone
		want        [2]int
	}{
		{"given up", time.Second, time.Second, 0, 0, false, [2]int{1, 1}},
		{"forgotten", time.Second, lease - 2*time.Second, 2, 0, false, [2]int{2, 2}},
		{"forgotten and gone", time.Second, lease, 2, 0, false, [2]int{2, 1}},
		{"forgotten and given up", time.Second, time.Second, 2, 0, true, [2]int{2, 1}},
		{"clock ahead", time.Second, lease - 2*time.Second, 0, time.Hour, false, [2]int{2, 2}},
		{"clock ahead and gone", time.Second, lease, 0, time.Hour, false, [2]int{2, 1}},
		{"clock back", time.Second, time.Second, 0, -time.Hour, false, [2]int{1, 1}},
		{"server away", time.Minute, lease - time.Second, 0, 0, false, [2]int{2, 2}},
		{"server away and gone", time.Minute, lease + time.Second, 0, 0, false, [2]int{2, 1}},
	} {
		c := New(Options{})
		h := ratesync.HeartbeatReply{Node: "a", Now: int64(time.Hour), Server: int64(time.Hour), Nodes: 2}
		hear := func(others ...Lease) int {
			c.noteLoss(h)
			c.record.answeredAt, c.record.ahead = h.Now, h.Server-h.Now
			c.list(append(others, Lease{Node: "a"}), h)
			return len(c.leases)
		}
		other := Lease{Node: "b", Applied: 9, ends: h.Now + int64(lease)}
		hear(other)
		h.Now, h.Mark = h.Now+int64(test.away), test.mark
		h.Server = h.Now + int64(test.step)
		got := [2]int{hear()}
		if got[0] == 2 && c.leases[1].Applied != 0 {
			t.Errorf("%s: what it has applied of another history counts", test.name)
		}
		if test.back {
			other.ends = h.Now + int64(lease)
			hear(other)
		}
		h.Now, h.Server = h.Now+int64(test.later), h.Server+int64(test.later)
		// In between heartbeats go on, or the server would be away again.
		c.record.answeredAt = h.Now
		if got[1] = hear(); got != test.want {
			t.Errorf("%s: %v nodes, want %v", test.name, got, test.want)
		}
	}
}

// A node was heard of when its lease began, by the clock of this node: now, if Redis' clock has
// stepped back since.
func TestWhenANodeWasHeard(t *testing.T) {
	const server = int64(1_800_000_000_000) // ms
	h := ratesync.HeartbeatReply{Server: server * int64(time.Millisecond), Now: int64(time.Hour)}
	for _, test := range []struct{ ago, want time.Duration }{{0, 0}, {3 * time.Second, 3 * time.Second}, {-time.Minute, 0}} {
		value := fmt.Sprintf("7 %d 0 5 v1 host", server+(ratesync.Lease-test.ago).Milliseconds())
		l := parseLease("n", value, h)
		want := Lease{Node: "n", Name: "v1 host", Applied: 5, Heard: time.Unix(0, h.Now).Add(-test.want), ends: h.Now + int64(ratesync.Lease-test.ago)}
		if l != want {
			t.Errorf("parseLease(%q) = %+v, want %+v", value, l, want)
		}
	}
}

// A thousand nodes ask for few lists of each other, a few nodes as soon as their number changes.
// The others are there after a loss all the same, however old the list is.
func TestListsOfManyNodes(t *testing.T) {
	for _, test := range []struct {
		nodes       int64
		asked, soon int // within a thousand seconds, and within three of a change of the number
	}{{3, 334, 1}, {fewNodes - 1, 334, 1}, {1000, 6, 0}} {
		now := int64(time.Hour)
		c := New(Options{Now: func() int64 { return now }})
		h := ratesync.HeartbeatReply{Node: "a", Nodes: test.nodes}
		asked := 0
		beat := func() {
			now += int64(time.Second)
			h.Now, h.Server, h.Seq = now, now, h.Seq+1
			var leases []Lease
			if c.Ask()[3] == "1" {
				asked++
				for range h.Nodes {
					leases = append(leases, Lease{Node: ratesync.NewNode(), ends: now + int64(ratesync.Lease)})
				}
			}
			c.mergeReply(h, Reply{Seq: h.Seq, Server: h.Server}, leases)
		}
		beat()
		for asked = 0; h.Seq < 1001; {
			beat()
		}
		if asked > test.asked {
			t.Errorf("one of %d nodes has asked for %d lists in 1,000 heartbeats, want %d at most", test.nodes, asked, test.asked)
		}
		h.Nodes++
		beat()
		if soon := c.asked; soon != (test.soon > 0) {
			t.Errorf("one of %d nodes asks for a list at once when another comes: %t", test.nodes, soon)
		}
		h.Nodes--
		beat()
		c.noteLoss(ratesync.HeartbeatReply{Now: now, Server: now, Mark: h.Seq})
		h.Nodes = 1
		c.list([]Lease{{Node: "a"}}, h)
		if got := int64(len(c.leases)); got < test.nodes {
			t.Errorf("%d of %d nodes are there after a loss", got, test.nodes)
		}
	}
}
