package control

import (
	"context"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/reset"
)

const (
	// resetPrefix begins the names of resets. They go on as those of overrides do, without a key
	// for a reset of all keys. They have a budget of MaxEntries of their own.
	resetPrefix = "reset:"
	// resetBody is what a reset says: nothing that its name doesn't.
	resetBody = "{}"
)

// resetName is the name of the target's reset.
func (t Target) resetName() string { return resetPrefix + t.redisID() + ":" + t.Zone }

// parseReset reads an entry that is a reset.
func parseReset(e Entry) (t Target, r reset.Reset, ok bool) {
	t, ok = parseKeyed(e.ID, resetPrefix)
	// It was made in the millisecond in which its length began. A stamp may be ahead of that.
	made := (e.Until-e.Length)*1000 + 999
	r.Stamp, r.At = e.Stamp, min(e.Stamp, made)*int64(time.Microsecond)
	r.Until = e.Until * int64(time.Millisecond)
	return t, r, ok
}

// resetsOf collects the resets that are active, by zone.
func (c *Control) resetsOf(now int64) map[string]*reset.Set {
	zones := make(map[string]*reset.Set)
	for e := range c.record.Active(now) {
		t, r, ok := parseReset(e)
		if !ok {
			continue
		}
		set := zones[t.Zone]
		if set == nil {
			set = &reset.Set{Keys: make(map[[16]byte]reset.Reset)}
			zones[t.Zone] = set
		}
		if t.Key == nil {
			set.All = r
		} else {
			set.Keys[*t.Key] = r
		}
	}
	for zone, set := range zones {
		zones[zone] = set.With(nil, 0) // without what a reset of all replaces
	}
	return zones
}

// forgiven is what this node has forgiven by the latest resets of a zone.
type forgiven struct {
	set      *reset.Set
	requests int64
}

// A Forgiver is the counters of a limit, which apply resets.
type Forgiver interface {
	// Reset applies those that it has not applied yet, and returns how many requests that forgives.
	// set is nil for none.
	Reset(now int64, set *reset.Set) (forgiven int64)
}

// Follow has counters apply the resets of a zone, those that are active before it returns, until
// Unfollow.
func (c *Control) Follow(zone string, f Forgiver) {
	c.resetting.Lock()
	defer c.resetting.Unlock()
	if c.forgivers[zone] == nil {
		c.forgivers[zone] = make(map[Forgiver]struct{})
	}
	c.forgivers[zone][f] = struct{}{}
	f.Reset(c.Now(), c.activeResets()[zone])
}

// Unfollow ends what Follow began.
func (c *Control) Unfollow(zone string, f Forgiver) {
	c.resetting.Lock()
	defer c.resetting.Unlock()
	if delete(c.forgivers[zone], f); len(c.forgivers[zone]) == 0 {
		delete(c.forgivers, zone)
	}
}

// activeResets are those of all zones.
func (c *Control) activeResets() map[string]*reset.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resets
}

// forgive has a zone apply its resets, and returns how many requests of the limit that forgives
// most are forgiven.
func (c *Control) forgive(zone string, set *reset.Set) (requests int64) {
	for f := range c.forgivers[zone] {
		requests = max(requests, f.Reset(c.Now(), set))
	}
	return requests
}

// IsEqual reports whether the record is the same here and in Redis.
func (c *Control) IsEqual() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.read
}

// applyResets has the zones apply the resets that are active. When it returns they have: so the
// next heartbeat may say that this node has applied them.
func (c *Control) applyResets() {
	c.resetting.Lock()
	defer c.resetting.Unlock()
	zones := c.activeResets()
	for zone, set := range zones {
		switch was := c.forgiven[zone]; {
		case set == was.set:
		case set.IsNewer(was.set):
			c.forgiven[zone] = forgiven{set, c.forgive(zone, set)}
		default: // some have ended
			c.forgiven[zone] = forgiven{set, was.requests}
		}
	}
	maps.DeleteFunc(c.forgiven, func(zone string, _ forgiven) bool {
		gone := zones[zone] == nil
		if gone {
			c.forgive(zone, nil)
		}
		return gone
	})
}

// Reset forgives what a key has spent, or all keys of a zone have, here and at once, tells Redis,
// and waits until every node has applied it, WaitFor at most. ch has no Body, and is For as long as
// anything is left that the reset says something of. Reset returns how many requests this node has
// forgiven, as far as it knows of them.
func (c *Control) Reset(ctx context.Context, ch Change) (o Outcome, requests int64, err error) {
	began := c.Now()
	// One of all keys replaces the others.
	e, err := c.put(ch.resetName(), ch.For, resetBody, ch.Key != nil)
	if err != nil {
		return Outcome{}, 0, err
	}
	c.applyResets()
	c.resetting.Lock()
	requests = c.forgiven[ch.Zone].requests
	c.resetting.Unlock()
	c.Logger.Info("an operator has reset a rate limit", zap.String("zone", ch.Zone), zap.Bool("all", ch.Key == nil),
		ch.idField(), zap.String("by", ch.Who), zap.Int64("forgiven", requests))
	return c.conclude(ctx, began, e), requests, nil
}
