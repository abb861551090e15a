package strict

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A remembering is a node with a zone, in virtual time, with a Redis that runs the real scripts.
type remembering struct {
	*Limiter
	t      *testing.T
	memory *Memory
	server *miniredis.Miniredis
	// calls are those that were made. delay is how long they are on their way, replies how long the
	// next answer is, and fail what becomes of calls.
	calls, delay, replies atomic.Int64
	fail                  atomic.Pointer[error]
}

// DialHook, ProcessHook and ProcessPipelineHook see what the client does.
func (n *remembering) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts calls.
//
// bubble: of each test.
func (n *remembering) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			n.calls.Add(1)
		}
		time.Sleep(time.Duration(n.delay.Load()))
		if err := n.fail.Load(); err != nil {
			cmd.SetErr(*err)
			return *err
		}
		err := next(ctx, cmd)
		if time.Sleep(time.Duration(n.replies.Swap(0))); ctx.Err() != nil {
			err = context.Cause(ctx)
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook leaves pipelines as they are.
func (n *remembering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// wrongType is what Redis says of a key that another program has.
type wrongType struct{}

func (wrongType) Error() string {
	return "WRONGTYPE Operation against a key holding the wrong kind of value"
}
func (wrongType) RedisError() {}

const memorized = "z"

// remember runs a test with a node.
func remember(t *testing.T, test func(t *testing.T, n *remembering)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		c := redis.NewClient(&redis.Options{
			Dialer:     func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			MaxRetries: -1, DialerRetries: 1, PipelinePoolSize: -1, DisableIdentity: true, ContextTimeoutEnabled: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer c.Close()
		n := &remembering{Limiter: New(c, "test", time.Second), t: t, server: server}
		c.AddHook(n)
		defer n.Close()
		n.memory = n.Memory(memorized, 100)
		defer n.memory.Release()
		test(t, n)
	})
}

// sleep has time pass here and in Redis.
func (n *remembering) sleep(d time.Duration) {
	time.Sleep(d)
	n.server.FastForward(d)
	synctest.Wait()
}

// ask asks as a request does: the memory first.
func (n *remembering) ask(rules ...Rule) (all []Verdict, admitted, asked bool) {
	n.t.Helper()
	if all, ok := n.memory.Recall(rules, id(1), 1, clock.Now(), nil); ok {
		return all, false, false
	}
	all, g, err := n.Take(n.t.Context(), memorized, rules, id(1), 1, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	synctest.Wait()
	return all, g.Admitted(), true
}

// spend asks until Redis denies.
func (n *remembering) spend(rules ...Rule) (denied []Verdict) {
	n.t.Helper()
	for {
		all, admitted, asked := n.ask(rules...)
		switch {
		case !asked:
			n.t.Fatal("it is denied by the memory before Redis denies")
		case !admitted:
			return all
		}
	}
}

// remembers reports whether the next request would be denied without a call.
func (n *remembering) remembers(rules ...Rule) bool {
	_, ok := n.memory.Recall(rules, id(1), 1, clock.Now(), nil)
	return ok
}

// held is how many denials are remembered of the key.
func (n *remembering) held() int {
	st := n.memory.stripe(id(1))
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.keys[id(1)].denials)
}

func perWindow(kind algorithms.Kind, limit int64, window time.Duration) Rule {
	return Rule{Kind: kind, Limit: limit, Window: window}
}

var allKinds = []algorithms.Kind{
	algorithms.TokenBucket, algorithms.GCRA, algorithms.LeakyBucket,
}

// A denial holds until a second after its call was made, in each algorithm, and no denial that it
// makes prolongs it. An admission is always Redis'.
func TestADenialIsRememberedForASecondOfItsCall(t *testing.T) {
	for _, kind := range allKinds {
		remember(t, func(t *testing.T, n *remembering) {
			rule := perWindow(kind, 3, time.Hour)
			n.delay.Store(int64(100 * time.Millisecond)) // so that it is answered later than made
			n.spend(rule)
			calls := n.calls.Load()
			for range 17 { // until 0.95 s after the call
				n.sleep(50 * time.Millisecond)
				if _, admitted, asked := n.ask(rule); admitted || asked {
					t.Fatalf("%v: admitted %t, asked %t, want a denial without a call", kind, admitted, asked)
				}
			}
			n.sleep(50 * time.Millisecond)
			if _, admitted, asked := n.ask(rule); admitted || !asked {
				t.Errorf("%v: a second after the call: admitted %t, asked %t, want a call that denies", kind, admitted, asked)
			}
			if got := n.calls.Load() - calls; got != 1 {
				t.Errorf("%v: %d calls, want 1", kind, got)
			}
		})
	}
}

// Who has waited as told is asked for, and admitted, in each algorithm: no memory outlives the
// wait, whatever was denied meanwhile. What it tells is what is left of the wait.
func TestAMemoryEndsWithTheWait(t *testing.T) {
	for _, kind := range allKinds {
		remember(t, func(t *testing.T, n *remembering) {
			rule := perWindow(kind, 4, 2*time.Second)
			if kind == algorithms.SlidingWindow {
				rule.Buckets = 8
			}
			first := n.spend(rule)[0].Decision
			for wait := first.Retry; ; {
				step := min(wait, 40*time.Millisecond)
				if step == wait {
					n.sleep(wait)
					break
				}
				n.sleep(step)
				wait -= step
				all, admitted, asked := n.ask(rule)
				d := all[0].Decision
				if admitted || d.Allowed {
					t.Fatalf("%v: admitted %s before the wait of %s is over", kind, wait, first.Retry)
				}
				if off := d.Retry - wait; !asked && off != 0 || off < -2*time.Microsecond || off > 2*time.Microsecond {
					t.Fatalf("%v: told to wait %s, asked %t, want %s", kind, d.Retry, asked, wait)
				}
			}
			if _, admitted, asked := n.ask(rule); !admitted || !asked {
				t.Errorf("%v: admitted %t, asked %t after the wait of %s, want both", kind, admitted, asked, first.Retry)
			}
		})
	}
}

// A bucket's waits pass while its denial is remembered.
func TestABucketIsNotRestatedAsItWasTold(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule := perWindow(algorithms.TokenBucket, 10, time.Minute)
		first := n.spend(rule)[0].Decision
		n.sleep(500 * time.Millisecond)
		all, _, asked := n.ask(rule)
		d := all[0].Decision
		half := 500 * time.Millisecond
		if asked || d.Retry != first.Retry-half || d.Next != first.Next-half || d.Reset != first.Reset-half {
			t.Errorf("half a second later: asked %t, %+v; first told %+v", asked, d, first)
		}
	})
}

