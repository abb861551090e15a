// no clock: Redis goes by the time that each test sets.

package strict

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// virtual is a Limiter whose Redis reads the time from a list that the test sets. Keys, which end
// by the wall clock, live a thousand times as long. All else in the scripts is as it is.
type virtual struct {
	*Limiter
	t      testing.TB
	client redis.UniversalClient
	now    int64 // microseconds
}

func newVirtual(t testing.TB) *virtual { return newVirtualOn(t, redistest.Start(t)) }

func newVirtualOn(t testing.TB, server *redistest.Server) *virtual {
	v := &virtual{Limiter: limiter(t, server.URL), t: t, client: server.Client()}
	v.set(1_800_000_000_123_456)
	return v
}

func (v *virtual) set(now int64) {
	v.t.Helper()
	v.now = now
	ctx := context.Background()
	_, err := v.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, "clock")
		p.RPush(ctx, "clock", now/1_000_000, now%1_000_000)
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
}

// use makes a zone's rules go by the virtual time.
func (v *virtual) use(zone string, rules ...Rule) {
	v.t.Helper()
	rs, err := v.ruleset(zone, rules)
	if err != nil {
		v.t.Fatal(err)
	}
	lua := bucketLua
	head := strings.Replace(headLua, "redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)", 1)
	if head == headLua {
		v.t.Fatal("head.lua has no redis.call('TIME')")
	}
	longer := strings.NewReplacer("'PEXPIRE'", "'EXPIRE'", "'PX'", "'EX'")
	rs.script = redis.NewScript(longer.Replace(head + lua + tailLua))
}

// settled returns when what was refunded has arrived.
func (v *virtual) settled(zone string) {
	rs := v.zones[zone][0]
	redistest.Eventually(v.t, "nothing is under way", func() bool {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		return len(rs.queues) == 0
	})
}

// model is an algorithm with its state.
type model interface {
	takeSome(now, n int64) algorithms.Decision
	refund(taken, n int64)
	take(now int64) algorithms.Decision
	giveBack(taken int64)
	charge(now int64)
	waits(now int64) algorithms.Waits
}

type modelOf[S any] struct {
	algorithms.Machine[S]
	limit algorithms.Limit
	state S
}

func (m *modelOf[S]) take(now int64) algorithms.Decision { return m.takeSome(now, 1) }

func (m *modelOf[S]) takeSome(now, n int64) (d algorithms.Decision) {
	want := allWaits
	if d.Result = m.Take(&m.state, m.limit, now, n, 0); !d.Allowed {
		want |= algorithms.WantRetry
	}
	d.Waits = m.Waits(&m.state, m.limit, now, n, 0, want)
	return d
}

func (m *modelOf[S]) refund(taken, n int64) { m.Refund(&m.state, m.limit, taken, n) }
func (m *modelOf[S]) giveBack(taken int64)  { m.refund(taken, 1) }
func (m *modelOf[S]) charge(now int64)      { m.Penalize(&m.state, m.limit, now, 1) }

func modelFor(r Rule) model {
	switch k := r.Kind; {
	case k.Traits().Windowed:
		return newModel[algorithms.WindowState](r)
	case k.Traits().Draining:
		return newModel[algorithms.BucketState](r)
	}
	return newModel[algorithms.LogState](r)
}

func newModel[S any](r Rule) model {
	p := algorithms.Params(r)
	return &modelOf[S]{Machine: algorithms.MachineOf[S](p.Kind), limit: p.Compile()}
}

// near compares waits: a script has microseconds, an algorithm nanoseconds.
func near(got, want time.Duration) bool {
	return got-want > -time.Microsecond && got-want <= 2*time.Microsecond || got == want
}

func same(got, want algorithms.Decision) bool {
	return got.Allowed == want.Allowed && got.Remaining == want.Remaining && near(got.Retry, want.Retry) &&
		near(got.Next, want.Next) && near(got.Reset, want.Reset) && near(got.Delay, want.Delay)
}

// chargedRules are those that buckets go by, of which nodes charge what they decide alone.
var chargedRules = []Rule{
	{Kind: algorithms.TokenBucket, Limit: 10, Window: time.Minute},
	{Kind: algorithms.TokenBucket, Limit: 7, Window: time.Second, Burst: 20},
	{Kind: algorithms.TokenBucket, Limit: 3, Window: 777777777, Burst: 5},
	{Kind: algorithms.GCRA, Limit: 100, Window: time.Hour, Burst: 3},
	{Kind: algorithms.LeakyBucket, Limit: 10, Window: time.Second, Queue: 5},
	{Kind: algorithms.LeakyBucket, Limit: 3, Window: time.Minute, Queue: 0},
}

// TestDecidesAsTheAlgorithms runs random histories in Redis and in the algorithms package.
func TestDecidesAsTheAlgorithms(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range append([]Rule{}, chargedRules...) {
		t.Run(fmt.Sprintf("%d %c %d in %s", i, rule.Kind.Traits().Code, rule.Limit, rule.Window), func(t *testing.T) {
			v.t = t
			live(t, v, rule, rand.New(rand.NewPCG(uint64(i), 1)))
		})
	}
}

