package limits

import (
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Bans are those of a zone. Like its counters they outlive configurations. They are safe for
// concurrent use.
type Bans struct {
	// Key is that in the pool.
	Key string
	// Set are the bans that hold, on all nodes. Shadow are those that would, of keys that the zone
	// is not enforced for, on this node.
	Set, Shadow ban.Register

	namespace, zone string

	mu      sync.Mutex // makes Configure and Destruct take turns
	at      banAttachment
	unshare func() // nil where they are not shared
	follows *control.Control
}

// AcquireBans returns the bans of a zone: those that a configuration already holds, or none yet.
func AcquireBans(namespace string, z *config.Settings) *Bans {
	key := strconv.Quote(namespace) + " " + strconv.Quote(z.Name) + " ban"
	v, _, _ := counterPool.LoadOrNew(key, func() (caddy.Destructor, error) {
		b := &Bans{Key: key, namespace: namespace, zone: z.Name}
		b.configure(z)
		return b, nil
	})
	return v.(*Bans)
}

// Release gives the bans up.
func (b *Bans) Release() { _, _ = counterPool.Delete(b.Key) }

// EachBans calls f with the bans of each zone that has some.
func EachBans(f func(*Bans)) { each(counterPool, f) }

// Zone is the name of the zone.
func (b *Bans) Zone() string { return b.zone }

// Count is how many keys are banned, as far as this node knows.
func (b *Bans) Count() int64 { return int64(b.Set.Count(clock.Now())) }

// UntilOf is when the ban of a key ends, nil where it is not banned.
func (b *Bans) UntilOf(id ban.ID) *time.Time {
	now := clock.Now()
	rest := time.Duration(0)
	if b != nil {
		rest = b.Set.Rest(id, now)
	}
	if rest == 0 {
		return nil
	}
	until := time.Unix(0, now).Add(rest).UTC()
	return &until
}

func (b *Bans) configure(z *config.Settings) {
	b.Set.Configure(z.MaxKeys, z.Ban.Growing)
	b.Shadow.Configure(z.MaxKeys, z.Ban.Growing)
}

// Configure applies a configuration that has become the current one. The bans are swept, and go to
// other nodes, along with the counts of one of the zone's limits.
func (b *Bans) Configure(first *Limit, redis *Redis) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.configure(first.Settings)
	if redis != nil {
		b.Set.SetClock(redis.Replicator.Ahead())
	}
	b.follow(ControlOf(redis, b.namespace))
	if !first.IsSynced(redis) {
		redis = nil
	}
	b.attach(banAttachment{first.Counters, redis, first.Settings.SyncRate == config.Strict})
}

// follow has resets end bans.
func (b *Bans) follow(record *control.Control) {
	if b.follows == record {
		return
	}
	if b.follows != nil {
		b.follows.Unfollow(b.zone, &b.Set)
		b.follows.Unfollow(b.zone, &b.Shadow)
		b.Set.Reset(clock.Now(), nil)
		b.Shadow.Reset(clock.Now(), nil)
	}
	if b.follows = record; record != nil {
		record.Follow(b.zone, &b.Set)
		record.Follow(b.zone, &b.Shadow)
	}
}

// banAttachment is what bans go along with.
type banAttachment struct {
	first  *Counters // sweeps them, and sends them
	redis  *Redis    // nil where they are not shared
	strict bool      // Redis decides for the zone
}

func (b *Bans) attach(at banAttachment) {
	if at == b.at {
		return
	}
	if b.at.first != nil {
		b.at.first.bans.CompareAndSwap(b, nil)
	}
	if b.unshare != nil {
		b.unshare()
		b.unshare = nil
	}
	if b.at = at; at.first == nil {
		return
	}
	at.first.bans.Store(b)
	if at.redis != nil {
		b.unshare = at.redis.ShareBans(&b.Set, at.first.Syncer, b.zone, at.strict)
	}
}

// Save returns what outlives the process, and Resume takes it in. It returns how many of the keys
// are banned. A ban is kept as a Report: LevelAt is when it began, and Rate how long it lasts.
func (b *Bans) Save() table.SavedCounts {
	counts := make(table.SavedCounts)
	for id, ban := range b.Set.Save(clock.Now()) {
		counts[id] = []algorithms.Report{{LevelAt: ban.Begun, Rate: int64(ban.Length)}}
	}
	return counts
}

func (b *Bans) Resume(counts table.SavedCounts) int {
	all := make(map[ban.ID]ban.Ban, len(counts))
	for id, reports := range counts {
		if len(reports) == 1 {
			all[id] = ban.Ban{Begun: reports[0].LevelAt, Length: time.Duration(reports[0].Rate)}
		}
	}
	return b.Set.Resume(clock.Now(), all)
}

// sweep drops the bans that are over.
func (b *Bans) sweep(now int64) {
	b.Set.Sweep(now)
	b.Shadow.Sweep(now)
}

// Destruct ends all that Configure began.
func (b *Bans) Destruct() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.follow(nil)
	b.attach(banAttachment{})
	return nil
}

// A Banning is how a zone of one configuration bans keys.
type Banning struct {
	*Bans
	Length time.Duration
	// Denials count denied requests before a ban, nil where the first one begins it.
	Denials *Limit
	// dry is set in a DryRun, where no ban begins.
	dry bool
}

// NewBanning acquires the bans of a zone, which ReleaseAll gives up; nil where it has none.
func NewBanning(namespace string, z *config.Settings) *Banning {
	if z.Ban.For == 0 {
		return nil
	}
	b := &Banning{Bans: AcquireBans(namespace, z), Length: z.Ban.For}
	if z.Ban.After.Window != 0 {
		d := z.DenialsOf(strictInterval)
		b.Denials = &Limit{Counters: AcquireCounters(namespace, d, z.Ban.After), Settings: d, Rate: z.Ban.After}
		b.Denials.Effective = b.Denials.Params().Compile()
	}
	return b
}

// ReleaseAll gives the bans up, and what counts denied requests.
func (b *Banning) ReleaseAll() {
	if b == nil {
		return
	}
	b.Release()
	if b.Denials != nil {
		b.Denials.Release()
	}
}

// Deny counts a denied request of a key at now, and returns how long a ban lasts that begins with
// it, 0 where none does. In shadow mode it is only noted.
func (b *Banning) Deny(id ban.ID, key keys.Key, raw []byte, now int64, shadow bool) time.Duration {
	if b.Denials != nil && !b.Denials.Add(key, raw, now) {
		return 0
	}
	register := &b.Set
	if shadow {
		register = &b.Shadow
	}
	if b.dry {
		return register.WouldBegin(id, now, b.Length)
	}
	return register.Begin(id, now, b.Length)
}

// Add counts a denied request of a key at now, and reports whether there were as many in the window
// as begin a ban, as far as that is known for certain. A key for which there is no room is not
// counted.
func (l *Limit) Add(key keys.Key, raw []byte, now int64) bool {
	if _, ok := l.Table.Room(l.Effective, key, raw, now); !ok {
		return false
	}
	t := l.Take(key, raw, now, 1, 0)
	return !t.Overflow && (!t.Allowed || t.Remaining == 0)
}

// Bans returns the bans of the zone, nil where it has none.
func (z *Zone) Bans() *Bans {
	if z.Banning == nil {
		return nil
	}
	return z.Banning.Bans
}

// ConfigureBans applies a configuration that has become the current one, with its Redis.
func (z *Zone) ConfigureBans(redis *Redis) {
	if z.Banning != nil {
		z.Banning.Configure(&z.AllLimits[0], redis)
	}
}
