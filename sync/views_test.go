package ratesync

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// Once all is well and quiet, each node takes for used what all have admitted and not refunded, and
// so do a node that comes then, and explain. It is what they decide by, and not what the store has
// or their ledgers: the fill of a bucket, the entries of a log. The windows are so long that
// nothing leaves them. After a loss a node may still count what others have refunded. What a bucket
// counts after losses of any kind is as much as the highest that a node knows, so those are left to
// TestViewsThatWereWrong.
func TestEveryNodeKnowsWhatAllHaveAdmitted(t *testing.T) {
	t.Parallel()
	quiet := []string{"refund", "reset", "reload", "join", "look"}
	faults := append([]string{"net", "clock"}, quiet...)
	losses := []string{"refund", "reset", "reload", "look", "flush", "evict", "move"}
	for name, p := range viewKinds() {
		if skipRaced(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for seed := range redistest.Seeds(1, 125) {
				for what, groups := range [][]string{quiet, faults, faults, losses} {
					if what == 3 && p.Kind.Traits().Draining {
						continue
					}
					if fault := runCase(t, drawViews(p, 4*seed+uint64(what), groups)); fault != "" {
						t.Fatalf("seed %d of %v:\n%s", 4*seed+uint64(what), groups, fault)
					}
				}
			}
		})
	}
}

// What has once been wrong, in as few steps as show it. Nothing is left open here.
func TestViewsThatWereWrong(t *testing.T) {
	t.Parallel()
	long, soon := 8*time.Second, 3*time.Second
	for name, steps := range map[string][]viewStep{
		"a refund that got no reply, and what others spend after it": {
			{what: "take", n: 1, wait: soon}, {what: "unanswered"}, {what: "refund", wait: long}, {what: "take", node: 1, n: 1},
		},
		"a refund that got no reply, and both spend after it": {
			{what: "take", n: 4, wait: soon}, {what: "unanswered"}, {what: "refund", wait: long},
			{what: "take", n: 2}, {what: "take", node: 1, n: 1},
		},
		"what got no reply, and more after it": {
			{what: "take", node: 1, n: 4, wait: soon}, {what: "unanswered"}, {what: "take", n: 6, wait: long}, {what: "take", n: 1},
		},
		"a cell is lost": {{what: "take", n: 1, wait: long}, {what: "evict"}},
		"a cell is lost, and another one spends": {
			{what: "take", n: 15, wait: long}, {what: "evict"}, {what: "take", node: 1, n: 3},
		},
		"a cell is lost, and a newcomer and who knows spend at once": {
			{what: "take", n: 15, wait: long}, {what: "evict"}, {what: "take", node: 1, n: 3}, {what: "take", n: 2},
		},
		"a cell is lost, and they only ask": {
			{what: "take", n: 15, wait: long}, {what: "evict"}, {what: "ask"},
		},
		"all is lost that two have sent, and they only ask": {
			{what: "take", n: 3}, {what: "take", node: 1, n: 2, wait: long}, {what: "flush"}, {what: "ask"},
		},
	} {
		for kind, p := range viewKinds() {
			if skipRaced(kind) {
				continue
			}
			t.Run(name+", "+kind, func(t *testing.T) {
				for seed := range uint64(redistest.Times(3, 3)) {
					if fault := runCase(t, viewCase{p: p, seed: seed, nodes: 2, rate: time.Second, steps: steps, exact: true}); fault != "" {
						t.Errorf("seed %d:\n%s", seed, fault)
					}
				}
			})
		}
	}
}

// A node that is cut off for longer than its lease has lost nothing, also where a late heartbeat
// has begun another one before it is heard again: it believes what another node refunds then.
func TestTheEndOfALeaseIsNoLoss(t *testing.T) {
	t.Parallel()
	c := viewCase{p: viewKinds()["sliding_window"], nodes: 2, rate: 5 * time.Second, exact: true, steps: []viewStep{
		{what: "take", n: 5, wait: time.Millisecond}, {what: "lost", wait: 4700 * time.Millisecond}, {what: "late", wait: 1200 * time.Millisecond},
		{what: "take", n: 7, wait: 4100 * time.Millisecond}, {what: "worsen", wait: 3700 * time.Millisecond}, {what: "join", wait: 12 * time.Millisecond},
		{what: "take", node: 1, n: 1}, {what: "leave", node: 1, wait: 10 * time.Second},
	}}
	for c.seed = range uint64(redistest.Times(100, 100)) {
		if fault := runCase(t, c); fault != "" {
			t.Errorf("seed %d:\n%s", c.seed, fault)
		}
	}
}

