package strict

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A settling is one request: what it has got at an instant, and what it costs in truth.
type settling struct {
	by      *Limiter
	grant   Grant
	top     int64
	at      int64 // microseconds
	n, cost int64
}

func (l *settling) settle() {
	l.by.Settle(l.grant, l.cost, []int64{l.top}, nil)
}

// Bound: a bucket in Redis never admits more, in units really used, than its burst and what drains,
// and what was charged beyond estimates comes off that: two nodes take and settle in any order. It
// holds only if no more is refunded than still stands in the bucket.
//
// no clock: Redis goes by the time that the test sets.
func TestABucketInRedisAdmitsNoMoreThanItsBoundInUnitsUsed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := []*virtual{newVirtualOn(t, server), newVirtualOn(t, server)}
	refunded := int64(0)
	for seed := range redistest.Seeds(60, 200) {
		random := rand.New(rand.NewPCG(seed, 9))
		rule := Rule{Kind: algorithms.TokenBucket, Limit: 1 + random.Int64N(200), Window: time.Minute, Burst: 1 + random.Int64N(100), Reserves: true}
		if seed%2 == 1 {
			rule.Kind = algorithms.GCRA
		}
		zone := fmt.Sprint("bound", seed)
		for _, v := range nodes {
			v.use(zone, rule)
		}
		var open, all []settling
		for range 60 {
			now := nodes[0].now + random.Int64N(int64(time.Minute/time.Microsecond)*rule.Burst/rule.Limit/4)
			nodes[0].set(now)
			v := nodes[random.IntN(2)]
			if random.IntN(2) == 0 {
				n := 1 + random.Int64N(rule.Burst)
				cost := random.Int64N(n + 1)
				if seed%3 == 0 {
					cost = random.Int64N(2 * n)
				}
				if g, said := pay(t, v.Limiter, zone, id(1), n, rule); g.Admitted() {
					open = append(open, settling{v.Limiter, g, said[0].Top, now, n, cost})
					all = append(all, open[len(open)-1])
				}
			} else if len(open) > 0 {
				i := random.IntN(len(open))
				open[i].settle()
				refunded += max(0, open[i].n-open[i].cost)
				open = slices.Delete(open, i, i+1)
				nodes[0].settled(zone)
				nodes[1].settled(zone)
			}
		}
		if over := beyond(rule, all); over > 0 {
			t.Fatalf("seed %d, %+v: %.2f above the burst", seed, rule, over)
		}
		server.Do("FLUSHDB")
	}
	if refunded == 0 {
		t.Error("nothing was to be refunded")
	}
}

// beyond returns how far a bucket that knows what each request really uses would have been above
// its burst. Of one that is still under way, or that has cost more than it took, it goes by the
// lesser.
func beyond(r Rule, all []settling) (over float64) {
	level, last := 0.0, int64(0)
	for _, l := range all {
		level = max(0, level-float64(l.at-last)*1000*float64(r.Limit)/float64(r.Window))
		level, last = level+float64(min(l.n, l.cost)), l.at
		over = max(over, level-float64(r.Burst)-1e-3)
	}
	return over
}

// Of many requests under way on one node each refund comes back, though others are above and below
// it, as long as nothing was lost by more than what moved.
//
// no clock: Redis goes by the time that the test sets.
func TestRefundsInRedisComeBack(t *testing.T) {
	v := newVirtual(t)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 1_000_000, Window: 24 * time.Hour, Reserves: true}
	v.use("back", rule)
	var open []settling
	for range 100 {
		g, said := pay(t, v.Limiter, "back", id(1), 4000, rule)
		open = append(open, settling{v.Limiter, g, said[0].Top, v.now, 4000, 1000})
	}
	v.set(v.now + int64(20*time.Second/time.Microsecond))
	for i := range open {
		open[i].settle()
	}
	v.settled("back")
	// A bucket that knew the order would hold 100,000.
	if left := held(t, v.Limiter, "back", id(1), rule); left < 100_000-300 || left > 250_000 {
		t.Errorf("%d stand in the bucket after 100 answers of 1000 of which each had reserved 4000", left)
	}
}

