package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Ask returns what the next heartbeat says and asks of the record.
func (c *Control) Ask() []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, leases := "", ""
	if v, ok := c.record.Ask(); ok {
		version = v.String()
	}
	if c.waiting > 0 || c.asked || c.listed == 0 {
		leases = "1"
	}
	return []any{version, leases, c.Name}
}

// Merge merges the answer to a heartbeat. It tells Redis what it lacks, and returns how long the
// next heartbeat may wait.
func (c *Control) Merge(h ratesync.HeartbeatReply) time.Duration {
	reply, leases, err := parseReply(h)
	if err != nil {
		c.fail(err)
		return idleBeat
	}
	again := c.mergeReply(h, reply, leases)
	c.applyResets()
	told, err := c.tell()
	if err != nil {
		return idleBeat // a later heartbeat tries again, or finds the server lost
	}
	c.save()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agains++; !again && !told {
		c.agains = 0
	}
	switch {
	case c.agains > 0 && c.agains < 100: // else the server makes no sense
		return busyBeat
	case c.waiting > 0:
		return waitingBeat
	}
	return idleBeat
}

// mergeReply merges what a heartbeat was answered, and wakes those who wait for it.
func (c *Control) mergeReply(h ratesync.HeartbeatReply, reply Reply, leases []Lease) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing, c.node = "", h.Node
	c.noteLoss(h)
	again = c.record.Merge(reply, h.Now)
	switch {
	case leases != nil:
		c.leases, c.listed, c.asked = leases, h.Now, false
	case h.Nodes != int64(len(c.leases)) && h.Nodes <= fewNodes:
		c.asked, again = true, true
	}
	if step := time.Duration(c.record.ahead - c.ahead).Abs(); c.changes != c.record.changes || step > time.Second {
		c.compile()
	}
	c.wake()
	return again
}

// wake wakes those who wait for what a heartbeat brings. The lock is held.
func (c *Control) wake() {
	close(c.beats)
	c.beats = make(chan struct{})
}

// fail notes that the record can't be had.
func (c *Control) fail(err error) {
	why := redisconn.Classify(err)
	c.mu.Lock()
	known := c.failing == why
	c.failing, c.record.read = why, false
	c.mu.Unlock()
	if !known {
		c.Logger.Error("redis refuses the control record, probably because another program uses its key; what is changed at run time holds on this node only; delete the key",
			warning.Field(warning.ForeignKey), zap.String("redis_key", c.Keys.Control()), zap.String("reason", why))
	}
}

// tell tells Redis what it lacks, or a part of that. It reports whether there was any.
func (c *Control) tell() (told bool, err error) {
	c.mu.Lock()
	unsent := c.record.Unsent(rounds*batch, c.Now())
	c.mu.Unlock()
	for part := range slices.Chunk(unsent, batch) {
		var args []any
		for _, e := range part {
			args = append(args, e.ID, "", e.value())
		}
		if _, err = c.write(args); err != nil {
			return true, err
		}
	}
	return len(unsent) > 0, nil
}

// write calls the script for entries, and returns what the record holds of them now.
func (c *Control) write(args []any) (holds []string, err error) {
	c.mu.Lock()
	known := c.record.known
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	return writeScript.Run(ctx, c.Client, []string{c.Keys.Control()}, append([]any{known}, args...)...).StringSlice()
}

// String is the version as it is asked for.
func (v Version) String() string { return fmt.Sprint(v.Revision, " ", v.Born) }

// parseVersion reads the first two words of a record's version; none is the zero Version.
func parseVersion(text string) (v Version, err error) {
	if text == "" {
		return v, nil
	}
	if why, wrong := strings.CutPrefix(text, "!"); wrong {
		return v, redisconn.Rejection(why)
	}
	if n, _ := fmt.Sscan(text, &v.Revision, &v.Born); n < 2 || v.Revision < 0 || v.Revision > maxStamp {
		return Version{}, ratesync.ErrReply
	}
	return v, nil
}

// parseReply reads what the answer to a heartbeat says of the record, and the leases if they were
// asked for.
func parseReply(h ratesync.HeartbeatReply) (r Reply, leases []Lease, err error) {
	r.Server = h.Server
	if len(h.Record) != 4 {
		return r, nil, ratesync.ErrReply
	}
	version, ok := h.Record[0].(string)
	entries, ok2 := h.Record[1].([]any)
	whole, ok3 := h.Record[2].(int64)
	nodes, ok4 := h.Record[3].([]any)
	if !ok || !ok2 || !ok3 || !ok4 || len(entries)%2 > 0 {
		return r, nil, ratesync.ErrReply
	}
	r.Version, err = parseVersion(version)
	r.Entries, r.Whole = parseEntries(entries), whole == 1
	return r, parseLeases(nodes, h), err
}

// parseEntries reads entries, each after its name. What is none somebody else has written.
func parseEntries(fields []any) (all []Entry) {
	for i := 0; i+1 < len(fields); i += 2 {
		id, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		_, value, _ = strings.Cut(value, " ") // after when it was written there
		if e, ok := parseEntry(id, value); ok {
			all = append(all, e)
		}
	}
	return all
}
