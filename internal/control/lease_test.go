package control

import (
	"fmt"
	"testing"
	"time"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Which nodes there are is not known for some seconds after the server has forgotten them, its
// clock has stepped ahead, or it was away: a change waits as long. At other times it does not.
func TestWhenAllNodesAreKnown(t *testing.T) {
	for name, test := range map[string]struct {
		away, step time.Duration // until the next heartbeat, and of the server's clock meanwhile
		knownSince int64
		want       time.Duration
	}{
		"as ever":     {away: time.Second},
		"forgotten":   {away: time.Second, knownSince: 2, want: settleFor},
		"clock ahead": {away: time.Second, step: time.Hour, want: settleFor},
		"clock back":  {away: time.Second, step: -time.Hour},
		"server away": {away: time.Minute, want: settleFor},
	} {
		c := New(Options{})
		h := ratesync.HeartbeatReply{Now: int64(time.Hour), Server: int64(time.Hour)}
		c.noteLoss(h)
		h.Now, h.Server, h.KnownSince = h.Now+int64(test.away), h.Server+int64(test.away+test.step), test.knownSince
		c.noteLoss(h)
		h.Now, h.Server = h.Now+int64(time.Second), h.Server+int64(time.Second)
		c.record.ahead = h.Server - h.Now
		c.noteLoss(h)
		if got := max(0, time.Duration(c.settled-h.Now)+time.Second); c.settled > 0 && got != test.want || (c.settled > 0) != (test.want > 0) {
			t.Errorf("%s: a change waits for %v, want %v", name, got, test.want)
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
		all := parseLeases([]any{"n", value}, h)
		want := Lease{Node: "n", Name: "v1 host", Applied: 5, Heard: time.Unix(0, h.Now).Add(-test.want)}
		if len(all) != 1 || all[0] != want {
			t.Errorf("parseLeases(%q) = %+v, want %+v", value, all, want)
		}
	}
}

// A few nodes list each other as soon as their number changes. Many do so once, and where somebody
// asks: a thousand lists at once are two seconds of Redis' time.
func TestListsOfManyNodes(t *testing.T) {
	for nodes, want := range map[int64]int{3: 2, fewNodes - 1: 2, 1000: 1} {
		now, asked := int64(time.Hour), 0
		c := New(Options{Now: func() int64 { return now }})
		h := ratesync.HeartbeatReply{Node: "a", Nodes: nodes}
		for beat := range 1000 {
			now += int64(time.Second)
			h.Now, h.Server = now, now
			if beat == 500 {
				h.Nodes++
			}
			var leases []Lease
			if c.Ask()[1] == "1" {
				asked++
				leases = make([]Lease, h.Nodes)
			}
			c.mergeReply(h, Reply{Server: h.Server}, leases)
		}
		if asked != want {
			t.Errorf("one of %d nodes has asked for %d lists in 1,000 heartbeats, want %d", nodes, asked, want)
		}
	}
}