// Redis doesn't know the order in which units stand in a bucket, and refunds no less for it than a
// node does of its own one: all where answers take a sixth of the time in which the bucket drains,
// a part where they take half of that, and nothing where they take longer.
//
// no clock: Redis goes by the time that the test sets.
func TestSteadyOverestimatesInRedis(t *testing.T) {
	v := newVirtual(t)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 6000, Window: time.Minute, Reserves: true}
	for took, want := range map[time.Duration][2]float64{10 * time.Second: {.95, 1}, 30 * time.Second: {.5, .75}, 61 * time.Second: {}} {
		zone := fmt.Sprint("steady ", took)
		v.use(zone, rule)
		var open []settling
		refunded, unused := int64(0), int64(0)
		for range 900 {
			v.set(v.now + int64(200*time.Millisecond/time.Microsecond))
			for len(open) > 0 && v.now-open[0].at >= took.Microseconds() {
				before := held(t, v.Limiter, zone, id(1), rule)
				open[0].settle()
				v.settled(zone)
				open, refunded, unused = open[1:], refunded+before-held(t, v.Limiter, zone, id(1), rule), unused+120
			}
			if g, said := pay(t, v.Limiter, zone, id(1), 160, rule); g.Admitted() {
				open = append(open, settling{v.Limiter, g, said[0].Top, v.now, 160, 40})
			}
		}
		part := float64(refunded) / float64(unused)
		if t.Logf("answers of %v: %.2f of what they don't use is refunded", took, part); part < want[0] || part > want[1] {
			t.Errorf("answers of %v: %.2f is refunded, want %.2f to %.2f", took, part, want[0], want[1])
		}
	}
}

// Nobody knows in which order units stand in a bucket in Redis. So what is refunded of the last
// ones first is taken for what has drained below the others. It errs to the safe side only.
//
// no clock: Redis goes by the time that the test sets.
func TestABucketInRedisKnowsNoOrder(t *testing.T) {
	v := newVirtual(t)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 100, Window: time.Hour, Reserves: true}
	for zone, want := range map[string]int64{"the first one first": 0, "the last one first": 50} {
		v.use(zone, rule)
		var open []settling
		for range 10 {
			g, said := pay(t, v.Limiter, zone, id(1), 10, rule)
			open = append(open, settling{by: v.Limiter, grant: g, top: said[0].Top, n: 10})
		}
		if want > 0 {
			slices.Reverse(open)
		}
		for i := range open {
			open[i].settle()
			v.settled(zone)
		}
		if left := held(t, v.Limiter, zone, id(1), rule); left != want {
			t.Errorf("%s: %d stand in the bucket, want %d", zone, left, want)
		}
	}
}

// Law: when all is settled, windows and logs in Redis hold exactly what was really used, and all of
// it is settled, whatever ran at once on three nodes, and though every other reply of each is lost.
// Buckets hold that at least, and no more than was reserved or charged.
func TestWhatIsSettledInRedisIsWhatWasUsed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, rule := range []Rule{

		{Kind: algorithms.TokenBucket, Limit: 1 << 20, Window: long * 1000}, {Kind: algorithms.GCRA, Limit: 1 << 20, Window: long * 1000},
	} {
		for _, loses := range []bool{false, true} {
			t.Run(fmt.Sprint(rule.Kind, loses), func(t *testing.T) {
				rule.Reserves = true
				usedUp(t, server, rule, fmt.Sprint("law", i, loses), loses, uint64(i))
			})
		}
	}
}

