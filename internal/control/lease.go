package control

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// noteLoss notes that the server has forgotten leases, that its clock has stepped ahead and ended
// them, or that this node heard nothing of it for so long that they may have ended, as nobody could
// renew them. Their nodes are there until they have ended by this node's clock, which does not run
// while the server is away. The lock is held.
func (c *Control) noteLoss(h ratesync.HeartbeatReply) {
	away := max(0, h.Now-c.record.answeredAt)
	isLong, isLost := away > int64(ratesync.Lease/2), h.Mark > c.mark || h.Server-h.Now-c.record.ahead > int64(ratesync.Lease/2)
	c.mark = max(c.mark, h.Mark)
	if !isLong && !isLost {
		return
	}
	for i := range c.leases {
		l := &c.leases[i]
		l.forgotten, l.Applied = true, 0 // what they have applied holds in that history only
		// Of many nodes the list is old, and there were as many with the last heartbeat.
		if c.record.answeredAt-c.listed > int64(listFor) {
			l.ends = max(l.ends, c.record.answeredAt+int64(ratesync.Lease))
		}
		if isLong {
			l.ends += away
		}
	}
}

// list takes in the leases that the server has, and keeps those that it has forgotten. The lock is
// held.
func (c *Control) list(leases []Lease, h ratesync.HeartbeatReply) {
	c.nodesListed = int64(len(leases))
	for _, l := range c.leases {
		isThere := func(other Lease) bool { return other.Node == l.Node }
		if l.forgotten && h.Now < l.ends && !slices.ContainsFunc(leases, isThere) {
			leases = append(leases, l)
		}
	}
	slices.SortFunc(leases, func(a, b Lease) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Node, b.Node))
	})
	c.leases, c.listed, c.asked, c.relist = leases, h.Now, false, 0
}

// isListDue reports whether the leases are to be listed though nobody asks. All nodes together ask
// every listShare at most, by chance: a thousand lists at once are two seconds of Redis' time. The
// lock is held.
func (c *Control) isListDue(now int64) bool {
	every := max(int64(listFor), c.nodesListed*int64(listShare))
	return c.listed == 0 || now-c.listed > every || c.relist != 0 && now >= c.relist
}

// parseLease reads a field of the nodes, "seq expiry mark applied name". A node of a version
// without the record leaves the last two out.
func parseLease(node, value string, h ratesync.HeartbeatReply) Lease {
	words := strings.SplitN(value, " ", 5)
	number := func(i int) int64 {
		if i >= len(words) {
			return 0
		}
		n, _ := strconv.ParseInt(words[i], 10, 64)
		return n
	}
	l := Lease{Node: node, Applied: number(3), Name: node}
	if len(words) == 5 {
		l.Name = words[4]
	}
	age := time.Duration(h.Server) - (time.Duration(number(1))*time.Millisecond - ratesync.Lease)
	l.ends = h.Now + (number(1)*int64(time.Millisecond) - h.Server)
	l.Heard = time.Unix(0, h.Now).Add(-max(0, age)).Round(time.Millisecond)
	return l
}
