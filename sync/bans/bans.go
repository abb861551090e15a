// Package bans shares the bans of a zone through Redis, along with the sync of one of the zone's
// tables. A ban that began here is sent at once. One that began on another node is read
// whenever its key is synced. Where Redis decides on every request, package strict reads it.
package bans

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

var (
	// Lua has the function of scripts that reads a ban.
	//
	//go:embed ban.lua
	Lua string
	//go:embed bans.lua
	bansLua string

	script = redis.NewScript(Lua + bansLua)
)

// Sharing is the bans of a zone, and the Redis through which they are shared. It fulfills
// table.Companion.
type Sharing struct {
	*ban.Register
	client  redis.UniversalClient
	keys    ratesync.Keys
	cluster bool
	now     func() int64
}

// Share has the bans of a zone go along with the sync of a table, by the way of a client and in a
// namespace, until Unshare.
func Share(r *ban.Register, s *ratesync.Source, zone string, client redis.UniversalClient, namespace string, now func() int64) *Sharing {
	x := &Sharing{Register: r, client: client, keys: ratesync.NewKeyspace(namespace).Zone(zone, "ban"), now: now}
	_, x.cluster = client.(*redis.ClusterClient)
	s.Carry(x)
	r.Share(s.Wake)
	return x
}

// Unshare ends what Share began.
func (x *Sharing) Unshare(s *ratesync.Source) {
	x.Register.Share(nil)
	s.Carry(table.NoCompanion{})
}

// Send sends the bans that began here, except those of shards that are lost, a bit each. Each
// answer of a call takes timeout at most. Those that were not answered wait for the next time;
// failed are the shards of those.
func (x *Sharing) Send(ctx context.Context, timeout time.Duration, lost uint64) (failed uint64, err error) {
	var left []ban.Message
	for err == nil || x.cluster {
		due := x.Drain(x.now(), cycle.BatchSize, nil)
		if len(due) == 0 {
			break
		}
		slices.SortFunc(due, func(a, b ban.Message) int { return ratesync.ShardOf(a.ID) - ratesync.ShardOf(b.ID) })
		for len(due) > 0 {
			n, shards := x.cut(due)
			why := redisconn.ErrDown
			if lost&shards == 0 {
				why = x.ask(ctx, timeout, due[:n])
			}
			if why != nil {
				failed, err, left = failed|shards, why, append(left, due[:n]...)
			}
			due = due[n:]
		}
	}
	x.Fail(left)
	return failed, err
}

// cut returns how many messages go into one call, and the shards that share its fate: in a Cluster
// one, and otherwise all.
func (x *Sharing) cut(messages []ban.Message) (n int, shards uint64) {
	if !x.cluster {
		return len(messages), cycle.AllShards
	}
	first := ratesync.ShardOf(messages[0].ID)
	for n < len(messages) && ratesync.ShardOf(messages[n].ID) == first {
		n++
	}
	return n, 1 << first
}

// Read asks for the bans of the keys of messages, of which those of one key stand together. In a
// Cluster they are of one shard.
func (x *Sharing) Read(ctx context.Context, timeout time.Duration, messages []table.Message) error {
	asks := make([]ban.Message, 0, len(messages))
	for i := range messages {
		if i == 0 || messages[i].Key != messages[i-1].Key {
			asks = append(asks, x.Ask(messages[i].ID, x.now()))
		}
	}
	return x.ask(ctx, timeout, asks)
}

// ask is one call of the script.
func (x *Sharing) ask(ctx context.Context, timeout time.Duration, messages []ban.Message) error {
	ctx, cancel := ratesync.CallContext(ctx, timeout)
	defer cancel()
	keys, args := make([]string, len(messages)), make([]any, len(messages))
	for i, m := range messages {
		keys[i], args[i] = x.keys.Of(m.ID), inLua(m)
	}
	reply, err := script.Run(ctx, x.client, keys, args...).Text()
	if err != nil {
		return err
	}
	return x.ackAll(messages, reply)
}

// inLua is a message as the script has it.
func inLua(m ban.Message) string {
	if m.Length == 0 && !m.Pardoned {
		return ""
	}
	return fmt.Sprintf("%d %d %s", m.Rest.Microseconds(), m.Length.Microseconds(), Age(m))
}

// Age is how long ago the bans of a key were pardoned, as scripts have it; "" for never.
func Age(m ban.Message) string {
	if !m.Pardoned {
		return ""
	}
	return strconv.FormatInt(m.Age.Microseconds(), 10)
}

// ackAll merges the script's reply, a line for each message.
func (x *Sharing) ackAll(messages []ban.Message, reply string) error {
	lines := strings.Split(reply, "\n")
	if len(lines) != len(messages) {
		return ratesync.ErrReply
	}
	now := x.now()
	for i, line := range lines {
		if line == "" {
			continue
		}
		a, ok := Parse(line)
		if !ok {
			return ratesync.ErrReply
		}
		x.Ack(now, messages[i], a)
	}
	return nil
}

// maxBan is longer than any ban of a configuration, in microseconds.
const maxBan = 100 * 365 * 24 * int64(time.Hour/time.Microsecond)

// Parse reads what a script says of a ban: when it began, what is left and its length.
func Parse(text string) (a ban.Answer, ok bool) {
	var n [3]int64
	fields := strings.Fields(text)
	if len(fields) != len(n) {
		return a, false
	}
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] <= 0 || n[i] >= ratesync.MaxExact {
			return a, false
		}
	}
	us := time.Microsecond
	return ban.Answer{Stamp: n[0], Rest: time.Duration(n[1]) * us, Length: time.Duration(n[2]) * us}, n[1] <= n[2] && n[2] <= maxBan
}