func usedUp(t *testing.T, server *redistest.Server, rule Rule, zone string, loses bool, seed uint64) {
	x := &tap{loses: loses, made: make(map[string]int)}
	const most = int64(5000)
	var (
		wg         sync.WaitGroup
		mu         sync.Mutex
		used, upTo int64
	)
	nodes := []*Limiter{x.node(t, server), x.node(t, server), x.node(t, server)}
	for worker := range 12 {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			var open []settling
			for range 20 {
				l := settling{by: nodes[worker%3], n: 1 + random.Int64N(most), cost: random.Int64N(2 * most)}
				if random.IntN(4) == 0 {
					l.cost = 0
				}
				g, said := pay(t, l.by, zone, id(1), l.n, rule)
				if !g.Admitted() {
					t.Errorf("%d are denied by %+v", l.n, said)
					return
				}
				l.grant, l.top = g, said[0].Top
				mu.Lock()
				used, upTo = used+l.cost, upTo+max(l.n, l.cost)
				mu.Unlock()
				if open = append(open, l); random.IntN(2) == 0 {
					at := random.IntN(len(open))
					open[at].settle()
					open = slices.Delete(open, at, at+1)
				}
			}
			for i := range open {
				open[i].settle()
			}
		})
	}
	wg.Wait()
	x.mu.Lock()
	x.loses = false
	x.mu.Unlock()
	for _, s := range nodes {
		redistest.Eventually(t, "all corrections have arrived", s.isIdle)
	}
	left, attempts := inRedis(t, server, zone, rule.Kind)
	switch {
	case rule.Kind.Traits().Draining && (left < used || left > upTo):
		t.Errorf("Redis has %d, want %d to %d", left, used, upTo)
	case !rule.Kind.Traits().Draining && left != used:
		t.Errorf("Redis has %d, and %d were used", left, used)
	case rule.Kind.Traits().Windowed && (attempts < 240 || !loses && attempts > 240):
		t.Errorf("Redis has %d attempts of 240", attempts)
	}
}

// inRedis is what Redis has of the one key of a zone that doesn't drain meanwhile, and of a window
// the attempts. What was reserved there must be settled.
func inRedis(t *testing.T, server *redistest.Server, zone string, k algorithms.Kind) (units, attempts int64) {
	t.Helper()
	for _, key := range server.Do("KEYS", "*:"+zone+":*").([]any) {
		switch name := key.(string); {
		case strings.HasSuffix(name, ":level"):
			if _, err := fmt.Sscan(server.Do("GET", name).(string), &units); err != nil {
				t.Fatal(err)
			}
			return units + 1, 0 // less than one has drained
		case k.Traits().Windowed && !strings.Contains(name, ":strict:"):
			settled := int64(0)
			if _, err := fmt.Sscan(server.Do("HGET", name, "sum").(string), &units, &attempts, &settled); err != nil || settled != units {
				t.Errorf("of %d units %d are settled: %v", units, settled, err)
			}
			return units, attempts
		}
	}
	t.Fatalf("Redis has nothing of %s: %v", zone, server.Do("KEYS", "*"))
	return 0, 0
}

// A charge fills a bucket with no more than drains in a window beyond its size, and a log with
// twice its limit. A window holds all of it, as far as doubles count.
func TestADebtInRedisIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for _, c := range []struct {
		rule Rule
		want int64
	}{
		{Rule{Kind: algorithms.TokenBucket, Limit: 10, Window: long, Burst: 30}, 40},
		{Rule{Kind: algorithms.GCRA, Limit: 10, Window: long, Burst: 30}, 40},
	} {
		c.rule.Reserves = true
		zone := fmt.Sprint(c.rule.Kind)
		var open []settling
		for range 3 {
			g, said := pay(t, s, zone, id(1), 3, c.rule)
			open = append(open, settling{by: s, grant: g, top: said[0].Top, n: 3, cost: 1 << 60})
		}
		for i := range open {
			open[i].settle()
			redistest.Eventually(t, "the charge has arrived", s.isIdle)
		}
		if got, _ := inRedis(t, server, zone, c.rule.Kind); got != c.want {
			t.Errorf("%s: %d are held, want %d", zone, got, c.want)
		}
	}
}

