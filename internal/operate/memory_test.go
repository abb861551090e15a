package operate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// What Redis has denied in a strict zone is denied without a call while that holds.

// A recaller is a node, in virtual time, that counts its calls for strict zones by what they name.
type recaller struct {
	t      *testing.T
	server *miniredis.Miniredis
	client *redis.Client
	redis  *limits.Redis
	zones  []*limits.Zone
	// calls are all calls of scripts that name a key with the text, by zone.
	calls map[string]*atomic.Int64
}

func (n *recaller) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *recaller) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.count(cmd)
		return next(ctx, cmd)
	}
}

func (n *recaller) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		for _, cmd := range all {
			n.count(cmd)
		}
		return next(ctx, all)
	}
}

func (n *recaller) count(cmd redis.Cmder) {
	text := ""
	for _, arg := range cmd.Args() {
		if part, ok := arg.(*string); ok {
			arg = *part
		}
		text += fmt.Sprint(arg, " ")
	}
	if strings.HasPrefix(text, "evalsha ") {
		for zone, calls := range n.calls {
			if strings.Contains(text, ":"+zone+":gauge") || strings.Contains(text, ":3:{") && strings.Contains(text, "}:"+zone+":") {
				calls.Add(1)
			}
		}
	}
}

// recallers runs a test with as many nodes that have the same zones and share one Redis.
func recallers(t *testing.T, nodes int, dress func(i int, o *limits.ZoneOptions), all []config.Settings, test func(t *testing.T, nodes []*recaller)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		var started []*recaller
		for range nodes {
			n := startRecaller(t, server, dress, all)
			defer n.end()
			started = append(started, n)
		}
		synctest.Wait()
		test(t, started)
	})
}

func startRecaller(t *testing.T, server *miniredis.Miniredis, dress func(i int, o *limits.ZoneOptions), all []config.Settings) *recaller {
	n := &recaller{t: t, server: server, client: clientOf(server), calls: map[string]*atomic.Int64{}}
	for _, s := range all {
		n.calls[s.Name] = new(atomic.Int64)
	}
	n.client.AddHook(n)
	n.redis = borrowed(n.client, "test", time.Second)
	// Nodes of one process would share the counters of one namespace.
	n.zones = dressed(t, n.redis, func(i int, o *limits.ZoneOptions) {
		dress(i, o)
		o.Namespace = fmt.Sprintf("%p", n)
	}, all...)
	n.redis.Replicator.Start()
	limits.Starting.End()       // no configuration starts here, which requests would wait for
	for _, z := range n.zones { // as of a configuration that is current: a process has just one
		for l := range z.EachWithDenials {
			l.Configure(time.Minute, n.redis)
		}
		if z.Slots != nil {
			z.Slots.Configure(time.Minute, n.redis)
		}
		z.ConfigureBans(n.redis)
	}
	return n
}

func (n *recaller) end() {
	for _, z := range n.zones {
		for l := range z.EachWithDenials {
			l.Detach(n.redis)
		}
		if z.Slots != nil {
			z.Slots.Detach(n.redis)
		}
		z.Release()
	}
	n.redis.Close()
	_ = n.client.Close()
}

// sleep has time pass here and in Redis.
func (n *recaller) sleep(d time.Duration) {
	time.Sleep(d)
	n.server.FastForward(d)
	synctest.Wait()
}

