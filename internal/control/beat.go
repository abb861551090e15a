package control

import (
	"context"
	"math/rand/v2"
	"strconv"
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
	c.asks = c.record.Ask()
	leases := ""
	if c.waiting > 0 || c.asked || c.isListDue(c.Now()) {
		leases = "1"
	}
	return []any{c.asks.Applied, c.asks.At, strconv.FormatInt(c.asks.From, 10), leases, c.Name}
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
	for range rounds {
		more, err := c.tell()
		if err != nil {
			return idleBeat // a later heartbeat tries again, or finds the server lost
		}
		if !more {
			break
		}
		again = true
	}
	c.applyResets()
	c.save()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agains++; !again {
		c.agains = 0
	}
	switch {
	case again && c.agains < 100: // else the server makes no sense
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
	reply.Question, c.failing, c.node = c.asks, "", h.Node
	c.noteLoss(h)
	again = c.record.Merge(reply, h.Now)
	switch {
	case leases != nil:
		c.list(leases, h)
	case h.Nodes == c.nodesListed:
	case h.Nodes <= fewNodes:
		c.asked, again = true, true
	case c.relist == 0:
		c.relist = h.Now + rand.Int64N(h.Nodes*int64(listShare))
	}
	if step := time.Duration(c.record.ahead - c.ahead).Abs(); c.changes != c.record.changes || step > time.Second {
		c.compile()
	}
	close(c.beats)
	c.beats = make(chan struct{})
	return again
}

// fail notes that the record can't be had.
func (c *Control) fail(err error) {
	why := redisconn.Classify(err)
	c.mu.Lock()
	known := c.failing == why
	c.failing = why
	c.mu.Unlock()
	if !known {
		c.Logger.Error("redis refuses the control record, probably because another program uses its key; what is changed at run time holds on this node only; delete the key",
			warning.Field(warning.ForeignKey), zap.String("redis_key", c.Keys.Control()), zap.String("reason", why))
	}
}

// tell tells Redis a part of what it lacks. It reports whether there was any.
func (c *Control) tell() (more bool, err error) {
	c.mu.Lock()
	unsent, known := c.record.Unsent(batch), c.record.known
	c.mu.Unlock()
	if len(unsent) == 0 {
		return false, nil
	}
	args := []any{known, ""}
	for _, e := range unsent {
		args = append(args, e.ID, "", "", e.value())
	}
	holds, version, err := c.write(unsent, args)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Sent(unsent, holds, version, c.Now())
	if c.changes != c.record.changes {
		c.compile()
	}
	return true, nil
}

// write calls the script for entries, and returns what the record holds under their names now, with
// the zero Entry for nothing.
func (c *Control) write(entries []Entry, args []any) (holds []Entry, v Version, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	reply, err := writeScript.Run(ctx, c.Client, []string{c.Keys.Control()}, args...).StringSlice()
	if err != nil {
		return nil, v, err
	}
	if len(reply) != 4+len(entries) {
		return nil, v, ratesync.ErrReply
	}
	if v, err = parseVersion(reply[2] + " " + reply[3]); err != nil {
		return nil, v, err
	}
	holds = make([]Entry, len(entries))
	for i, value := range reply[4:] {
		if value == "" {
			continue
		}
		var ok bool
		if holds[i], ok = parseEntry(entries[i].ID, value); !ok {
			return nil, v, ratesync.ErrReply
		}
	}
	return holds, v, nil
}

// parseVersion reads the first two words of a record's version; none is the zero Version.
func parseVersion(text string) (v Version, err error) {
	if text == "" {
		return v, nil
	}
	if why, wrong := strings.CutPrefix(text, "!"); wrong {
		return v, redisconn.Rejection(why)
	}
	words := strings.Fields(text)
	if len(words) < 2 {
		return v, ratesync.ErrReply
	}
	clock, err := strconv.ParseInt(words[0], 10, 64)
	digest, err2 := strconv.ParseInt(words[1], 10, 64)
	if err != nil || err2 != nil || clock < 0 || clock > maxStamp {
		return v, ratesync.ErrReply
	}
	return Version{clock, digest}, nil
}

// parseReply reads what the answer to a heartbeat says of the record, and the leases if they were
// asked for.
func parseReply(h ratesync.HeartbeatReply) (r Reply, leases []Lease, err error) {
	r.Seq, r.Server = h.Seq, h.Server
	if len(h.Record) != 4 {
		return r, nil, ratesync.ErrReply
	}
	version, ok := h.Record[0].(string)
	applied, ok2 := h.Record[1].(string)
	entries, ok3 := h.Record[2].([]any)
	nodes, ok4 := h.Record[3].([]any)
	if !ok || !ok2 || !ok3 || !ok4 || len(entries)%2+len(nodes)%2 > 0 {
		return r, nil, ratesync.ErrReply
	}
	if r.Version, err = parseVersion(version); err != nil {
		return r, nil, err
	}
	if r.Applied, err = strconv.ParseInt(applied, 10, 64); err != nil {
		return r, nil, ratesync.ErrReply
	}
	r.Entries = parseEntries(entries)
	for i := 0; i < len(nodes); i += 2 {
		node, _ := nodes[i].(string)
		value, _ := nodes[i+1].(string)
		leases = append(leases, parseLease(node, value, h))
	}
	return r, leases, nil
}

// parseEntries reads entries, each after its name. What is none somebody else has written.
func parseEntries(fields []any) (all []Entry) {
	for i := 0; i+1 < len(fields); i += 2 {
		id, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		if e, ok := parseEntry(id, value); ok {
			all = append(all, e)
		}
	}
	return all
}