// What a bucket of rules that don't reserve keeps in Redis is what it was before there were
// settlements.
func TestABucketThatReservesNothingKeepsNoMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 100, Window: long}
	take(t, s, "plain", id(1), rule)
	for _, key := range server.Do("KEYS", "*:level").([]any) {
		if level := server.Do("GET", key).(string); len(strings.Fields(level)) != 5 {
			t.Errorf("the level is %q", level)
		}
	}
	rule.Reserves = true
	for range 2 { // a level that others have written, and then its own
		take(t, s, "plain", id(1), rule)
	}
	for _, key := range server.Do("KEYS", "*:level").([]any) {
		if level := strings.Fields(server.Do("GET", key).(string)); len(level) != 8 || level[0] != "2" || level[5] != "0" {
			t.Errorf("the level is %q", level)
		}
	}
}

// A call that comes twice is told no place in the bucket: others may have added to it since. What
// it got is then refunded only where it was a single unit, as without costs.
func TestAReplayKnowsNoPlaceInTheBucket(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := limiter(t, server.URL), limiter(t, server.URL)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 100, Window: long, Reserves: true}
	asked := like([]Rule{rule}, run{2, 10}, run{1, 5})
	rs, err := a.ruleset("twice", asked.rules)
	if err != nil {
		t.Fatal(err)
	}
	c := call{id: id(1), seq: a.seq.Add(1), rules: asked.rules, batches: []batch{asked}}
	for i, want := range []bool{true, false} {
		said, err := a.call(rs, rs.keysOf(c.id), c)
		if err != nil {
			t.Fatal(err)
		}
		tops := make([]int64, 0, 3)
		for _, at := range placesOf(asked, said[0]) {
			tops = append(tops, verdicts(asked.rules, said[0], at, nil)[0].Top)
		}
		if known := tops[0] > 0; known != want || known && (tops[1] != tops[0]+10 || tops[2] != tops[1]+5) {
			t.Errorf("call %d tells %v", i, tops)
		}
		pay(t, b, "twice", id(1), 20, rule)
	}
}

// While requests run, Redis' clock steps by an hour, or Redis forgets all. After a step what was
// taken is refunded where it stands, and what was more is charged now: the sum is what was used.
// Of what Redis has forgotten nothing is refunded, and what was more is charged.
func TestSettlementsOverStepsAndLosses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v := newVirtualOn(t, server)
	v.set(v.now + int64(500*time.Hour/time.Microsecond)) // far from the boundaries of windows
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		for what, change := range map[string]func(){
			"ahead": func() { v.set(v.now + int64(time.Hour/time.Microsecond)) },
			"back":  func() { v.set(v.now - int64(time.Hour/time.Microsecond)) },
			"lost": func() {
				server.Do("FLUSHALL")
				v.set(v.now)
			},
		} {
			rule := Rule{Kind: kind, Limit: 1000, Window: 1000 * time.Hour, Reserves: true}
			zone := fmt.Sprint("faulty ", kind, what)
			v.use(zone, rule)
			var open []settling
			used, charged, reserved := int64(0), int64(0), int64(0)
			for i := range int64(8) {
				g, said := pay(t, v.Limiter, zone, id(1), 10, rule)
				open = append(open, settling{v.Limiter, g, said[0].Top, v.now, 10, 4 * i})
				used, charged, reserved = used+4*i, charged+max(0, 4*i-10), reserved+max(10, 4*i)
			}
			change()
			for i := range open {
				open[i].settle()
			}
			v.settled(zone)
			got := usedNow(t, v, zone, rule)
			low, high := used, used
			if what == "lost" {
				low, high = charged, charged
			}
			if kind.Traits().Draining { // refunds no more than stands; drains one in an hour
				low, high = min(low-2, used-2), max(high, reserved)
			}
			if got < low || got > high {
				t.Errorf("%s, %s: %d are held, want %d to %d", kind, what, got, low, high)
			}
		}
	}
}

// usedNow is what is used of a limit by the virtual time.
func usedNow(t *testing.T, v *virtual, zone string, rule Rule) int64 {
	t.Helper()
	_, said := pay(t, v.Limiter, zone, id(1), 0, rule)
	return rule.Limit - said[0].Decision.Remaining
}
