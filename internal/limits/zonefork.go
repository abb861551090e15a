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
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// Forks of zones, to ask what would be decided. A fork decides by the same code, on copies of the
// counters of one key; where Redis decides it is only looked at. Nothing of it is counted, logged
// or sent.

// Fork returns a zone that decides for one key as z does, and changes nothing: it leaves matchers
// and the making of keys aside. ok is false where the key is only known by its ID, and has no
// counter of its own here. It is not released.
func (z *Zone) Fork(k Key) (f *Zone, ok bool) {
	f = &Zone{
		ZoneOptions: z.ZoneOptions, Template: reqkey.Fixed(k.Raw), Want: z.Want, Reserving: z.Reserving,
		QueuesLast: z.QueuesLast, Forked: &k, Slots: z.Slots, KeyNames: z.KeyNames,
		salt: z.salt, AtRuntime: z.AtRuntime, Varies: z.Varies, cost: z.cost,
		Banning: z.Banning.ForkAll(k, clock.Now()),
	}
	f.Matchers, f.Except, f.Logger, f.Once, f.Metrics, f.LogKeys = nil, nil, zap.NewNop(), new(warning.Once), false, false
	f.Denials = answer.NewDenialLog(answer.DenialLogOptions{Logger: f.Logger})
	if _, ok := z.Slots.Find(k.ID); k.ByID && len(z.AllLimits) == 0 && !ok {
		return nil, false
	}
	now := clock.Now()
	for i := range z.AllLimits {
		l := z.AllLimits[i]
		fork, ok := l.Counters.Fork(l.Enforced, k, now)
		if !ok && z.isBanned(k, now) {
			fork, ok = l.Counters.Fork(l.Enforced, KeyOf(k.Raw), now)
		}
		if !ok {
			return nil, false
		}
		l.Counters = fork
		if l.Warned != nil {
			l.Warned = new(atomic.Bool)
		}
		f.AllLimits = append(f.AllLimits, l)
	}
	f.addGates()
	return f, true
}

// Learn has two forks of a key know what Redis has of it, in a zone that syncs at an interval. An
// error says why they know no more than this node, and age is how old that is: 0 where it is not
// known.
func (z *Zone) Learn(same *Zone) (asked bool, age time.Duration, err error) {
	if z.Redis == nil || z.SyncRate <= 0 {
		return false, 0, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), z.Redis.Strict.Timeout())
	defer cancel()
	for i := range z.AllLimits {
		l := &z.AllLimits[i]
		if why := l.learn(ctx, &same.AllLimits[i], z.Forked.Raw); why != nil {
			err = why
			if s := l.Source.Status(); s != nil && !s.Synced.IsZero() {
				age = max(age, time.Since(s.Synced))
			}
		}
	}
	return err == nil && len(z.AllLimits) > 0, age, err
}

// ReadNumbers has a fork decide by the numbers that a request brings now: the matchers of the next
// zone may replace what they are read from. missing are the placeholders that bring none.
func (z *Zone) ReadNumbers(r *http.Request) (missing []string) {
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
	z.cost = z.cost.at(r)
	for l := range z.Each {
		if l.Number == nil {
			continue
		}
		if _, _, ok := l.Number.Read(r, vars); !ok && !slices.Contains(missing, l.Rate.From) {
			missing = append(missing, l.Rate.From)
		}
		l.Number = l.Number.Of(r, vars)
	}
	return missing
}

// SetCost has a fork decide for a request that takes n units.
func (z *Zone) SetCost(n int64) { z.cost = &cost{Cost: z.cost.Cost, fixed: n} }

// isBanned reports whether a key is banned. Then it may have no counter of its own any more.
func (z *Zone) isBanned(k Key, now int64) bool {
	return z.Banning != nil && z.Banning.Set.Rest(k.ID, now) > 0
}

// KeyOf makes the key of a request. none is set where there is none, see DeniesEmpty.
func (z *Zone) KeyOf(r *http.Request) (k Key, none bool) {
	raw, _, none := z.AppendKey(nil, r, reqkey.Vars(r))
	return KeyOf(raw), none
}

// Enforces reports whether the zone denies requests of a key, or is in shadow mode for it.
func (z *Zone) Enforces(k Key) bool {
	e := z.Enforcement()
	return e.IsFull() || !e.IsOff() && e.Includes(k.ID, z.salt)
}

// OverrideOf returns what an operator has set for a key at run time, nil for nothing.
func (z *Zone) OverrideOf(k Key) *control.Override {
	if rules := z.AtRuntime.Load(); rules != nil {
		return rules.OverrideOf(k.ID, k.Raw)
	}
	return nil
}

// DeniesEmpty reports whether requests without a key are denied, and not skipped.
func (z *Zone) DeniesEmpty() bool { return z.EmptyKey == config.EmptyDeny }

// Stand returns how a limit of another fork stood, for a fork that was not asked since.
func (z *Zone) Stand(l *Limit, now int64) (s Standing) {
	for own := range z.Each {
		if own.Key == l.Key {
			s = own.Stand(l.Enforced, z.Forked.Raw, now)
		}
	}
	return s
}
