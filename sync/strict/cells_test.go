package strict

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// cellsOf are limits of every kind that admit so many units at once.
func cellsOf(limit int64, window time.Duration) map[string]algorithms.Params {
	return map[string]algorithms.Params{
		"fixed window":   {Kind: algorithms.FixedWindow, Limit: limit, Window: window},
		"sliding window": {Kind: algorithms.SlidingWindow, Limit: limit, Window: window},
		"fine window":    {Kind: algorithms.SlidingWindow, Limit: limit, Window: window, SubWindows: 5},
		"odd window":     {Kind: algorithms.SlidingWindow, Limit: limit, Window: window, SubWindows: 7},
		"log":            {Kind: algorithms.SlidingLog, Limit: limit, Window: window},
		"token bucket":   {Kind: algorithms.TokenBucket, Limit: limit, Window: window},
		"gcra":           {Kind: algorithms.GCRA, Limit: limit/2 + 1, Window: window, Burst: limit},
		"leaky bucket":   {Kind: algorithms.LeakyBucket, Limit: limit, Window: window, Queue: limit - 1},
	}
}

// A cellNode is a node with a strict zone of cells.
type cellNode struct {
	t     *testing.T
	s     *Limiter
	rules []algorithms.Params
	by    []tableOfCells
	Request
}

// cells is a node at the end of a limiter, which says what changes at once.
func (s *Limiter) cells(t *testing.T, c redis.UniversalClient, rules ...algorithms.Params) *cellNode {
	rep := ratesync.NewReplicator(c, "test", s.Timeout(), clock.Now, zap.NewNop())
	n := &cellNode{t: t, s: s, rules: rules}
	for _, r := range rules {
		by := tableFor(r, 100_000)
		source := ratesync.NewTableSyncer(by, ratesync.SpecOf(t.Name(), r))
		by.Configure(table.SyncConfig{Params: r, Interval: time.Second, StoreDecides: true, Waker: source.Waker}, 100_000)
		rep.Attach(source, time.Second)
		t.Cleanup(source.Detach)
		n.by = append(n.by, by)
		n.Counters = append(n.Counters, Counter{by, source})
		n.Limits = append(n.Limits, r.Compile())
	}
	t.Cleanup(rep.Close)
	n.Want = allWaits
	return n
}

// ask asks for units of a key, by the node's limits or others.
func (n *cellNode) ask(key string, units int64, limits ...algorithms.Limit) ([]table.Taken, error) {
	r := n.Request
	r.Key, r.Raw, r.N = keys.KeyOf([]byte(key)), []byte(key), units
	if limits != nil {
		r.Limits = limits
	}
	return n.s.Ask(n.t.Context(), n.t.Name(), &r, nil)
}

func (n *cellNode) admits(key string, units int64) bool {
	n.t.Helper()
	all, err := n.ask(key, units)
	if err != nil {
		n.t.Fatalf("Ask: %v", err)
	}
	return !all[0].Unspent
}

// drain asks for one unit after the other until one is denied.
func (n *cellNode) drain(key string) (admitted int) {
	n.t.Helper()
	for n.admits(key, 1) {
		admitted++
	}
	return admitted
}

// withCells runs a test in virtual time, with a node at the end of a line and one that has no
// faults.
func withCells(t *testing.T, timeout time.Duration, rule algorithms.Params, test func(t *testing.T, l *line, n, other *cellNode)) {
	onALine(t, timeout, func(t *testing.T, l *line, s *Limiter) {
		well := l.other(t)
		test(t, l, s.cells(t, s.client, rule), well.cells(t, well.client, rule))
	})
}

