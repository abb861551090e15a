package ratesync

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// patience is how long Redis has for an answer where no test is about that: a machine may stall.
const patience = 20 * time.Second

// aBan is how long bans are here, of which no hour passes meanwhile.
const aBan = 1000 * time.Hour

// banNode is one that shares the bans of zone login.
type banNode struct {
	*Bans
	t      *testing.T
	source *TableSyncer
}

func startBanNode(t *testing.T, r *redistest.Server) *banNode {
	t.Helper()
	return banNodeWith(t, r.Client())
}

func banNodeWith(t *testing.T, client *redis.Client) *banNode {
	t.Helper()
	client.Options().ContextTimeoutEnabled = true
	t.Cleanup(func() { _ = client.Close() })
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1, Window: ten.Window}
	n := &banNode{t: t, source: NewTableSyncer(table.New[algorithms.WindowState](p.Kind, 10), SpecOf("login", p))}
	register := new(ban.Register)
	register.Configure(1000, 0)
	n.Bans = SyncBans(register, n.source, "login", client, "test", clock.Now)
	return n
}

func (n *banNode) send() {
	n.t.Helper()
	if failed, err := n.Send(n.t.Context(), patience, 0); failed != 0 || err != nil {
		n.t.Fatalf("Send = %x, %v", failed, err)
	}
}

func (n *banNode) read(ids ...ban.ID) {
	n.t.Helper()
	if err := n.ask(n.t.Context(), patience, ids...); err != nil {
		n.t.Fatal(err)
	}
}

// ask is a call for bans alone.
func (n *banNode) ask(ctx context.Context, timeout time.Duration, ids ...ban.ID) error {
	var asks []ban.Message
	for _, id := range ids {
		asks = append(asks, n.Ask(id, clock.Now()))
	}
	return (&bansOut{bans: n.Bans, timeout: timeout}).call(ctx, asks)
}

// left wants a key banned for so long on a node, within an hour.
func (n *banNode) left(id ban.ID, want time.Duration) {
	n.t.Helper()
	if rest := n.Rest(id, clock.Now()); (rest-want).Abs() > time.Hour || (rest == 0) != (want == 0) {
		n.t.Errorf("%v of the ban is left, want %v", rest, want)
	}
}

var oneKey, twoKey = ban.ID{1}, ban.ID{2}

// Three nodes agree on bans by the way of Redis, each with one read of the key, also on hundreds at
// once and after a FLUSHALL. Redis forgets a ban when it is over.
func TestThreeNodesShareBans(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a, b, c := startBanNode(t, r), startBanNode(t, r), startBanNode(t, r)
	a.Begin(oneKey, clock.Now(), aBan)
	if !a.HasUnsent() {
		t.Fatal("a ban that has just begun is not to be sent")
	}
	a.send()
	for _, n := range []*banNode{b, c} {
		n.left(oneKey, 0)
		n.read(twoKey, oneKey)
		n.left(oneKey, aBan)
		n.left(twoKey, 0)
	}
	name := NewKeyspace("test").Zone("login", "ban").Of(oneKey)
	if ttl := r.Client().PTTL(t.Context(), name).Val(); ttl > aBan || ttl < aBan-time.Hour {
		t.Errorf("Redis keeps it for %v, want %v", ttl, aBan)
	}
	for i := range 500 {
		b.Begin(ban.ID{2, byte(i), byte(i >> 8)}, clock.Now(), aBan)
	}
	b.send()
	c.read(ban.ID{2, 7, 1})
	c.left(ban.ID{2, 7, 1}, aBan)
	r.Do("FLUSHALL")
	d := startBanNode(t, r)
	d.read(oneKey)
	d.left(oneKey, 0)
	c.Resend()
	c.send()
	d.read(oneKey)
	d.left(oneKey, aBan)
}

