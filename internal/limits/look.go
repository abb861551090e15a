package limits

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/concurrent"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/settings"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Forks of zones, to ask what would be decided. A fork decides by the same code, on copies of the
// counters of one key; where Redis decides it is only looked at. Nothing of it is counted, logged
// or sent.

// A Key names what a zone counts.
type Key = counters.Key

// Fork returns a zone that decides for one key as z does, and changes nothing: it leaves matchers
// and the making of keys aside. ok is false where the key is only known by its ID, and has no
// counter of its own here. It is not released.
func (z *Zone) Fork(k Key) (f *Zone, ok bool) {
	f = &Zone{
		ZoneOptions: z.ZoneOptions, Template: reqkey.Fixed(k.Raw), want: z.want, reserve: z.reserve,
		rules: z.rules, queuesLast: z.queuesLast, look: &k, Slots: z.Slots, KeyNames: z.KeyNames,
		salt: z.salt, atRuntime: z.atRuntime, varies: z.varies,
		bans: z.bans.ForkAll(k, clock.Now()),
	}
	f.Matchers, f.Except, f.Logger, f.Once, f.Metrics, f.LogKeys = nil, nil, zap.NewNop(), new(warning.Once), false, false
	f.denials = answer.NewDenialLog(answer.DenialLogOptions{Logger: f.Logger})
	if _, ok := z.Slots.Find(k.ID); k.ByID && len(z.limits) == 0 && !ok {
		return nil, false
	}
	now := clock.Now()
	for i := range z.limits {
		l := z.limits[i]
		fork, ok := l.Counters.Fork(l.Enforced, k, now)
		if !ok && z.isBanned(k, now) {
			fork, ok = l.Counters.Fork(l.Enforced, counters.KeyOf(k.Raw), now)
		}
		if !ok {
			return nil, false
		}
		l.Counters = fork
		if l.Warned != nil {
			l.Warned = new(atomic.Bool)
		}
		f.limits = append(f.limits, l)
	}
	return f, true
}

// isBanned reports whether a key is banned. Then it may have no counter of its own any more.
func (z *Zone) isBanned(k Key, now int64) bool {
	return z.bans != nil && z.bans.Set.Rest(k.ID, now) > 0
}

// KeyOf makes the key of a request. none is set where there is none, see DeniesEmpty.
func (z *Zone) KeyOf(r *http.Request) (k Key, none bool) {
	raw, _, none := z.appendKey(nil, r, reqkey.Vars(r))
	return counters.KeyOf(raw), none
}

// Enforces reports whether the zone denies requests of a key, or is in shadow mode for it.
func (z *Zone) Enforces(k Key) bool {
	e := z.Enforcement()
	return e.IsFull() || !e.IsOff() && e.Includes(k.ID, z.salt)
}

// OverrideOf returns what an operator has set for a key at run time, nil for nothing.
func (z *Zone) OverrideOf(k Key) *control.Override {
	if rules := z.atRuntime.Load(); rules != nil {
		return rules.OverrideOf(k.ID)
	}
	return nil
}

// DeniesEmpty reports whether requests without a key are denied, and not skipped.
func (z *Zone) DeniesEmpty() bool { return z.EmptyKey == settings.EmptyDeny }

// Stand returns how a limit of another fork stood, for a fork that was not asked since.
func (z *Zone) Stand(l *Limit, now int64) (s counters.Standing) {
	for own := range z.Each {
		if own.Key == l.Key {
			s = own.Stand(l.Enforced, z.look.Raw, now)
		}
	}
	return s
}

// lookRedis asks what Redis would decide. What this node has decided alone, and not yet charged,
// counts as well: a request would charge it first.
func (e *Evaluation) lookRedis(ctx context.Context, zr *zoneResult, raw []byte) (decided, lost bool) {
	verdicts, _, err := zr.Redis.Strict.Look(ctx, zr.Name, zr.rulesOf(), zr.look.ID)
	if err != nil {
		zr.mergeBan(err)
		return false, true
	}
	zr.strict, zr.grant = true, len(e.grants)
	e.grants = append(e.grants, grant{by: zr.Redis.Strict, came: clock.Now()}) // of nothing
	for i := range verdicts {
		v, l := &verdicts[i], &zr.limits[i]
		l.Table.Import(l.Enforced, zr.hash, raw, clock.Now(), v.Reports)
		if l.HasDebt(zr.hash) {
			v.Decision = l.Take(zr.hash, raw, clock.Now(), 1, counters.WaitsOf(zr.Kind)).Decision
		}
		e.receipts = append(e.receipts, table.Taken{Decision: v.Decision})
		e.results = append(e.results, l.Result(&v.Decision))
	}
	if zr.CountResponses != nil {
		e.noteGrant(zr, verdicts)
	}
	return true, false
}

// An Outcome is what an Evaluation says of one zone.
type Outcome struct {
	// Denied is set where a limit denies, or would in Shadow mode.
	Denied, Shadow bool
	// Reserved is set where it denies only until others get back what they have reserved.
	Reserved bool
	// Limits are those that the request goes by, and Results what they decided.
	Limits  []Limit
	Results []answer.Result
	// ByRedis is set where Redis decided.
	ByRedis bool
	// Key is the bytes of the key, and Hash their table.KeyOf.
	Key  []byte
	Hash table.Key
	// Taken is how what may run at once stands with the request, and SlotResult what was decided.
	Taken      concurrent.Taken
	SlotResult answer.Result
}

// Of returns what was decided in a zone; ok is false where its limits were not asked.
func (e *Evaluation) Of(z *Zone) (o Outcome, ok bool) {
	for i := range e.zones {
		if zr := &e.zones[i]; zr.Zone == z {
			o = Outcome{
				zr.denied, zr.shadow, zr.reserved, zr.limits, e.results[zr.first : zr.first+len(zr.limits)], zr.strict,
				e.keyOf(zr), zr.hash, concurrent.Taken{}, answer.Result{},
			}
			if zr.slot > 0 {
				o.Taken, o.SlotResult = e.slots[zr.slot-1], e.results[zr.first-1]
			}
			return o, true
		}
	}
	return o, false
}

// Delay returns how long an admitted request waits in its queues.
func (e *Evaluation) Delay() (delay time.Duration) {
	for i := range e.receipts {
		if !e.results[i].Shadow {
			delay = max(delay, e.receipts[i].Delay)
		}
	}
	return delay
}