// Random lives of a key: each request is told what one counter in Redis would tell it, whatever it
// costs, whatever its limit, and after refunds. A log counts by sixteenths there.
func TestCellsAreDecidedAsTheAlgorithmDoes(t *testing.T) {
	rules := cellsOf(30, 70*time.Second)
	// The next day begins in ten minutes.
	days := &algorithms.Calendar{Window: algorithms.Day, Zone: time.FixedZone("west", -600), From: 1}
	rules["calendar"] = algorithms.Params{Kind: algorithms.FixedWindow, Limit: 30, Window: algorithms.Day, Calendar: days}
	for name, rule := range rules {
		withCells(t, time.Second, rule, func(t *testing.T, _ *line, n, other *cellNode) {
			random, m := rand.New(rand.NewPCG(1, 1)), modelFor(rule)
			for step := range redistest.Times(200, 2000) {
				wait := time.Duration(random.Int64N(4e6)) * time.Microsecond
				if random.IntN(20) == 0 {
					wait *= 30
				}
				time.Sleep(wait) // of virtual time
				by, p := n, rule
				if random.IntN(2) == 0 {
					by = other
				}
				p.Limit = 10 + random.Int64N(30)
				goBy(m, p)
				now, cost := time.Now().UnixNano(), 1+random.Int64N(4)
				want := grant(m, int64(p.Epoch()), now, cost)
				all, err := by.ask("k", cost, p.Compile())
				if err != nil {
					t.Fatal(err)
				}
				got := all[0]
				got.Delay, want.Delay, got.Estimated = 0, 0, false
				if !same(got.Decision, want) {
					t.Fatalf("%s, step %d, cost %d at limit %d:\n got %+v\nwant %+v", name, step, cost, p.Limit, got.Decision, want)
				}
				if want.Allowed && random.IntN(4) == 0 {
					m.refund(now, cost)
					by.by[0].Refund(p.Compile(), keys.KeyOf([]byte("k")), got, cost)
					time.Sleep(5 * time.Millisecond) // until it is said
				}
			}
		})
	}
}

// grant is takeSome as a store grants: of a log, by epochs.
func grant(m model, epoch, now, n int64) (d algorithms.Decision) {
	log, ok := m.(*modelOf[algorithms.LogState])
	if !ok {
		return m.takeSome(now, n)
	}
	d = log.takeSome(now, 0)
	if d.Allowed = n <= d.Remaining; d.Allowed {
		log.Advance(&log.state, log.limit, now)
		log.Adopt(&log.state, log.limit, now/epoch, n)
		rest := log.takeSome(now, 0)
		rest.Allowed = true
		return rest
	}
	d.Waits = log.Waits(&log.state, log.limit, now, n, 0, allWaits|algorithms.WantRetry)
	return d
}

// What a call has granted whose reply is lost is taken back without a request, and counts for
// nobody.
func TestRollsBackWhatNobodyHeardOf(t *testing.T) {
	for _, rule := range cellsOf(100, long) {
		withCells(t, 100*time.Millisecond, rule, func(t *testing.T, l *line, n, other *cellNode) {
			n.admits("k", 1)
			l.set(faultproxy.DropReplies)
			if _, err := n.ask("k", 1); err == nil {
				t.Fatal("Ask() without a reply, want an error")
			}
			l.set(faultproxy.None)
			time.Sleep(5 * time.Second) // of virtual time
			if got := other.drain("k"); got != 99 {
				t.Errorf("%d admitted after one whose reply came and one whose reply was lost, want 99", got)
			}
		})
	}
}

// A call that is held up on the way for longer than its node waits, and arrives after the next one,
// is granted nothing.
func TestALateCallIsGrantedNothing(t *testing.T) {
	for _, rule := range cellsOf(100, long) {
		withCells(t, 100*time.Millisecond, rule, func(t *testing.T, l *line, n, other *cellNode) {
			n.admits("k", 1)
			l.set(faultproxy.Hold)
			if _, err := n.ask("k", 1); err == nil {
				t.Fatal("Ask() without a reply, want an error")
			}
			l.set(faultproxy.None)
			time.Sleep(5 * time.Second) // of virtual time
			n.admits("k", 1)
			l.deliver(t)
			if got := other.drain("k"); got != 98 {
				t.Errorf("%d admitted after two and one that came late, want 98", got)
			}
		})
	}
}

// Many requests on three nodes, in two windows of which one is tighter: never more than the limit,
// and all of it. What is denied spends nothing in the other window.
func TestNodesThatAskAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, rule := range cellsOf(300, long) {
		wide := rule
		wide.Limit, wide.Burst, wide.Queue, wide.Window = 1000, 1000, 999, 2*long
		var admitted atomic.Int64
		var all sync.WaitGroup
		var last *cellNode
		for range 3 {
			n := limiter(t, server.URL).cells(t, client(t, server.URL), rule, wide)
			last = n
			for range 8 {
				all.Go(func() {
					for range 30 {
						if n.admits(name, 1) {
							admitted.Add(1)
						}
					}
				})
			}
		}
		all.Wait()
		if got := admitted.Load(); got != 300 {
			t.Errorf("%s: 720 requests on three nodes: %d are admitted of 300", name, got)
		}
		updates, err := last.ask(name, 1)
		if err != nil || updates[0].Allowed || updates[0].Retry <= 0 || !updates[1].Allowed || updates[1].Remaining != 700 {
			t.Errorf("%s: a denied request is told %+v, %v, want 700 of 1000 remaining", name, updates, err)
		}
	}
}