// A step ahead of the server's clock ends leases too, and is no loss either, though another one a
// moment before has everything be sent again later: what is refunded then is believed.
func TestStepsOfTheServersClockAreNoLoss(t *testing.T) {
	t.Parallel()
	c := viewCase{p: viewKinds()["fixed_window"], nodes: 2, rate: time.Second, exact: true, steps: []viewStep{
		{what: "clock", n: 4, x: .7}, {what: "take", n: 8, wait: 1500 * time.Millisecond},
		{what: "clock", n: 4, x: .8}, {what: "take", node: 1, n: 9, wait: 2500 * time.Millisecond}, {what: "refund", node: 1},
	}}
	for c.seed = range uint64(redistest.Times(10, 10)) {
		if fault := runCase(t, c); fault != "" {
			t.Errorf("seed %d:\n%s", c.seed, fault)
		}
	}
}

// viewKinds are kinds of limits of which nothing leaves its window.
func viewKinds() map[string]algorithms.Params {
	const many = 1_000_000
	all := map[string]algorithms.Params{"token_bucket full": {Kind: algorithms.TokenBucket, Limit: 40, Burst: 40}}
	for name, p := range kindsOfLimits {
		if p.Limit, p.Burst, p.Queue = many, many, many; p.Kind.Traits().Draining {
			p.Limit = 20
		}
		all[name] = p
	}
	for _, name := range []string{"fixed_window", "sliding_log", "token_bucket"} {
		p := all[name]
		p.Reserves = true
		all[name+" of responses"] = p
	}
	for name, p := range all {
		if p.Window = 1000 * time.Hour; name == "sliding_window" {
			p.Limit = 50
		}
		all[name] = p
	}
	return all
}

// runCase runs a case of any kind.
func runCase(t *testing.T, c viewCase) (fault string) {
	return algorithms.ByState(c.p.Kind, runViews[algorithms.WindowState], runViews[algorithms.BucketState], runViews[algorithms.LogState])(t, c)
}

// A viewCase is some nodes, and what happens. With exact nothing is allowed for losses.
type viewCase struct {
	p     algorithms.Params
	rate  time.Duration
	seed  uint64
	nodes int
	steps []viewStep
	exact bool
}

// A viewStep is one thing that happens on a node to a key, and some time. x is from 0 to 1.
type viewStep struct {
	what         string
	node, key, n int
	x            float64
	wait         time.Duration
}

// viewGroups are what can happen, beside requests.
var viewGroups = map[string][]string{
	"refund": {"refund", "refund", "refund"},
	"net":    {"worsen", "worsen", "heal", "unanswered", "lost", "late", "two"},
	"flush":  {"flush"},
	"evict":  {"evict"},
	"clock":  {"clock"},
	"reset":  {"reset"},
	"move":   {"move", "back", "back"},
	"reload": {"rate", "limit"},
	"join":   {"join", "leave"},
	"look":   {"look", "sweep", "ask"},
}

// drawViews draws steps of some of the groups.
func drawViews(p algorithms.Params, seed uint64, groups []string) viewCase {
	random := rand.New(rand.NewPCG(seed, 11))
	pick := func(all ...time.Duration) time.Duration { return all[random.IntN(len(all))] }
	c := viewCase{p: p, seed: seed, nodes: 2 + random.IntN(2), rate: pick(200*time.Millisecond, time.Second, 5*time.Second)}
	var others []string
	for _, g := range groups {
		if random.IntN(2) == 0 {
			others = append(others, viewGroups[g]...)
		}
	}
	for range 5 + random.IntN(60) {
		s := viewStep{what: "take", node: random.IntN(8), n: 1 + random.IntN(9), key: random.IntN(3) / 2, x: random.Float64()}
		if len(others) > 0 && random.IntN(2) == 0 {
			s.what = others[random.IntN(len(others))]
		}
		if most := pick(0, 20*time.Millisecond, 2*c.rate, 10*time.Second); most > 0 {
			s.wait = time.Duration(random.Int64N(int64(most)))
		}
		c.steps = append(c.steps, s)
	}
	return c
}