func live(t *testing.T, v *virtual, rule Rule, random *rand.Rand) {
	zone := fmt.Sprint("z", rule)
	v.use(zone, rule)
	m := modelFor(rule)
	pace := int64(rule.Window/time.Microsecond) / max(1, rule.Limit)
	var history []string
	for step := range 300 {
		switch random.IntN(12) {
		case 0:
			v.set(v.now + random.Int64N(3*pace*max(1, rule.Limit)))
		case 1: // the same instant
		default:
			v.set(v.now + random.Int64N(2*pace))
		}
		now := v.now * 1000
		want := m.take(now)
		g, all := take(t, v.Limiter, zone, id(1), rule)
		got := all[0].Decision
		history = append(history, fmt.Sprintf("%d %t", now, want.Allowed))
		if !same(got, want) || g.Admitted() != want.Allowed {
			t.Fatalf("step %d at %d:\n got %+v\nwant %+v\nafter %v", step, now, got, want, history[max(0, len(history)-25):])
		}
		switch dice := random.IntN(10); {
		case dice == 0 && want.Allowed:
			m.giveBack(now)
			v.Refund(g, nil)
			v.settled(zone)
		case dice == 1 && !want.Allowed:
			m.charge(now)
			v.Penalize(g)
			v.settled(zone)
		}
	}
}

// TestRetryAfterFromBothSides: whoever waits for Retry is admitted, a microsecond earlier not.
func TestRetryAfterFromBothSides(t *testing.T) {
	v := newVirtual(t)
	random := rand.New(rand.NewPCG(1, 2))
	for name, rule := range kinds {
		for round := range 20 {
			zone := fmt.Sprint(name, round)
			rule.Window = time.Duration(random.Int64N(int64(time.Hour))) + 100*time.Millisecond
			rule.Limit = random.Int64N(20) + 1
			rule.Burst, rule.Queue = random.Int64N(20), random.Int64N(5)
			v.use(zone, rule)
			v.set(v.now + random.Int64N(1e9))
			for range 3 {
				var d algorithms.Decision
				for {
					_, all := take(t, v.Limiter, zone, id(1), rule)
					if d = all[0].Decision; !d.Allowed {
						break
					}
					v.set(v.now + random.Int64N(100))
				}
				wait := int64((d.Retry + time.Microsecond - 1) / time.Microsecond)
				start := v.now
				v.set(start + wait - 2)
				if _, all := take(t, v.Limiter, zone, id(1), rule); all[0].Decision.Allowed {
					t.Fatalf("%s %+v: admitted 2 µs before the %s that Retry was", name, rule, d.Retry)
				}
				v.set(start + wait)
				if _, all := take(t, v.Limiter, zone, id(1), rule); !all[0].Decision.Allowed {
					t.Fatalf("%s %+v: denied after the %s that Retry was: %+v", name, rule, d.Retry, all[0].Decision)
				}
			}
		}
	}
}

// TestClockOfRedisStepsBack: after a failover to a server whose clock is behind, nobody waits for
// longer than a window.
func TestClockOfRedisStepsBack(t *testing.T) {
	v := newVirtual(t)
	for name, rule := range kinds {
		rule.Window = time.Minute
		v.use(name, rule)
		drain(t, v.Limiter, name, id(1), rule)
		v.set(v.now - int64(time.Hour/time.Microsecond))
		for range 200 {
			take(t, v.Limiter, name, id(1), rule)
		}
		// A full window, and a two-counter window forgets in two.
		v.set(v.now + int64(2*time.Minute/time.Microsecond))
		if g, all := take(t, v.Limiter, name, id(1), rule); !g.Admitted() {
			t.Errorf("%s: %+v two minutes after the clock stepped back", name, all[0].Decision)
		}
	}
}

// TestExactDivision holds the script's division against Go's with numbers a double can't multiply.
func TestExactDivision(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client()
	start := strings.Index(headLua, "local function muldiv")
	end := strings.Index(headLua, "local clock")
	script := redis.NewScript("local exact = 9007199254740992\n" + headLua[start:end] +
		"local q, r = muldiv(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))\nreturn {string.format('%.0f', q), string.format('%.0f', r)}")
	random := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		c0 := random.Int64N(1<<(3+random.IntN(47))) + 1 // windows below 2^50 microseconds: 35 years
		b := random.Int64N(c0 + 1)
		a := random.Int64N(1 << (1 + random.IntN(53)))
		got, err := script.Run(context.Background(), c, []string{"k"}, a, b, c0).StringSlice()
		if err != nil {
			t.Fatal(err)
		}
		q, r := mulDivRef(a, b, c0)
		if got[0] != fmt.Sprint(q) || got[1] != fmt.Sprint(r) {
			t.Fatalf("muldiv(%d, %d, %d) = %v, want %d rest %d", a, b, c0, got, q, r)
		}
	}
}

func mulDivRef(a, b, c int64) (q, r uint64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return bits.Div64(hi, lo, uint64(c))
}