// Requests that come while a call of their key is under way share the next one, whatever they cost
// and whatever their limits.
func TestRequestsOfAKeyShareCalls(t *testing.T) {
	withCells(t, time.Minute, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1 << 30, Window: long}, func(t *testing.T, l *line, n, _ *cellNode) {
		n.admits("k", 1)
		time.Sleep(2 * time.Second) // of virtual time
		l.setTrip(20 * time.Millisecond)
		before, _ := l.counts()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				limit := n.Limits[0]
				limit.N, limit.Size = limit.N-int64(i%7), limit.Size-int64(i%7)
				if took, err := n.ask("k", 1+int64(i%3), limit); err != nil || took[0].Unspent {
					t.Errorf("%+v, %v", took, err)
				}
			})
		}
		all.Wait()
		if after, _ := l.counts(); after-before > 4 {
			t.Errorf("100 requests of a key took %d calls", after-before)
		}
	})
}

func keyOf(raw []byte) keys.Key { return keys.KeyOf(raw) }

// What Redis has denied is denied again for a second without a call, unless a request costs less.
func TestWhatRedisHasDeniedIsRecalled(t *testing.T) {
	withCells(t, time.Second, algorithms.Params{Kind: algorithms.FixedWindow, Limit: 5, Window: long}, func(t *testing.T, l *line, n, _ *cellNode) {
		n.Remembers = true
		n.admits("k", 3)
		if n.admits("k", 4) {
			t.Fatal("7 are admitted of 5")
		}
		synctest.Wait() // what was under way has arrived
		before, _ := l.counts()
		recalls := func(units int64) bool {
			r := n.Request
			r.Key, r.Raw, r.N = keyOf([]byte("k")), []byte("k"), units
			return r.Recall(new([]table.Taken))
		}
		for range 400 {
			if !recalls(4) {
				t.Fatal("it is not recalled")
			}
		}
		if after, _ := l.counts(); after != before {
			t.Errorf("%d calls for 400 denied requests", after-before)
		}
		if recalls(2) {
			t.Error("2 are denied where 3 of 5 are spent")
		}
		if time.Sleep(1100 * time.Millisecond); recalls(4) { // of virtual time
			t.Error("it is recalled after more than a second")
		}
	})
}

// A node that syncs at an interval and one that asks Redis share their counts.
func TestAskedAndSyncedShareTheirCounts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rule := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 10, Window: long}
	waiters := limiter(t, server.URL).cells(t, client(t, server.URL), rule)
	syncs := limiter(t, server.URL).cells(t, client(t, server.URL), rule)
	take := func() bool {
		return syncs.by[0].Take(syncs.Limits[0], keyOf([]byte("k")), []byte("k"), clock.Now(), 1, 0).Allowed
	}
	for range 3 {
		take()
	}
	redistest.Eventually(t, "3 are said", func() bool { return syncs.by[0].Totals(clock.Now()).Unsent == 0 })
	if got := waiters.drain("k"); got != 7 {
		t.Errorf("%d admitted after 3 on a node that syncs, want 7", got)
	}
	redistest.Eventually(t, "they are known", func() bool {
		syncs.by[0].Take(syncs.Limits[0], keyOf([]byte("k")), []byte("k"), clock.Now(), 0, 0)
		return syncs.by[0].Totals(clock.Now()).Remote == 7
	})
	if take() {
		t.Error("one more is admitted on a node that knows of all")
	}
	if got := syncs.by[0].Totals(clock.Now()); got.Own != 3 || got.Remote != 7 {
		t.Errorf("the node that syncs knows %+v, want 3 of its own and 7", got)
	}
}

