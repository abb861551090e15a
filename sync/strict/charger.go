package strict

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redisconn"
	"github.com/caddy-tide/ratelimit/internal/reset"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// A Charger has Redis count what a node has decided alone by one rule of a zone: a
// ratesync.Charger.
type Charger struct {
	limiter *Limiter
	rule    Rule
	keys    ratesync.Keys
	family  *family
	script  *redis.Script
}

// Charger returns the Charger of a rule of a zone whose algorithm is charged: a bucket.
func (s *Limiter) Charger(zone string, r Rule) *Charger {
	f := familyOf(r.Kind)
	return &Charger{limiter: s, rule: r, keys: s.keys.Table(r.spec(zone)), family: f, script: f.charge}
}

// Unavailable is why Redis can't be asked, nil if it can.
func (c *Charger) Unavailable(id keys.ID) error {
	if c.limiter.work.HasEnded() {
		return ErrClosed
	}
	return c.limiter.unavailable(id)
}

// CallContext is the context of a call that a request waits for.
func (c *Charger) CallContext(parent context.Context) (context.Context, context.CancelFunc) {
	return c.limiter.callContext(parent)
}

// Failed finds out what the error of a call that a request has waited for says of Redis. It returns
// the error for the request; nil after Close, as the request gets that when it asks Redis itself.
func (c *Charger) Failed(id keys.ID, err error) error {
	if c.limiter.work.HasEnded() {
		return nil
	}
	c.limiter.resultOf(id, err)
	if redisconn.IsLate(err) {
		c.limiter.timeouts.Add(1)
	}
	return err
}

// Charge sends charges in one round trip.
func (c *Charger) Charge(ctx context.Context, node string, charges []ratesync.Charge) []ratesync.Receipt {
	replies := make([]*redis.Cmd, len(charges))
	for _, eval := range []func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd{c.script.EvalSha, c.script.Eval} {
		pipe := c.limiter.client.Pipeline()
		for i, one := range charges {
			if replies[i] == nil || redis.HasErrorPrefix(replies[i].Err(), "NOSCRIPT") {
				replies[i] = eval(ctx, pipe, []string{c.keys.ChargesOf(one.ID), c.keys.Of(one.ID)}, c.args(node, c.ruleOf(one), one)...)
			}
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each reply has its error
		}
	}
	receipts := make([]ratesync.Receipt, len(charges))
	for i, one := range charges {
		r := &receipts[i]
		rule := c.ruleOf(one)
		r.Reports, r.Err = c.read(rule, replies[i], one.Reset)
		r.Unknown = r.Err != nil && c.limiter.isSevere(r.Err) && time.Since(one.Made) < c.lasts(rule)
	}
	return receipts
}

// ruleOf is the rule that a charge goes by: that of the last request that this node has decided,
// and of a size that all that is charged fits into.
func (c *Charger) ruleOf(one ratesync.Charge) Rule {
	r := c.rule
	if one.Rate > 0 {
		r.Limit = one.Rate
	}
	if one.Whole > r.size() {
		r.Burst, r.Queue = one.Whole, one.Whole
	}
	return r
}

// lasts is how long a charge whose outcome is unknown is sent again: as long as Redis remembers it.
// What it charges has drained, or left the window, by then.
func (c *Charger) lasts(r Rule) time.Duration {
	return c.family.chargeTTL(r) - ratesync.SpareTTL/2
}

// args are the arguments of the script of a charge.
func (c *Charger) args(node string, r Rule, one ratesync.Charge) []any {
	parts := c.family.parts(r, one)
	return slices.Concat([]any{node, one.Seq, 0, 0, resetInLua(0, one.Reset), len(parts) / 3}, parts, c.family.args(r))
}

// bucketParts is the level that was left at an instant.
func bucketParts(r Rule, one ratesync.Charge) []any {
	_, unit := inLua(r.Window)
	per := 1000 / unit // nanoseconds
	return []any{one.At / int64(time.Microsecond), one.Whole, (one.Part + per - 1) / per}
}

// read reads what Redis has of a key after a charge.
func (c *Charger) read(r Rule, reply *redis.Cmd, under reset.Reset) ([]algorithms.Report, error) {
	v, err := reply.Result()
	if err != nil || parseOvertaken(v, under) != nil {
		return nil, err // what it charged is forgiven
	}
	all, err := parseOutcomes(v, 1, nil)
	if err != nil {
		return nil, err
	}
	return verdicts([]Rule{r}, all[0], place{cost: 1}, nil)[0].Reports, nil
}
