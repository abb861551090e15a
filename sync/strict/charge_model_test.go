package strict

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// An isolated is a node with a strict zone of one limit, in virtual time, that reaches Redis now
// and then.
type isolated interface {
	// alone decides without Redis, and after denial charges a penalty if it is to.
	alone(penalty bool) algorithms.Decision
	// returns refunds what alone admitted last.
	returns()
	// imports is what the node does with a verdict.
	imports(v Verdict)
	chargeable
	end()
}

// A chargeable sends what was decided alone: for a request, or in a sync cycle.
type chargeable interface {
	chargeNow() error
	cycle() error
	// attempt sends what is to be charged. The reply is lost, or the message is.
	attempt(arrives bool)
	unsent() int64
}

type isolatedOf[S any] struct {
	v      *virtual
	table  *table.Table[S]
	alg    algorithms.Params
	source *ratesync.Source
	rep    *ratesync.Replicator
	charge *lossy
	clock  atomic.Int64 // v.now in nanoseconds, for the loops
	taken  table.Taken
}

// lossy is a Charger whose calls may be lost on the way there or back. Nothing follows from that.
// It loses what the loop sends when the test doesn't wait for it: then the test may be setting the
// clock of Redis, which is no more ahead of the node's in reality than the node knows.
type lossy struct {
	*Charger
	mu             sync.Mutex
	open           bool // the test waits
	loses, arrives bool
}

// during has calls arrive, or be lost, while f runs.
func (l *lossy) during(loses, arrives bool, f func()) {
	set := func(open, loses, arrives bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open, l.loses, l.arrives = open, loses, arrives
	}
	set(true, loses, arrives)
	defer set(false, false, false)
	f()
}

var errLost = errors.New("lost")

func (l *lossy) Charge(ctx context.Context, node string, charges []ratesync.Charge) (receipts []ratesync.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open && (!l.loses || l.arrives) {
		receipts = l.Charger.Charge(ctx, node, charges)
	}
	if l.open && !l.loses {
		return receipts
	}
	for _, r := range receipts {
		if r.Err != nil {
			panic(r.Err)
		}
	}
	receipts = make([]ratesync.Receipt, len(charges))
	for i := range receipts {
		receipts[i] = ratesync.Receipt{Err: errLost, Unknown: true}
	}
	return receipts
}

func (l *lossy) Failed(_ keys.ID, err error) error { return err }

// silent is a Redis that no heartbeat reaches: its clock is not the virtual one.
type silent struct{ redis.UniversalClient }

func (silent) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	return redis.NewCmdResult(nil, errLost)
}

var isolatedKey = []byte("client")

// newIsolated makes a node for a rule of a virtual Redis, and the ID of its one key.
func newIsolated(v *virtual, zone string, rule Rule) (isolated, [16]byte) {
	return isolatedFor[algorithms.BucketState](v, zone, rule)
}

func isolatedFor[S any](v *virtual, zone string, rule Rule) (isolated, [16]byte) {
	alg := algorithms.Params(rule)
	x := &isolatedOf[S]{v: v, alg: alg, table: tableOf[S](alg, 100)}
	x.source = ratesync.NewSource(x.table, rule.spec(zone))
	x.table.Configure(table.SyncConfig{Params: alg, Rate: time.Second, Charges: true}, 100)
	x.rep = ratesync.NewReplicator(silent{v.client}, "test", 10*time.Second, x.clock.Load, zap.NewNop())
	x.charge = &lossy{Charger: v.Charger(zone, rule)}
	head := strings.Replace(headLua, "redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)", 1)
	x.charge.script = redis.NewScript(head + bucketLua + chargeBucketLua + chargeTailLua)
	x.now()
	if err := x.cycle(); err != nil {
		v.t.Fatal(err)
	}
	return x, keys.IDOf(isolatedKey)
}

func (x *isolatedOf[S]) now() int64 {
	x.clock.Store(x.v.now * 1000)
	return x.v.now * 1000
}

func (x *isolatedOf[S]) end() {
	x.source.Detach()
	x.rep.Close()
}

func (x *isolatedOf[S]) alone(penalty bool) algorithms.Decision {
	taken := x.table.Take(x.alg.Compile(), keys.KeyOf(isolatedKey), isolatedKey, x.now(), 1, 0)
	if taken.Allowed {
		x.taken = taken
	} else if penalty {
		x.table.Penalize(x.alg.Compile(), keys.KeyOf(isolatedKey), taken, 1)
	}
	return taken.Decision
}

func (x *isolatedOf[S]) returns() {
	x.table.Refund(x.alg.Compile(), keys.KeyOf(isolatedKey), x.taken, 1)
}

func (x *isolatedOf[S]) imports(v Verdict) {
	x.table.Import(x.alg.Compile(), keys.KeyOf(isolatedKey), isolatedKey, x.now(), 0, v.Reports)
}

func (x *isolatedOf[S]) chargeNow() (err error) {
	x.charge.during(false, false, func() { err = x.send() })
	return err
}

func (x *isolatedOf[S]) attempt(arrives bool) {
	x.charge.during(true, arrives, func() { _ = x.send() })
}

