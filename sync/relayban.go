package ratesync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// sendBans tells the other region of bans, and reports whether it has answered. Of each it is told
// how long it is, and what is left at an instant of its own clock, as heartbeats tell that. So a
// message that comes late, perhaps after a reset, begins no ban that is later than the one here.
func (p *pair) sendBans(ctx context.Context, names []string, waits bool) bool {
	if p.keys.cluster || p.x.r.cluster { // the shard comes first in a name
		slices.Sort(names)
	}
	for len(names) > 0 {
		n := 1
		for n < min(len(names), batchSize) && p.isTogether(names[0], names[n]) {
			n++
		}
		bans, args, err := p.x.r.readBans(ctx, names[:n], p.timeThere())
		if err == nil && len(bans) > 0 {
			p.pay(ctx, len(bans), waits)
			called, cancel := CallContext(ctx, linkTimeout)
			p.stats.messages.Add(int64(len(bans)))
			err = bansScript.Run(called, p.client, bans, args...).Err()
			cancel()
		}
		if err != nil {
			return false
		}
		names = names[n:]
	}
	return true
}

// isTogether reports whether one call can name two keys of bans.
func (p *pair) isTogether(a, b string) bool {
	shard := func(name string) string { head, _, _ := strings.Cut(name, "}"); return head }
	return !p.keys.cluster && !p.x.r.cluster || shard(a) == shard(b)
}

// timeThere is the least that the time of the other Redis may be, in microseconds.
func (p *pair) timeThere() int64 {
	now := p.x.r.serverNow()
	p.mu.Lock()
	defer p.mu.Unlock()
	return (now + int64(p.offset-p.unsure)) / int64(time.Microsecond)
}

// readBans reads bans of this region, and returns the keys of those that last, with what is said of
// each. at is the time where it is said.
func (r *Replicator) readBans(ctx context.Context, names []string, at int64) (bans []string, args []any, err error) {
	ctx, cancel := CallContext(ctx, r.timeout)
	defer cancel()
	asks := make([]any, len(names))
	for i := range asks {
		asks[i] = ""
	}
	reply, err := bansScript.Run(ctx, r.client, names, asks...).Text()
	if err != nil {
		return nil, nil, err
	}
	lines := strings.Split(reply, "\n")
	if len(lines) != len(names) {
		return nil, nil, ErrReply
	}
	for i, line := range lines {
		if a, ok := ParseBan(line); ok {
			bans = append(bans, names[i])
			args = append(args, fmt.Sprintf("%d %d  %d", a.Rest.Microseconds(), a.Length.Microseconds(), at))
		}
	}
	return bans, args, nil
}
