package limits

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Dry runs, to ask what would be decided for a request, or for the next one of a key. Evaluate
// takes them as it takes zones. What it takes comes off copies of the counters of one key, Redis is
// only read, and nothing is counted, logged or sent.

// A Key names what a zone counts.
type Key struct {
	// Raw is the bytes of the key, nothing where there is none. Hash names it to the counters of
	// this process, and ID to other nodes.
	Raw  []byte
	Hash keys.Key
	ID   keys.ID
	// ByID is set where the ID is all that is known. Then Raw is some other key, and Hash is what
	// DryRun finds.
	ByID bool
}

// KeyOf returns the Key of these bytes.
func KeyOf(raw []byte) Key { return Key{Raw: raw, Hash: keys.KeyOf(raw), ID: keys.IDOf(raw)} }

// KeyOfID returns the Key of which only the ID is known.
func KeyOfID(id keys.ID) Key { return Key{Raw: id[:], ID: id, ByID: true} }

// KeyOf makes the key of a request. none is set where there is none.
func (z *Zone) KeyOf(r *http.Request) (k Key, none bool) {
	raw, _, none := z.AppendKey(nil, r, reqkey.Vars(r))
	return KeyOf(raw), none
}

// A Dry is what a dry run has beside its zone.
type Dry struct {
	Key
	// Answered is set where Redis has said what all nodes have spent. Lost is why it has not, where
	// it had to be asked.
	Answered bool
	Lost     error
	// Stands are how the limits that it has asked stood before.
	Stands []Usage
}

// A Usage is how a limit stands for a key, before the next request.
type Usage struct {
	// Used of Size is spent, as this node knows: what can still be taken is what is left of that.
	// Used is more than Size where responses have cost more than was left, or the limit was higher.
	Used, Size int64
	// Remote is the part of Used that other nodes counted, as far as this node knows them apart.
	Remote int64
	// Regions is set where other regions have counted some of Remote.
	Regions bool
}

// DryRun returns a zone that decides for one key as z does, and changes nothing. ok is false where
// the key is only known by its ID, and this node has nothing of it. It is not released.
func (z *Zone) DryRun(k Key) (d *Zone, ok bool) {
	now := clock.Now()
	if k.ByID {
		if k.Hash, ok = z.find(k.ID, now); !ok {
			return nil, false
		}
	}
	d = &Zone{
		ZoneOptions: z.ZoneOptions, Template: z.Template, Slots: z.Slots, Want: z.Want, Reserving: z.Reserving, QueuesLast: z.QueuesLast,
		AtRuntime: z.AtRuntime, Varies: z.Varies, cost: z.cost, responseCost: z.responseCost, salt: z.salt, Dry: &Dry{Key: k},
	}
	d.Logger, d.Once, d.LogKeys = zap.NewNop(), new(warning.Once), false
	d.Denials = answer.NewDenialLog(answer.DenialLogOptions{Logger: d.Logger})
	for l := range z.Each {
		d.AllLimits = append(d.AllLimits, l.dry(k, now))
	}
	if b := z.Banning; b != nil {
		d.Banning = &Banning{Bans: b.Bans, Length: b.Length, dry: true}
		if b.Denials != nil {
			d.Banning.Denials = new(b.Denials.dry(k, now))
		}
	}
	return d, true
}

// find returns the key of which only the ID is known. One that is banned may have no counter any
// more, and so any key is as good.
func (z *Zone) find(id keys.ID, now int64) (key keys.Key, ok bool) {
	for l := range z.Each {
		if key, ok = l.Table.Find(l.Effective, id, now); ok {
			return key, true
		}
	}
	if key, ok = z.Slots.Find(id); ok {
		return key, true
	}
	return keys.KeyOf(id[:]), z.Banning != nil && z.Banning.Set.Rest(id, now) > 0
}

// dry returns the limit with counters of one key, which are part of no configuration.
func (l *Limit) dry(k Key, now int64) Limit {
	d := *l
	d.Counters, d.Warned = &Counters{Table: l.fork(l.Effective, k, now), Syncer: l.Syncer}, new(atomic.Bool)
	return d
}