func (x *isolatedOf[S]) send() error {
	x.now()
	return x.source.ChargeNow(context.Background(), keys.KeyOf(isolatedKey))
}

// cycle has the loop make one sync, an hour early. The loop may make another one later: it is woken
// once more where it finds by itself, between the attachment's two steps, that all is due.
func (x *isolatedOf[S]) cycle() error {
	x.now()
	before := int64(0)
	if s := x.source.Status(); s != nil {
		before = s.Cycles
	}
	synced := false
	x.charge.during(false, false, func() {
		x.rep.AttachCharged(x.source, time.Hour, x.charge)
		synced = redistest.Poll(10*time.Second, func() bool { return x.source.Status().Cycles > before })
	})
	if !synced {
		return errors.New("the table is not synced")
	}
	return nil
}

func (x *isolatedOf[S]) unsent() int64 {
	_, requests, _ := x.table.Unsent(x.now())
	return requests
}

// TestWhatANodeDecidesAloneIsCharged: a single node that can ask Redis only now and then admits
// what one algorithm admits that knows of every decision. Whatever it decides alone counts in
// Redis' next decision, as of when it was decided: though replies are lost, units are refunded
// that were sent, and penalties charged.
func TestWhatANodeDecidesAloneIsCharged(t *testing.T) {
	v := newVirtual(t)
	for i, rule := range chargedRules {
		t.Run(fmt.Sprintf("%d %c %d in %s", i, rule.Kind.Traits().Code, rule.Limit, rule.Window), func(t *testing.T) {
			v.t = t
			for seed := range redistest.Seeds(4, 50) {
				lonely(t, v, rule, seed)
			}
		})
	}
}

// A lonelyRun is a node that decides, alone while Redis is away, and the model of one that is never
// away.
type lonelyRun struct {
	t       *testing.T
	v       *virtual
	zone    string
	id      keys.ID
	rule    Rule
	random  *rand.Rand
	node    isolated
	model   model
	step    int
	history []string
}

func lonely(t *testing.T, v *virtual, rule Rule, seed uint64) {
	zone := fmt.Sprint("z", rule, seed)
	v.use(zone, rule)
	l := &lonelyRun{t: t, v: v, zone: zone, rule: rule, random: rand.New(rand.NewPCG(uint64(rule.Limit), seed)), model: modelFor(rule)}
	l.node, l.id = newIsolated(v, zone, rule)
	defer l.node.end()
	pace := int64(rule.Window/time.Microsecond) / max(1, rule.Limit)
	lost := false
	for l.step = range 120 {
		if l.random.IntN(6) == 0 {
			lost = !lost
		}
		v.set(v.now + l.random.Int64N(2*pace))
		if l.random.IntN(20) == 0 {
			v.set(v.now + l.random.Int64N(3*pace*max(1, rule.Limit)))
		}
		if lost {
			l.alone()
		} else {
			l.asked()
		}
	}
}

func (l *lonelyRun) logf(format string, args ...any) {
	l.history = append(l.history, fmt.Sprintf(format, args...))
	l.history = l.history[max(0, len(l.history)-30):]
}

// alone is a request while Redis is away.
func (l *lonelyRun) alone() {
	t, v, n, m, random := l.t, l.v, l.node, l.model, l.random
	penalty := random.IntN(4) == 0
	got := n.alone(penalty)
	if got.Allowed {
		if want := m.take(v.now * 1000); !want.Allowed {
			t.Fatalf("step %d: admitted alone, which is too much\nafter %v", l.step, l.history)
		}
	} else if penalty {
		m.charge(v.now * 1000)
	}
	l.logf("%d alone %t %t", v.now, got.Allowed, penalty)
	if random.IntN(4) == 0 {
		arrives := random.IntN(2) == 0
		n.attempt(arrives)
		l.logf("attempt %t", arrives)
	}
	if got.Allowed && random.IntN(5) == 0 {
		n.returns()
		m.giveBack(v.now * 1000)
		l.logf("returned")
	}
	if is := n.alone(false); is.Allowed != m.take(v.now*1000).Allowed {
		t.Fatalf("step %d: decides %t alone, which is wrong\nafter %v", l.step, is.Allowed, l.history)
	} else if is.Allowed {
		l.logf("and one more")
	}
}

// asked is a request that Redis decides.
func (l *lonelyRun) asked() {
	t, v, n := l.t, l.v, l.node
	if l.random.IntN(3) == 0 {
		if err := n.cycle(); err != nil {
			t.Fatal(err)
		}
		l.logf("cycle")
	}
	if err := n.chargeNow(); err != nil {
		t.Fatal(err)
	}
	if left := n.unsent(); left != 0 {
		t.Fatalf("step %d: %d requests are not charged\nafter %v", l.step, left, l.history)
	}
	want := l.model.take(v.now * 1000)
	g, all := take(t, v.Limiter, l.zone, l.id, l.rule)
	got := all[0].Decision
	l.logf("%d %t", v.now, got.Allowed)
	if got.Allowed != want.Allowed || g.Admitted() != want.Allowed || got.Remaining != want.Remaining {
		t.Fatalf("step %d at %d:\n got %+v\nwant %+v\nafter %v", l.step, v.now, got, want, l.history)
	}
	n.imports(all[0])
}