// A ban that Redis has in the future, as its clock was set back, begins now, and is written back:
// it lasts no longer than its length. What makes no sense is none.
func TestBansInRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	key := NewKeyspace("test").Zone("login", "ban").Of(oneKey)
	now := client.Time(t.Context()).Val()
	stored := func(begun, length time.Duration) string {
		return fmt.Sprint(now.Add(begun).UnixMicro(), " ", length.Microseconds(), " 0")
	}
	for _, test := range []struct {
		stored string
		want   time.Duration
	}{
		{stored(aBan, aBan/4), aBan / 4}, {stored(-aBan/6, aBan/4), aBan/4 - aBan/6}, {stored(-aBan, aBan/4), 0},
		{"", 0}, {"now", 0}, {"-1 900000000 0", 0}, {"1 99999999999999999999 0", 0}, {stored(0, 0), 0},
	} {
		if err := client.Set(t.Context(), key, test.stored, redis.KeepTTL).Err(); err != nil {
			t.Fatal(err)
		}
		n := startBanNode(t, r)
		n.read(oneKey)
		n.left(oneKey, test.want)
		began, length := int64(0), int64(0)
		_, _ = fmt.Sscan(client.Get(t.Context(), key).Val(), &began, &length)
		if test.want > 0 && began > client.Time(t.Context()).Val().UnixMicro() {
			t.Errorf("%s: Redis still has a ban in the future, %d", test.stored, began)
		}
	}
	r.Do("DEL", key)
	r.Do("HSET", key, "another", "program's")
	n := startBanNode(t, r)
	n.read(oneKey)
	n.left(oneKey, 0)
}

// Where bans grow, Redis keeps one until it is not remembered any more, for all nodes.
func TestRedisRemembersBans(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a, b := startBanNode(t, r), startBanNode(t, r)
	for _, n := range []*banNode{a, b} {
		n.Configure(1000, 4*aBan)
	}
	a.Begin(oneKey, clock.Now()-int64(2*aBan), aBan)
	a.send()
	name := NewKeyspace("test").Zone("login", "ban").Of(oneKey)
	if ttl := r.Client().PTTL(t.Context(), name).Val(); ttl > 3*aBan || ttl < 3*aBan-time.Hour {
		t.Errorf("Redis keeps it for %v, want %v", ttl, 3*aBan)
	}
	b.read(oneKey)
	b.left(oneKey, 0)
	if next := b.WouldBegin(oneKey, clock.Now(), aBan); next != 2*aBan {
		t.Errorf("the next ban would last %v, want %v", next, 2*aBan)
	}
}

// A ban that began under an earlier reset of its key ends in Redis with the first message of a node
// that knows the reset, and is not written back by one that doesn't. Of two that nodes began
// without knowing of each other, the one that ends later holds.
func TestAResetEndsABanInRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a, b, c := startBanNode(t, r), startBanNode(t, r), startBanNode(t, r)
	a.Begin(oneKey, clock.Now(), aBan)
	a.Begin(twoKey, clock.Now(), aBan)
	a.send()
	b.read(oneKey, twoKey)
	now := clock.Now()
	set := &reset.Set{Keys: map[ban.ID]reset.Reset{oneKey: {Stamp: now / 1000, At: now, Until: now + int64(time.Hour)}}}
	a.Reset(now, set)
	a.read(oneKey, twoKey)
	c.read(oneKey, twoKey)
	c.left(oneKey, 0)
	c.left(twoKey, aBan)
	a.Begin(oneKey, clock.Now(), 2*aBan)
	a.send()
	b.Resend()
	b.send() // of the one before the reset
	c.read(oneKey)
	c.left(oneKey, 2*aBan)
	later := clock.Now()
	c.Reset(later, &reset.Set{All: reset.Reset{Stamp: later / 1000, At: later, Until: later + int64(time.Hour)}})
	c.left(oneKey, 0)
	c.Begin(twoKey, clock.Now(), aBan/2)
	c.send()
	b.Resend()
	b.send()
	third := ban.ID{3}
	for _, length := range []time.Duration{aBan, aBan / 2} {
		d := startBanNode(t, r)
		d.Begin(third, clock.Now(), length) // it has heard of no other one
		d.send()
	}
	d := startBanNode(t, r)
	d.read(twoKey, third)
	d.left(twoKey, aBan/2)
	d.left(third, aBan)
}
