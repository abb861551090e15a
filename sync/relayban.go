package ratesync

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// isBan reports whether a name that was told is that of a ban: see Keyspace.
func isBan(name string) bool {
	i := strings.LastIndexByte(name, ':')
	return i > 0 && strings.HasSuffix(name[:i], ":ban")
}

// splitBans parts names of bans from those of counts.
func splitBans(names []string) (counts, bans []string) {
	for _, name := range names {
		if isBan(name) {
			bans = append(bans, name)
		} else {
			counts = append(counts, name)
		}
	}
	return counts, bans
}

// sendBans tells the other region of bans, and reports whether it has answered. Of each it is told
// how long it is and what is left: the clocks of the two differ.
func (p *pair) sendBans(ctx context.Context, names []string, waits bool) bool {
	if p.keys.cluster || p.x.r.cluster { // the shard comes first in a name
		slices.Sort(names)
	}
	for len(names) > 0 {
		n := 1
		for n < min(len(names), batchSize) && p.isTogether(names[0], names[n]) {
			n++
		}
		bans, args, err := p.x.r.readBans(ctx, names[:n])
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

// readBans reads bans of this region, and returns the keys of those that last, with what is said of
// each.
func (r *Replicator) readBans(ctx context.Context, names []string) (bans []string, args []any, err error) {
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
			args = append(args, fmt.Sprintf("%d %d ", a.Rest.Microseconds(), a.Length.Microseconds()))
		}
	}
	return bans, args, nil
}