// Each key in Redis has an end and holds no byte of a client.
func TestKeysExpireAndHoldNoClientBytes(t *testing.T) {
	t.Parallel()
	for name, rule := range cellsOf(10, time.Hour) {
		server := redistest.Start(t)
		limiter(t, server.URL).cells(t, client(t, server.URL), rule).admits("secret client", 1)
		found := false
		for _, k := range server.Do("KEYS", "*").([]any) {
			key, ttl := k.(string), server.Do("PTTL", k).(int64)
			found = found || strings.Contains(key, ":"+ratesync.SpecOf("", rule).Name()+":")
			held := key
			if server.Do("TYPE", key) == "hash" {
				held += fmt.Sprint(server.Do("HGETALL", key))
			}
			if strings.Contains(held, "secret") || ttl < 0 || ttl > (6*time.Hour).Milliseconds() {
				t.Errorf("%s: %q expires after %d ms", name, held, ttl)
			}
		}
		if !found {
			t.Errorf("%s: no key of its cell in %v", name, server.Do("KEYS", "*"))
		}
	}
}

// A call that Redis answers with an error, as its user may not run a command, has counted nothing.
func TestAnAskThatMayNotBeDoneCountsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.User("app", leastACL))
	own := strings.Replace(server.URL, "redis://", "redis://app:secret@", 1)
	rule := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 100, Window: long}
	for _, command := range strings.Fields("hset hmget pexpireat time") {
		n := limiter(t, own).cells(t, client(t, own), rule)
		admitted := 0
		ask := func() {
			if all, err := n.ask(command, 1); err == nil && !all[0].Unspent {
				admitted++
			}
		}
		ask()
		server.Do("ACL", "SETUSER", "app", "-"+command)
		for range 3 {
			ask()
		}
		server.Do("ACL", "SETUSER", "app", "+"+command)
		redistest.Eventually(t, "Redis is asked again", func() bool { return !n.s.Down() })
		other := limiter(t, server.URL).cells(t, client(t, server.URL), rule)
		if got := other.drain(command); got != 100-admitted {
			t.Errorf("%s: %d were admitted, and then %d, want 100 in all", command, admitted, got)
		}
	}
}

// Days of 23 and of 25 hours begin and end in strict as anywhere, on two nodes by one Redis: each
// has the limit once, on both sides of the change of the clocks, and clients are told to wait until
// its end.
func TestDaysOfOtherLengthsInStrict(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	day := &algorithms.Calendar{Window: algorithms.Day, Zone: berlin, From: 1}
	rule := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 6, Window: algorithms.Day, Calendar: day}
	// An instant, and when the day ends that is a little earlier, and from then on.
	for _, tt := range []struct{ at, before, after string }{
		{"2000-03-26T00:00:00+01:00", "2000-03-26T00:00:00+01:00", "2000-03-27T00:00:00+02:00"},
		{"2000-03-26T03:00:00+02:00", "2000-03-27T00:00:00+02:00", "2000-03-27T00:00:00+02:00"},
		{"2000-03-27T00:00:00+02:00", "2000-03-27T00:00:00+02:00", "2000-03-28T00:00:00+02:00"},
		{"2000-10-29T00:00:00+02:00", "2000-10-29T00:00:00+02:00", "2000-10-30T00:00:00+01:00"},
		{"2000-10-29T02:00:00+01:00", "2000-10-30T00:00:00+01:00", "2000-10-30T00:00:00+01:00"},
		{"2000-10-30T00:00:00+01:00", "2000-10-30T00:00:00+01:00", "2000-10-31T00:00:00+01:00"},
	} {
		at, before, after := instant(t, tt.at), instant(t, tt.before), instant(t, tt.after)
		onALine(t, time.Second, func(t *testing.T, l *line, s *Limiter) {
			time.Sleep(time.Until(at) - 2*time.Second) // virtual time
			well := l.other(t)
			n, other := s.cells(t, s.client, rule), well.cells(t, well.client, rule)
			denies := func(until time.Time) {
				t.Helper()
				for _, by := range []*cellNode{n, other} {
					all, err := by.ask("k", 1)
					if err != nil || all[0].Allowed || !near(all[0].Retry, time.Until(until)) {
						t.Errorf("%v from %s: %+v, want a denial for %v; %v", time.Since(at), tt.at, all[0].Decision, time.Until(until), err)
					}
				}
			}
			if !n.admits("k", 3) || !other.admits("k", 3) {
				t.Errorf("before %s not all of the limit is admitted", tt.at)
			}
			denies(before)
			time.Sleep(time.Until(at) - time.Microsecond)
			denies(before)
			time.Sleep(time.Microsecond)
			if isNew := before.Equal(at); isNew && (!n.admits("k", 3) || !other.admits("k", 3)) {
				t.Errorf("at %s not all of the new day's limit is admitted", tt.at)
			}
			denies(after)
		})
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