// ask sends a request, and has it end.
func (n *recaller) ask(r *http.Request) (denied bool, d answer.Denial) {
	e, err := limits.Evaluate(n.zones, r, clock.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	defer e.Free()
	if !e.Denied {
		if h := e.Hold(); h != nil {
			h.Replay(limits.Response{Status: http.StatusOK, At: clock.Now()})
		}
	}
	synctest.Wait()
	return e.Denied, e.Denial
}

// spend asks until a request is denied.
func (n *recaller) spend(key string) {
	for range 100 {
		if denied, _ := n.ask(request(key)); denied {
			return
		}
	}
	n.t.Fatalf("%q is never denied", key)
}

// made is how many calls f makes for a zone.
func (n *recaller) made(zone string, f func()) int64 {
	before := n.calls[zone].Load()
	f()
	return n.calls[zone].Load() - before
}

func strictZone(name string, kind algorithms.Kind, limit int64, window time.Duration) config.Settings {
	return config.Settings{Name: name, Kind: kind, SubWindows: 1, SyncRate: config.Strict, MaxKeys: 1000, Enforce: config.Enforce(1), Limits: []config.Rate{{Limit: limit, Window: window}}}
}

func plain(int, *limits.ZoneOptions) {}

// One client that is denied 10,000 times in 10 seconds over 10 nodes costs a call a second, node
// and set of rules, and one for each unit that comes free: in each algorithm, with a limit that
// comes with the request, and with two classes of requests.
func TestAFloodOfOneClientCostsFewCalls(t *testing.T) {
	for _, kind := range kinds {
		for _, sets := range []string{"", "from the request", "reserve"} {
			if kind == algorithms.LeakyBucket && sets == "reserve" {
				continue
			}
			s := strictZone("flood", kind, 10, time.Minute)
			requests := []*http.Request{request("e")}
			switch sets {
			case "from the request":
				s.Limits[0].From = "{http.request.header.L}"
				requests = []*http.Request{withLimit("3"), withLimit("5"), withLimit("7")}
			case "reserve":
				s.Reserve, _ = config.Reserves([]float64{0.4})
				s.Key = ""
				requests = []*http.Request{request("a"), request("a")}
				requests[1].Header.Set("K", "a")
				requests[1].Header.Set("Class", "other")
			}
			dress := func(_ int, o *limits.ZoneOptions) {
				if sets == "reserve" {
					o.ClassMatchers = []caddyhttp.MatcherSets{{{caddyhttp.MatchHeader{"Class": {"other"}}}}}
				}
			}
			recallers(t, 10, dress, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
				admitted, calls := 0, int64(0)
				for i := range 10_000 {
					if denied, _ := nodes[i%10].ask(requests[i/10%len(requests)]); !denied {
						admitted++
					}
					nodes[0].sleep(time.Millisecond)
				}
				for _, n := range nodes {
					calls += n.calls["flood"].Load()
				}
				most := int64(11*len(nodes)*len(requests) + admitted*len(nodes)*len(requests))
				if kind.Traits().Windowed || kind == algorithms.SlidingLog {
					most = int64(11*len(nodes)*len(requests) + admitted)
				}
				if calls > most || calls < 100 {
					t.Errorf("%v, %q: %d calls for 10,000 requests of which %d are admitted, want one a second and node, %d at most", kind, sets, calls, admitted, most)
				}
			})
		}
	}
}

// withLimit is a request that brings its limit.
func withLimit(n string) *http.Request {
	r := request("e")
	r.Header.Set("L", n)
	return r
}

// A limit of 10 a minute on several nodes admits what one counter admits, request by request. Two
// pauses are among them, after which units have come free.
func TestStrictAdmitsWhatOneCounterAdmits(t *testing.T) {
	for _, kind := range kinds {
		if kind == algorithms.SlidingLog {
			continue // its room returns by sixteenths of the window there
		}
		for nodes, perSecond := range map[int]int{3: 50, 10: 500, 30: 1} {
			s := strictZone("exact", kind, 10, time.Minute)
			recallers(t, nodes, plain, []config.Settings{s}, func(t *testing.T, all []*recaller) {
				s.SyncRate, s.Name = config.Local, "alone"
				alone := handler(t, nil, s)
				defer alone[0].Release()
				random := rand.New(rand.NewPCG(uint64(nodes), uint64(kind)))
				requests := 70 * min(perSecond, redistest.Times(10, 30))
				for i := range requests {
					e, err := limits.Evaluate(alone, request("e"), clock.Now())
					if err != nil {
						t.Fatal(err)
					}
					denied, _ := all[random.IntN(nodes)].ask(request("e"))
					if denied != e.Denied {
						t.Fatalf("%v, %d nodes, %d a second: request %d is denied by Redis: %t, by one counter: %t", kind, nodes, perSecond, i, denied, e.Denied)
					}
					e.Free()
					pause := time.Second / time.Duration(perSecond)
					if i%(requests/3) == requests/3-1 && perSecond > 1 {
						pause = 25 * time.Second
					}
					all[0].sleep(pause)
				}
			})
		}
	}
}

// No slot is asked for where the memory denies.
func TestTheMemoryIsLookedAtBeforeASlotIsAsked(t *testing.T) {
	s := strictZone("slots", algorithms.FixedWindow, 2, time.Hour)
	s.Concurrent = 5
	recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
		n := nodes[0]
		n.spend("e")
		commands := n.server.CommandCount()
		for range 20 {
			if denied, _ := n.ask(request("e")); !denied {
				t.Error("admitted")
			}
		}
		if made := n.server.CommandCount() - commands; made > 0 {
			t.Errorf("%d commands for 20 requests that the memory denies, want none", made)
		}
	})
}