// views is a schedule of nodes, each with a way to two stores: the one that counts in the end, and
// another.
type views[S any] struct {
	*schedule[S]
	c    viewCase
	all  [2]*luaStore
	reps map[*member[S]][2]*Replicator
	away map[*member[S]]int // 1 where it is at the other store

	gone, back map[string]int64 // of each key, what nodes that left had admitted, and all refunds
	stamp      int64            // of the last reset
	clocks     int              // how many steps the store's clock has taken
	lost       bool             // a store has lost something, or is another one
	doubtful   bool             // messages or leases were lost: nodes send levels of buckets
}

// runViews runs a case, and says what nodes know wrongly in the end.
func runViews[S any](t *testing.T, c viewCase) (fault string) {
	synctest.Test(t, func(t *testing.T) {
		s := newSchedule[S](t, c.seed, c.p, c.rate, "k", "l")
		v := &views[S]{
			schedule: s, c: c, all: [2]*luaStore{s.store, newLuaStore(t)}, reps: make(map[*member[S]][2]*Replicator), away: make(map[*member[S]]int),
			gone: make(map[string]int64), back: make(map[string]int64),
		}
		for range c.nodes {
			v.enter()
		}
		time.Sleep(1500 * time.Millisecond)
		for _, step := range c.steps {
			v.do(step)
			time.Sleep(step.wait)
		}
		fault = v.check()
		for _, m := range v.nodes {
			v.leave(m)
		}
	})
	return fault
}

// enter starts a node, and leave ends one in order.
//
// bubble: runViews runs it in one.
func (v *views[S]) enter() {
	m := &member[S]{table: tableOf[S](v.alg, 1000), own: make(map[string]int64), alg: v.alg, rate: v.rate}
	m.source = NewTableSyncer(m.table, v.spec)
	var reps [2]*Replicator
	for i := range reps {
		reps[i] = NewReplicator(&wire{net: v.net, store: v.all[i]}, "test", time.Second, wallClock, zap.NewNop())
	}
	v.reps[m] = reps
	v.load(m)
	v.nodes = append(v.nodes, m)
	if v.stamp > 0 {
		m.table.Reset(wallClock(), v.resets())
		time.Sleep(time.Millisecond) // nothing is taken at that instant
	}
}

func (v *views[S]) leave(m *member[S]) {
	m.source.Detach()
	for _, r := range v.reps[m] {
		r.Close()
	}
}

// load configures a node and attaches it.
func (v *views[S]) load(m *member[S]) {
	m.table.Configure(table.SyncConfig{
		Params: m.alg, Interval: m.rate, Early: v.c.seed%3 > 0, Waker: m.source.Waker,
		After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}, 1000)
	v.reps[m][v.away[m]].Attach(m.source, m.rate)
}

// resets are the last reset, of all keys.
func (v *views[S]) resets() *reset.Set {
	until := v.stamp*1000 + int64(v.alg.Counts()+time.Minute)
	return &reset.Set{All: reset.Reset{Stamp: v.stamp, At: v.stamp * 1000, Until: until}}
}

// do has a step happen.
func (v *views[S]) do(s viewStep) {
	m, key := v.nodes[s.node%len(v.nodes)], v.keys[s.key]
	switch s.what {
	case "take":
		v.take(m, key, s)
	case "refund":
		v.giveBack(m, s)
	case "ask":
		v.touch()
	case "look":
		v.look(m, key)
	case "sweep":
		m.table.Sweep(wallClock())
	case "reset":
		v.reset()
	case "flush", "evict":
		v.store.forget(int(s.x*1000), s.what == "flush")
		v.lost = true
	case "clock":
		v.step(s)
	case "move", "back":
		if v.lost = true; s.what == "move" {
			v.away[m] = 1
		} else {
			v.away[m] = 0
		}
		v.load(m)
	case "rate":
		m.rate = v.rate * time.Duration(1+s.n%4) / 2
		v.load(m)
	case "limit":
		m.alg.Limit = v.alg.Limit + int64(s.n)
		v.load(m)
	case "join":
		if len(v.nodes) < 5 {
			v.enter()
		}
	case "leave":
		v.end(s)
	default:
		v.worsen(s.what)
	}
}

