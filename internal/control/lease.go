package control

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Lease is a node that is there.
type Lease struct {
	// Node is its name in Redis, and Name that for people: its version, host and process.
	Node, Name string
	// Applied is the revision of the record up to which it has applied it.
	Applied int64
	// Heard is when its last heartbeat came, by this node's clock.
	Heard time.Time
}

// noteLoss notes that the server has forgotten leases, that its clock has stepped ahead and ended
// them, or that this node heard nothing of it for so long that they may have ended, as nobody could
// renew them. Which nodes there are is known again when each has had time for a heartbeat. The lock
// is held.
func (c *Control) noteLoss(h ratesync.HeartbeatReply) {
	const long = int64(ratesync.Lease / 2)
	if c.heard != 0 && (h.KnownSince != c.knownSince || h.Now-c.heard > long || h.Server-h.Now-c.record.ahead > long) {
		c.settled = h.Now + int64(settleFor)
	}
	c.knownSince, c.heard = h.KnownSince, h.Now
}

// parseLeases reads the fields of nodes, each after its name: "seq expiry since applied name".
func parseLeases(fields []any, h ratesync.HeartbeatReply) (all []Lease) {
	for i := 0; i+1 < len(fields); i += 2 {
		node, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		words := append(strings.SplitN(value, " ", 5), "", "", "", "", "")
		expiry, _ := strconv.ParseInt(words[1], 10, 64)
		applied, _ := strconv.ParseInt(words[3], 10, 64)
		age := time.Duration(h.Server) - time.Duration(expiry)*time.Millisecond + ratesync.Lease
		all = append(all, Lease{
			Node: node, Name: cmp.Or(words[4], node), Applied: applied,
			Heard: time.Unix(0, h.Now).Add(-max(0, age)).Round(time.Millisecond),
		})
	}
	slices.SortFunc(all, func(a, b Lease) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Node, b.Node))
	})
	return all
}