// No other zone gives a unit, and gets it back, to a request that the memory of one zone denies,
// whatever their order.
func TestNoZoneIsAskedWhereTheMemoryOfAnotherDenies(t *testing.T) {
	for _, first := range []string{"a", "z"} {
		tight, wide := strictZone("tight", algorithms.FixedWindow, 2, time.Hour), strictZone(first+" wide", algorithms.SlidingWindow, 1000, time.Hour)
		for _, all := range [][]config.Settings{{tight, wide}, {wide, tight}} {
			recallers(t, 1, plain, all, func(t *testing.T, nodes []*recaller) {
				n := nodes[0]
				n.spend("e")
				asked := n.made(wide.Name, func() {
					for range 20 {
						if denied, d := n.ask(request("e")); !denied || d.Zone != "tight" {
							t.Errorf("denied %t by %q", denied, d.Zone)
						}
					}
				})
				if asked != 0 {
					t.Errorf("the other zone is asked %d times, want none", asked)
				}
			})
		}
	}
}

// A zone that would be asked first, as its table has no slot for the key, is not asked either.
func TestTheMemoryGoesBeforeTheOrderOfZones(t *testing.T) {
	tight, full := strictZone("tight", algorithms.FixedWindow, 2, time.Hour), strictZone("full", algorithms.SlidingWindow, 1000, time.Hour)
	full.MaxKeys = 1
	recallers(t, 1, plain, []config.Settings{full, tight}, func(t *testing.T, nodes []*recaller) {
		n := nodes[0]
		n.ask(request("z"))
		n.spend("e")
		e, err := limits.Evaluate(n.zones, request("e"), clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer e.Free()
		for _, z := range n.zones {
			if _, asked := e.Of(z); asked != (z.Name == "tight") {
				t.Errorf("%s: asked %t", z.Name, asked)
			}
		}
	})
}

// A zone in shadow mode has its memory, which denies nobody and is looked at after all others.
func TestTheMemoryOfAZoneInShadow(t *testing.T) {
	for _, kind := range kinds {
		shadow, other := strictZone("shadow", kind, 2, time.Hour), strictZone("other", kind, 8, time.Hour)
		shadow.Enforce = config.Enforce(0)
		if kind == algorithms.LeakyBucket {
			shadow.Queue, other.Queue = 1, 7
		}
		recallers(t, 1, plain, []config.Settings{shadow, other}, func(t *testing.T, nodes []*recaller) {
			n := nodes[0]
			shadowed := 0
			asked := n.made("shadow", func() {
				for range 7 {
					e, err := limits.Evaluate(n.zones, request("e"), clock.Now())
					if err != nil {
						t.Fatal(err)
					}
					if e.Denied {
						t.Errorf("%v: denied by a zone in shadow mode", kind)
					}
					if e.WouldDeny.Zone == "shadow" {
						shadowed++
					}
					e.Free()
					synctest.Wait()
				}
			})
			if shadowed != 5 || asked > 4 { // NOSCRIPT is one
				t.Errorf("%v: %d of 7 would be denied, by %d calls; want 5, by at most 4", kind, shadowed, asked)
			}
		})
	}
}

// Explain neither fills the memory, nor is answered from it.
func TestExplainAndTheMemory(t *testing.T) {
	s := strictZone("explained", algorithms.FixedWindow, 2, time.Hour)
	recallers(t, 2, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
		a, b := nodes[0], nodes[1]
		a.spend("e")
		for _, n := range nodes {
			if made := n.made("explained", func() {
				if said := n.explain(); said.Decision != answer.Denied {
					t.Errorf("explained as %v, want denied", said.Decision)
				}
			}); made == 0 {
				t.Error("explain asked nobody")
			}
		}
		if made := b.made("explained", func() { b.ask(request("e")) }); made == 0 {
			t.Error("explain has filled the memory")
		}
		a.sleep(1100 * time.Millisecond)
		a.explain()
		if made := a.made("explained", func() { a.ask(request("e")) }); made == 0 {
			t.Error("explain has renewed the memory")
		}
	})
}

// A remembered denial is a step to a ban like each other one.
//
// bubble: recallers run there.
func TestARememberedDenialIsAStepToABan(t *testing.T) {
	s := strictZone("banning", algorithms.FixedWindow, 1, time.Hour)
	s.Ban.For, s.Ban.After = time.Minute, config.Rate{Limit: 5, Window: time.Minute}
	recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
		n := nodes[0]
		n.ask(request("e"))
		var reasons []answer.Reason
		for range 8 {
			_, d := n.ask(request("e"))
			reasons = append(reasons, d.Reason)
		}
		if i := slices.Index(reasons, answer.Banned); i < 4 || i > 6 {
			t.Errorf("the denials are %v, want a ban after five", reasons)
		}
	})
}