// take asks for some units, which with some requests are reserved.
func (v *views[S]) take(m *member[S], key string, s viewStep) {
	k, l, reserves := keys.KeyOf([]byte(key)), m.alg.Compile(), v.alg.Reserves && s.x < .7
	var want algorithms.Want
	if reserves {
		want = table.Reserve | table.InParts | algorithms.WantReset
	}
	d := m.table.Take(l, k, []byte(key), wallClock(), int64(s.n), want)
	switch {
	case !d.Allowed:
		return
	case reserves:
		m.open = append(m.open, openUnit{Reserved: m.table.ReservationOf(l, k, d), key: key})
	default:
		m.taken = append(m.taken, took{key, d})
	}
	m.own[key] += d.N
}

// giveBack refunds what a request took, or has a response settle it.
func (v *views[S]) giveBack(m *member[S], s viewStep) {
	if n := len(m.open); n > 0 && s.x < .7 {
		i := int(s.x / .7 * float64(n))
		u := m.open[i]
		m.open = append(m.open[:i:i], m.open[i+1:]...)
		more := v.ownAfter(m, u.key, func() {
			m.table.Settle(keys.KeyOf([]byte(u.key)), u.Reserved, wallClock(), max(0, int64(s.n)-3))
		})
		m.own[u.key] += more
		v.back[u.key] += max(0, -more)
	} else if n := len(m.taken); n > 0 {
		i := int(s.x * float64(n))
		u := m.taken[i]
		m.taken = append(m.taken[:i:i], m.taken[i+1:]...)
		m.table.Refund(m.alg.Compile(), keys.KeyOf([]byte(u.key)), u.Taken, u.N)
		m.own[u.key] -= u.N
		v.back[u.key] += u.N
	}
}

// ownAfter is by how much f changes what a node has admitted. What is charged has a bound, and of a
// bucket whole units are refunded.
func (v *views[S]) ownAfter(m *member[S], key string, f func()) int64 {
	own := func() (n int64) {
		m.table.With(keys.KeyOf([]byte(key)), func(state *S) { n, _ = ledgerOf(v.alg, state).Sum(v.alg.Compile().History) })
		return n
	}
	before := own()
	f()
	return own() - before
}

// reset has all nodes apply a reset at one instant.
//
// bubble: runViews runs it in one.
func (v *views[S]) reset() {
	v.stamp = max(v.stamp+1, v.store.time().UnixMicro())
	for _, m := range v.nodes {
		m.table.Reset(wallClock(), v.resets())
		clear(m.own)
		m.taken, m.open = nil, nil
	}
	clear(v.gone)
	clear(v.back)
	time.Sleep(time.Millisecond)
}

// step has the store's clock take a step, of half an hour at most or half a second. No request
// lasts for two steps.
func (v *views[S]) step(s viewStep) {
	most := time.Hour
	if s.n < 3 {
		most = time.Second
	}
	v.store.step(time.Duration((s.x - .5) * float64(most)))
	v.doubtful = v.drains
	if v.clocks++; v.clocks%2 == 0 {
		for _, m := range v.nodes {
			m.taken = nil
		}
	}
}

// end ends a node when all that it admitted has been sent, but for what it refunds last.
//
// bubble: runViews runs it in one.
func (v *views[S]) end(s viewStep) {
	if len(v.nodes) == 2 {
		return
	}
	v.net.heal()
	time.Sleep(10*time.Second + 4*v.rate)
	i := s.node % len(v.nodes)
	m := v.nodes[i]
	v.giveBack(m, s)
	v.leave(m)
	v.nodes = append(v.nodes[:i:i], v.nodes[i+1:]...)
	for key, n := range m.own {
		v.gone[key] += n
	}
}