// A limit of nothing tells the same wait at any time: there is none that passes.
func TestALimitOfNothingHasNoWaitThatPasses(t *testing.T) {
	for _, kind := range allKinds {
		remember(t, func(t *testing.T, n *remembering) {
			none := perWindow(kind, 0, time.Minute)
			n.spend(none)
			n.sleep(300 * time.Millisecond)
			if all, _, asked := n.ask(none); asked || all[0].Decision.Retry != time.Minute {
				t.Errorf("%v: asked %t, %+v, want a wait of a minute", kind, asked, all[0].Decision)
			}
		})
	}
}

// A refund of this node ends the memory when it is queued: the next request is asked for, and gets
// the unit.
func TestARefundEndsTheMemory(t *testing.T) {
	for _, kind := range allKinds[:3] {
		remember(t, func(t *testing.T, n *remembering) {
			rule := perWindow(kind, 1, time.Hour)
			_, g, err := n.Take(t.Context(), memorized, []Rule{rule}, id(1), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			n.spend(rule)
			if !n.remembers(rule) {
				t.Fatalf("%v: the denial is not remembered", kind)
			}
			n.delay.Store(int64(20 * time.Millisecond))
			n.Refund(g, nil)
			if n.remembers(rule) {
				t.Errorf("%v: the memory outlives a refund", kind)
			}
			if _, admitted, _ := n.ask(rule); !admitted {
				t.Errorf("%v: the refunded unit is not given", kind)
			}
		})
	}
}

// An answer that denies leaves no memory while a refund of the key is on its way: not one that came
// while the call was under way, nor one of the clients that have left meanwhile.
func TestLeaversLeaveNoMemory(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule, none := perWindow(algorithms.TokenBucket, 4, time.Hour), perWindow(algorithms.TokenBucket, 0, time.Hour)
		n.spend(none) // Redis knows the script then
		n.delay.Store(int64(50 * time.Millisecond))
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 5)
		go func() { // the first call, so that the others share the next one
			_, _, err := n.Take(t.Context(), memorized, []Rule{none}, id(1), 1, nil)
			done <- err
		}()
		synctest.Wait()
		for i := range 5 {
			of := ctx
			if i == 4 {
				of = t.Context()
			}
			go func() {
				_, _, err := n.Take(of, memorized, []Rule{rule}, id(1), 1, nil)
				done <- err
			}()
			synctest.Wait()
		}
		time.Sleep(75 * time.Millisecond) // the call for the five is under way
		leave()
		time.Sleep(40 * time.Millisecond) // it is answered: four units for those who left
		if n.remembers(rule) {
			t.Error("it is remembered that the fifth was denied, while four units come back")
		}
		if _, admitted, _ := n.ask(rule); !admitted {
			t.Error("a unit that came back is not given")
		}
		for range 6 {
			<-done
		}
	})
}