// ForKey has a dry run be for the next request of its key, whatever else that is. n is how many
// units it takes, nil for what is taken where that is not known.
func (z *Zone) ForKey(n *int64) {
	z.Template, z.Matchers, z.Except = reqkey.Fixed(z.Dry.Raw), nil, nil
	if n != nil {
		z.cost = &cost{Cost: z.cost.Cost, fixed: *n}
	}
}

// Missing are the placeholders of limits and costs that bring no number with a request.
func (z *Zone) Missing(r *http.Request) (missing []string) {
	vars := reqkey.Vars(r)
	if z.cost != nil {
		for _, n := range z.cost.numbers {
			if n == nil {
				continue
			}
			if _, ok := config.ParseUnits(n.Text(r, vars)); !ok {
				missing = append(missing, "{"+n.Name()+"}")
			}
		}
	}
	for l := range z.Each {
		if l.Number == nil || slices.Contains(missing, l.Rate.From) {
			continue
		}
		if _, _, ok := l.Number.Read(r, vars); !ok {
			missing = append(missing, l.Rate.From)
		}
	}
	return missing
}

// readRedis has the counters of a dry run know what Redis has of its key, except one that would
// find no counter of its own.
func (z *Zone) readRedis(limits []Limit) (answered bool, err error) {
	if z.SyncRate < 0 || z.Redis == nil {
		return false, nil
	}
	ctx, cancel := ratesync.CallContext(context.Background(), z.Redis.Strict.Timeout())
	defer cancel()
	for i := range limits {
		l := &limits[i]
		m, _, ok := l.Table.GrantUpdate(l.Effective, z.Dry.Hash, nil, clock.Now(), 0)
		if !ok {
			continue
		}
		if err := z.unavailable(l); err != nil {
			return false, err
		}
		updates := []table.Update{m}
		answers, server, err := l.Syncer.Look(ctx, updates)
		if err != nil {
			return false, err
		}
		l.Table.Merge(clock.Now(), server, updates, answers)
		answered = true
	}
	return answered, nil
}

// SyncedAgo is how long ago all limits of the zone have heard of other nodes, 0 for never.
func (z *Zone) SyncedAgo() (age time.Duration) {
	for l := range z.Each {
		if s := l.Syncer.Status(); s != nil && !s.Synced.IsZero() {
			age = max(age, time.Since(s.Synced))
		}
	}
	return age
}

// unavailable is why Redis can't be asked, nil if it can.
func (z *Zone) unavailable(l *Limit) error {
	switch {
	case z.IsStrict():
		return z.Redis.Strict.UnavailableFor(z.Dry.ID)
	case ratesync.HasShardOf(l.Syncer.UnavailableShards(), z.Dry.ID):
		return redisconn.ErrDown
	}
	return nil
}

// noteUsage notes how the limits of a request stand before it.
func (d *Dry) noteUsage(limits []Limit, now int64) {
	d.Stands = d.Stands[:0]
	for i := range limits {
		d.Stands = append(d.Stands, limits[i].usage(d.Key, now))
	}
}

func (l *Limit) usage(k Key, now int64) (s Usage) {
	asked := l.Effective
	if s.Size = asked.Size; asked.N == 0 {
		s.Size = 0
	}
	t := l.Table.Take(asked, k.Hash, k.Raw, now, 0, 0)
	if s.Used = max(0, s.Size-t.Remaining); t.Remaining == 0 && !t.Overflow {
		// It may be a debt, or a limit that was higher.
		asked.N, asked.Size = max(asked.N, 1), asked.Size+1<<53
		s.Used = max(s.Used, asked.Size-l.Table.Take(asked, k.Hash, k.Raw, now, 0, 0).Remaining)
	}
	remote, regions := l.Table.Remote(l.Effective, k.Hash, now)
	s.Remote = min(s.Used, remote)
	s.Regions = regions && s.Remote > 0
	return s
}