// worsen changes the network.
func (v *views[S]) worsen(what string) {
	v.doubtful = v.drains
	switch n := v.net; what {
	case "worsen":
		n.worsen()
	case "heal":
		n.heal()
	case "unanswered":
		n.become(&n.unanswered, 1)
	case "lost":
		n.become(&n.lost, 1)
	case "late":
		n.become(&n.late, 1)
	case "two":
		n.become(&n.two, .8)
	default:
		v.t.Fatalf("%s is no step", what)
	}
}

// touch has all nodes ask about all keys.
func (v *views[S]) touch() {
	for _, m := range v.nodes {
		for _, key := range v.keys {
			m.table.Take(m.alg.Compile(), keys.KeyOf([]byte(key)), []byte(key), wallClock(), 0, 0)
		}
	}
}

// look is what explain takes for used; ok is false where the store does not answer.
func (v *views[S]) look(m *member[S], key string) (used float64, ok bool) {
	k, l := keys.KeyOf([]byte(key)), m.alg.Compile()
	f := m.table.Fork(l, k, keys.IDOf([]byte(key)), wallClock())
	ctx, cancel := CallContext(v.t.Context(), time.Second)
	defer cancel()
	read, _, _ := f.GrantUpdate(l, k, nil, wallClock(), 0)
	reads := []table.Update{read}
	heard, server, err := m.source.Look(ctx, reads)
	if err != nil {
		return 0, false
	}
	f.Merge(wallClock(), server, reads, heard)
	f.With(k, func(state *S) { used = v.used(m, state) })
	return used, true
}

// used is what a node decides by.
func (v *views[S]) used(m *member[S], state *S) float64 {
	now := wallClock() + int64(m.table.Offset())
	if v.drains {
		return levelAt(m.alg, state, now)
	}
	machine, most := algorithms.MachineOf[S](v.alg.Kind), v.alg
	most.Limit = 1 << 40
	c := machine.Clone(state)
	return float64(most.Limit - machine.Take(&c, most.Compile(), now, 0, 0).Remaining)
}

// check lets all be well and quiet, has one more node come, and says who knows what wrongly.
//
// bubble: runViews runs it in one.
func (v *views[S]) check() string {
	v.net.heal()
	time.Sleep(10 * time.Second) // the latest of the late messages come
	for _, m := range v.nodes {
		if v.away[m] != 0 {
			v.away[m] = 0
			v.load(m)
		}
	}
	for range 3 {
		v.touch()
		time.Sleep(ResendInterval + 3*v.rate + 3*time.Second)
		if v.alg.Reserves {
			time.Sleep(table.ResentReserved)
		}
	}
	v.enter()
	for range 2 {
		v.touch()
		time.Sleep(4*v.rate + 2*time.Second)
	}
	var faults strings.Builder
	for _, key := range v.keys {
		least, most := v.bounds(key)
		expect := func(who string, i int, used float64) {
			if used < float64(least)-.2 || used > float64(most)+.2 { // a little drains
				fmt.Fprintf(&faults, "%s %d of %d takes %.3f of %s for used, want %d to %d\n", who, i+1, len(v.nodes), used, key, least, most)
			}
		}
		for i, m := range v.nodes {
			m.table.With(keys.KeyOf([]byte(key)), func(state *S) { expect("node", i, v.used(m, state)) })
			used, ok := v.look(m, key)
			if expect("explain of node", i, used); !ok {
				faults.WriteString("the store does not answer explain\n")
			}
		}
	}
	return faults.String()
}

// bounds are what a node may take for used of a key.
func (v *views[S]) bounds(key string) (least, most int64) {
	all := v.gone[key]
	for _, m := range v.nodes {
		all += m.own[key]
	}
	// After a loss nobody may know what a newcomer has spent meanwhile.
	if least = all; v.drains && v.lost {
		least = 0
		for _, m := range v.nodes {
			least = max(least, m.own[key])
		}
	}
	if l := v.alg.Compile(); v.drains { // no message brings a bucket beyond that
		least = min(least, l.Size+l.N)
	}
	if most = all; !v.c.exact && (v.lost || v.doubtful) {
		most += v.back[key]
	}
	return least, most
}