// What is not known to be answered ends the memory of its key: a call that fails, or that is late.
func TestAFailedOrLateCallEndsTheMemory(t *testing.T) {
	for _, late := range []bool{false, true} {
		remember(t, func(t *testing.T, n *remembering) {
			rule, other := perWindow(algorithms.TokenBucket, 1, time.Hour), perWindow(algorithms.TokenBucket, 5, time.Hour)
			n.spend(rule)
			if !n.remembers(rule) {
				t.Fatal("the denial is not remembered")
			}
			if late {
				n.replies.Store(int64(700 * time.Millisecond))
				n.SetTimeout(300 * time.Millisecond)
			} else {
				n.fail.Store(new(error(wrongType{})))
			}
			go n.Take(t.Context(), memorized, []Rule{other}, id(1), 1, nil)
			if time.Sleep(800 * time.Millisecond); n.Down() || n.remembers(rule) {
				t.Errorf("late %t: down %t; the memory outlives a call of which nobody knows what it did", late, n.Down())
			}
			n.fail.Store(nil)
		})
	}
}

// A reset of the key ends the memory, as soon as this node knows of it.
func TestAResetEndsTheMemory(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule := perWindow(algorithms.TokenBucket, 1, time.Hour)
		n.spend(rule)
		of := reset.Reset{Stamp: 1, At: clock.Now(), Until: clock.Now() + int64(time.Hour)}
		n.Reset(memorized, &reset.Set{Keys: map[[16]byte]reset.Reset{id(1): of}})
		if n.remembers(rule) {
			t.Error("the memory outlives a reset")
		}
	})
}

// A circuit that opens ends the memory, and while it is open none is looked at.
func TestAnOutageEndsTheMemory(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule := perWindow(algorithms.TokenBucket, 1, time.Hour)
		n.spend(rule)
		n.trip(id(1), errors.New("gone"))
		if n.remembers(rule) {
			t.Error("what Redis has denied is denied while it is lost")
		}
		n.sleep(200 * time.Millisecond)
		if n.Down() || n.remembers(rule) {
			t.Errorf("down %t; the memory outlives an outage", n.Down())
		}
	})
}

// Rules that count denied requests, or that responses refund, are asked for each time.
func TestWhatIsNeverRemembered(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		for i, change := range []func(*Rule){func(r *Rule) { r.CountsDenied = true }, func(r *Rule) { r.Reserves = true }} {
			rule := perWindow(algorithms.TokenBucket, 1, time.Hour)
			change(&rule)
			n.spend(rule)
			if n.remembers(rule) || n.held() > 0 {
				t.Errorf("rule %d is remembered", i)
			}
			n.sleep(2 * time.Second)
		}
	})
}

// A memory holds no more keys than it may, and drops what is over within two seconds.
func TestAMemoryIsBoundedAndSwept(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule := []Rule{perWindow(algorithms.TokenBucket, 0, time.Hour)}
		n.memory.Configure(3)
		n.Memory(memorized, 1).Release() // of a configuration that is rejected
		for i := range 10 {
			if _, _, err := n.Take(t.Context(), memorized, rule, id(i), 1, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := n.memory.keys.Load(); got != 3 {
			t.Errorf("%d keys, want 3", got)
		}
		n.sleep(2 * time.Second)
		held := 0
		for i := range n.memory.stripes {
			held += len(n.memory.stripes[i].keys)
		}
		if held != 0 || !n.memory.IsEmpty() || n.memory.sweeping.Load() {
			t.Errorf("%d keys two seconds later, %d counted, swept on: %t; want none", held, n.memory.keys.Load(), n.memory.sweeping.Load())
		}
		if _, _, err := n.Take(t.Context(), memorized, rule, id(1), 1, nil); err != nil || n.memory.IsEmpty() {
			t.Errorf("after a rest: %v, nothing remembered: %t", err, n.memory.IsEmpty())
		}
	})
}

