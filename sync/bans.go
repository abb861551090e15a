package ratesync

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

var (
	// BanLua has the function of scripts that reads a ban.
	//
	//go:embed ban.lua
	BanLua string
	//go:embed bans.lua
	bansLua string

	bansSource = BanLua + TellLua + bansLua
	bansScript = redis.NewScript(bansSource)
)

// Bans are those of a zone, which go along with the sync of one of the zone's tables. A ban that
// began here is sent at once. One that began on another node is read whenever its key is synced.
// Where Redis decides on every request, package strict reads it.
type Bans struct {
	*ban.Register
	client redis.UniversalClient
	keys   Keys
	space  Keyspace
	source *Source // that they go along with
	now    func() int64
}

// ShareBans has the bans of a zone go along with the sync of a table, by the way of a client and in
// a namespace, until Unshare.
func ShareBans(r *ban.Register, s *Source, zone string, client redis.UniversalClient, namespace string, now func() int64) *Bans {
	_, cluster := client.(*redis.ClusterClient)
	space := NewKeyspace(namespace).In(cluster)
	b := &Bans{Register: r, client: client, keys: space.Zone(zone, "ban"), space: space, source: s, now: now}
	s.bans.Store(b)
	r.Share(s.Waker)
	return b
}

// Unshare ends what ShareBans began.
func (b *Bans) Unshare(s *Source) {
	b.Register.Share(nil)
	s.bans.Store(nil)
}

// A bansOut sends bans that began here, one call after the other.
type bansOut struct {
	sender[ban.Message]

	bans    *Bans
	timeout time.Duration
	gone    uint64        // the shards that are lost
	left    []ban.Message // that have failed
}

var banBuffers sync.Pool

// Send sends the bans that began here, except those of shards that are lost, a bit each. Each
// answer of a call takes timeout at most. Those that were not answered wait for the next time;
// failed are the shards of those.
func (b *Bans) Send(ctx context.Context, timeout time.Duration, lost uint64) (failed uint64, err error) {
	if !b.HasUnsent() {
		return 0, nil
	}
	x := &bansOut{bans: b, timeout: timeout, gone: lost}
	x.sender = sender[ban.Message]{out: x, cluster: b.space.cluster, buffers: &banBuffers, places: make(chan struct{}, 1)}
	for (x.err == nil || b.space.cluster) && x.round(ctx, batchSize, true) > 0 {
		x.calls.Wait()
	}
	b.Fail(x.left)
	return x.failed, x.err
}

func (x *bansOut) drain(most int, _ bool, dst []ban.Message) []ban.Message {
	return x.bans.Drain(x.bans.now(), most, dst)
}

func (x *bansOut) idOf(m ban.Message) keys.ID { return m.ID }

func (x *bansOut) lost() uint64 { return x.gone }

func (x *bansOut) call(ctx context.Context, messages []ban.Message) error {
	err := x.bans.ask(ctx, x.timeout, messages)
	if err != nil {
		x.fail(messages)
	}
	return err
}

// fail keeps messages until all others are sent: they would be drained again.
func (x *bansOut) fail(messages []ban.Message) { x.left = append(x.left, messages...) }

// Read asks for the bans of keys, of which some stand there several times, together. In a Cluster
// they are of one shard.
func (b *Bans) Read(ctx context.Context, timeout time.Duration, of []keys.ID) error {
	asks := make([]ban.Message, 0, len(of))
	for i, id := range of {
		if i == 0 || id != of[i-1] {
			asks = append(asks, b.Ask(id, b.now()))
		}
	}
	return b.ask(ctx, timeout, asks)
}

// ask is one call of the script.
func (b *Bans) ask(ctx context.Context, timeout time.Duration, messages []ban.Message) error {
	ctx, cancel := CallContext(ctx, timeout)
	defer cancel()
	keys, args := make([]string, len(messages)), make([]any, len(messages))
	for i, m := range messages {
		keys[i], args[i] = b.keys.Of(m.ID), banInLua(m)
	}
	if b.source.least.Load() > 0 && len(messages) > 0 {
		keys = append(keys, b.space.Told(b.space.shardOf(messages[0].ID)))
	}
	reply, err := bansScript.Run(ctx, b.client, keys, args...).Text()
	if err != nil {
		return err
	}
	return b.ackAll(messages, reply)
}

// banInLua is a message as the script has it.
func banInLua(m ban.Message) string {
	if m.Length == 0 && !m.Pardoned {
		return ""
	}
	return fmt.Sprintf("%d %d %s", m.Rest.Microseconds(), m.Length.Microseconds(), PardonAge(m))
}

// PardonAge is how long ago the bans of a key were pardoned, as scripts have it; "" for never.
func PardonAge(m ban.Message) string {
	if !m.Pardoned {
		return ""
	}
	return strconv.FormatInt(m.Age.Microseconds(), 10)
}

// ackAll merges the script's reply, a line for each message.
func (b *Bans) ackAll(messages []ban.Message, reply string) error {
	lines := strings.Split(reply, "\n")
	if len(lines) != len(messages) {
		return ErrReply
	}
	now := b.now()
	for i, line := range lines {
		if line == "" {
			continue
		}
		a, ok := ParseBan(line)
		if !ok {
			return ErrReply
		}
		b.Ack(now, messages[i], a)
	}
	return nil
}

// maxBan is longer than any ban of a configuration, in microseconds.
const maxBan = 100 * 365 * 24 * int64(time.Hour/time.Microsecond)

// ParseBan reads what a script says of a ban: when it began, what is left and its length.
func ParseBan(text string) (a ban.Answer, ok bool) {
	var n [3]int64
	fields := strings.Fields(text)
	if len(fields) != len(n) {
		return a, false
	}
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] <= 0 || n[i] >= MaxExact {
			return a, false
		}
	}
	us := time.Microsecond
	return ban.Answer{Stamp: n[0], Rest: time.Duration(n[1]) * us, Length: time.Duration(n[2]) * us}, n[1] <= n[2] && n[2] <= maxBan
}