// What an operator changes holds at once: another number is another rule, unlimited and deny ask no
// limit, and a reset ends the memory.
func TestOverridesAndResetsGoBeforeTheMemory(t *testing.T) {
	for _, change := range []string{"5", control.Unlimited, control.Deny, "reset"} {
		s := strictZone("changed", algorithms.SlidingWindow, 2, time.Hour)
		recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
			n := nodes[0]
			n.spend("e")
			k, _ := n.zones[0].KeyOf(request("e"))
			record, target := limits.ControlOf(n.redis, ""), control.Target{Zone: "changed", Key: &k.ID}
			var err error
			if change == "reset" {
				_, _, err = record.Reset(t.Context(), control.Change{Target: target, For: time.Hour})
				time.Sleep(time.Millisecond)
			} else {
				_, err = record.Change(t.Context(), control.Change{Target: target, Body: control.Body{Limit: change}, For: time.Minute})
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if denied, _ := n.ask(request("e")); denied != (change == control.Deny) {
				t.Errorf("after %s: denied %t", change, denied)
			}
		})
	}
}

// A key that finds no slot in a full table shares a counter, and Redis is not asked for it. Once it
// has a slot, it begins at 0 there, and Redis is asked.
func TestAKeyThatGetsASlotBeginsAtZero(t *testing.T) {
	for _, kind := range kinds {
		s := strictZone("full", kind, 4, time.Minute)
		s.MaxKeys = 1
		recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
			n, other := nodes[0], ""
			stripe := func(key string) uint64 {
				k, _ := n.zones[0].KeyOf(request(key))
				return keys.KeyOf(k.Raw).A >> 58 // where a slot can become another's
			}
			for i := 0; other == "" || stripe(other) != stripe("e"); i++ {
				other = fmt.Sprint("other", i)
			}
			n.ask(request("e"))
			admitted := 0
			spend := func() {
				for range 6 {
					if denied, _ := n.ask(request(other)); !denied {
						admitted++
					}
				}
			}
			if made := n.made("full", spend); made != 0 {
				t.Errorf("%v: Redis is asked %d times for a key without a slot, want none", kind, made)
			}
			k, _ := n.zones[0].KeyOf(request("e"))
			record, target := limits.ControlOf(n.redis, ""), control.Target{Zone: "full", Key: &k.ID}
			if _, _, err := record.Reset(t.Context(), control.Change{Target: target, For: time.Hour}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second) // and the slot can be another's
			spend()
			if want := 8; !kind.Traits().Queues && admitted != want || admitted > want {
				t.Errorf("%v: %d were admitted, want %d", kind, admitted, want)
			}
			time.Sleep(3 * time.Minute)
			if made := n.made("full", func() { n.ask(request(other)) }); made == 0 {
				t.Errorf("%v: Redis is not asked for a key that has a slot alone", kind)
			}
		})
	}
}

// Another node's denial is not remembered here: this node asks once, then it knows. A node that has
// just started, or was given another Redis, remembers nothing.
func TestEachNodeRemembersForItself(t *testing.T) {
	s := strictZone("each", algorithms.TokenBucket, 2, time.Hour)
	recallers(t, 3, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
		nodes[0].spend("e")
		for i, n := range nodes[1:] {
			made := n.made("each", func() {
				for range 20 {
					if denied, _ := n.ask(request("e")); !denied {
						t.Error("admitted")
					}
				}
			})
			if made < 1 || made > 2 {
				t.Errorf("node %d makes %d calls, want one, and one that loads the script", i+1, made)
			}
		}
		other := miniredis.NewMiniRedis()
		defer other.Close()
		fresh := startRecaller(t, other, plain, []config.Settings{s})
		defer fresh.end()
		synctest.Wait()
		if denied, _ := fresh.ask(request("e")); denied {
			t.Error("another Redis denies by the memory of the first one")
		}
	})
}

// While Redis is lost on_redis_loss decides, which is no answer of Redis and is not remembered:
// when it is back, the next request is denied where Redis has heard that the limit is spent, and
// only there.
func TestWhatALossSaysIsNotRemembered(t *testing.T) {
	for loss, spent := range map[config.OnRedisLoss]bool{config.LossLocal: true, config.LossDivide: true, config.LossAllow: false, config.LossDeny: false} {
		s := strictZone(fmt.Sprint("lost ", loss), algorithms.TokenBucket, 2, time.Hour)
		s.OnRedisLoss = loss
		recallers(t, 1, plain, []config.Settings{s}, func(t *testing.T, nodes []*recaller) {
			n := nodes[0]
			n.ask(request("e"))
			n.server.SetError("LOADING Redis is loading the dataset in memory")
			for range 5 {
				n.ask(request("e"))
			}
			n.server.SetError("")
			asked := n.made(s.Name, func() {
				n.sleep(300 * time.Millisecond)
				if denied, _ := n.ask(request("e")); denied != spent {
					t.Errorf("%v: Redis is back: denied %t, want %t", loss, denied, spent)
				}
			})
			if asked == 0 {
				t.Errorf("%v: Redis is back, and not asked", loss)
			}
		})
	}
}