// A call that denies answers all who wait for the next one with the same rules, and nobody else.
func TestADenialAnswersThoseWhoWait(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule, wider := perWindow(algorithms.TokenBucket, 1, time.Hour), perWindow(algorithms.TokenBucket, 2, time.Hour)
		n.spend(rule)
		n.sleep(2 * time.Second)
		n.delay.Store(int64(50 * time.Millisecond))
		calls, answers := n.calls.Load(), make(chan string, 100)
		ask := func(rule Rule) {
			go func() {
				_, g, err := n.Take(t.Context(), memorized, []Rule{rule}, id(1), 1, nil)
				answers <- fmt.Sprint(rule.Limit, " ", g.Admitted(), " ", err)
			}()
			synctest.Wait()
		}
		told := func(n int) map[string]int {
			got := map[string]int{}
			for range n {
				got[<-answers]++
			}
			return got
		}
		for range 50 {
			ask(rule)
		}
		if got := told(50); got["1 false <nil>"] != 50 || n.calls.Load() != calls+1 {
			t.Errorf("answers %v by %d calls, want 50 denials by one", got, n.calls.Load()-calls)
		}
		ask(rule)
		ask(rule)
		ask(wider)
		if got := told(3); got["1 false <nil>"] != 2 || got["2 true <nil>"] != 1 || n.calls.Load() != calls+3 {
			t.Errorf("answers %v by %d calls, want two denials by one, and an admission by another", got, n.calls.Load()-calls-1)
		}
	})
}

// A closed Limiter remembers nothing: another Redis decides by then.
func TestAClosedLimiterRemembersNothing(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		rule := perWindow(algorithms.TokenBucket, 1, time.Hour)
		n.spend(rule)
		n.Close()
		if n.remembers(rule) {
			t.Error("a closed Limiter denies")
		}
	})
}

// Who is admitted has nothing told by an older denial any more, however soon the next request is.
func TestAnAdmissionEndsTheMemoryBeforeItIsTold(t *testing.T) {
	remember(t, func(t *testing.T, n *remembering) {
		narrow, wide := perWindow(algorithms.GCRA, 3, time.Minute), perWindow(algorithms.GCRA, 9, time.Minute)
		n.spend(narrow)
		told := make(chan struct{})
		st := n.memory.stripe(id(1))
		st.mu.Lock() // so that nothing is forgotten
		go func() {
			defer close(told)
			if _, g, err := n.Take(t.Context(), memorized, []Rule{wide}, id(1), 1, nil); err != nil || !g.Admitted() {
				t.Errorf("Take() = %+v, %v", g, err)
			}
		}()
		for range 100_000 {
			runtime.Gosched()
			select {
			case <-told:
				t.Error("it is told that it is admitted while a denial of less is remembered")
			default:
			}
			if t.Failed() {
				break
			}
		}
		st.mu.Unlock()
		<-told
		if n.remembers(narrow) {
			t.Error("the denial is remembered")
		}
	})
}

// Calls by other windows of a zone go beside each other. What one denied is not remembered where
// another was admitted since it was made, whose answer came first.
func TestADenialThatWasOvertakenIsNotRemembered(t *testing.T) {
	for _, kind := range allKinds[:2] {
		remember(t, func(t *testing.T, n *remembering) {
			one, two := []Rule{perWindow(kind, 3, time.Minute)}, []Rule{perWindow(kind, 9, time.Minute), perWindow(kind, 9, time.Hour)}
			if _, g, err := n.Take(t.Context(), memorized, two, id(1), 3, nil); err != nil || !g.Admitted() {
				t.Fatalf("%v: %+v, %v", kind, g, err)
			}
			n.sleep(time.Millisecond)
			n.replies.Store(int64(200 * time.Millisecond)) // the denial is made and under way
			go func() { _, _, _ = n.Take(t.Context(), memorized, one, id(1), 1, nil) }()
			synctest.Wait()
			if _, g, err := n.Take(t.Context(), memorized, two, id(1), 1, nil); err != nil || !g.Admitted() {
				t.Fatalf("%v: %+v, %v", kind, g, err)
			}
			n.sleep(300 * time.Millisecond)
			if n.remembers(one...) {
				t.Errorf("%v: a denial is remembered that is older than an admission", kind)
			}
			n.ask(one...)
			if !n.remembers(one...) {
				t.Errorf("%v: a denial is not remembered, beside which nothing was under way", kind)
			}
		})
	}
}
