package table

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What goroutines see of a table at once must be what they could have seen one after another, by
// the rules that are written out here once more in the plainest way (linearizability: Herlihy and
// Wing, 1990). Time stands still while they run and goes on by a third of the window between: a
// step.
const (
	linearSteps  = 6
	linearLimit  = 4
	linearWindow = time.Hour
)

// linearOp is a request for one unit at a step, or what refunds one that was got at the step
// taken.
type linearOp struct {
	key, step int
	back      bool
	taken     int
}

// linearSaid is the answer to a request.
type linearSaid struct {
	allowed   bool
	remaining int64
}

// linearState is what was admitted, by steps; for a bucket, what is in it in got[0] and the step it
// is of in got[1].
type linearState [linearSteps]int64

// linearRule is an algorithm's sequential specification: how much counts at a step, and what
// becomes of the state by an amount that was got at a step.
type linearRule struct {
	used   func(s linearState, step int) int64
	change func(s linearState, step, got int, n int64) linearState
}

func change(s linearState, _, got int, n int64) linearState {
	s[got] += n
	return s
}

var (
	fixedRule = linearRule{func(s linearState, step int) (n int64) {
		for i := step - step%3; i <= step; i++ {
			n += s[i]
		}
		return n
	}, change}

	// slidingRule weighs the window before by what is left of it, in thirds, rounded up.
	slidingRule = linearRule{func(s linearState, step int) (n int64) {
		n = fixedRule.used(s, step)
		if begin := step - step%3; begin > 0 {
			n += (fixedRule.used(s, begin-1)*int64(3-step%3) + 2) / 3
		}
		return n
	}, change}

	logRule = linearRule{func(s linearState, step int) (n int64) {
		for i := max(0, step-2); i <= step; i++ {
			n += s[i]
		}
		return n
	}, change}

	// bucketRule drains one a step: the limit of the bucket is three in a window.
	bucketRule = linearRule{func(s linearState, step int) int64 {
		return max(0, s[0]-(int64(step)-s[1]))
	}, func(s linearState, step, _ int, n int64) linearState {
		level := max(0, s[0]-(int64(step)-s[1]))
		s[0], s[1] = max(0, level+n), int64(step)
		return s
	}}
)

func (r linearRule) model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) (byKey [][]porcupine.Operation) {
			for _, o := range history {
				key := o.Input.(linearOp).key
				for len(byKey) <= key {
					byKey = append(byKey, nil)
				}
				byKey[key] = append(byKey[key], o)
			}
			return byKey
		},
		Init: func() any { return linearState{} },
		Step: func(state, input, output any) (bool, any) {
			s, op := state.(linearState), input.(linearOp)
			if op.back {
				return true, r.change(s, op.step, op.taken, -1)
			}
			used := r.used(s, op.step)
			want := linearSaid{used < linearLimit, max(0, linearLimit-used)}
			if want.allowed {
				s = r.change(s, op.step, op.step, 1)
				want.remaining--
			}
			return output.(linearSaid) == want, s
		},
	}
}

// linearRun has goroutines use a table and writes down what they do, by a clock that counts.
type linearRun[S any] struct {
	alg   algorithms.Params
	table *Table[S]
	clock atomic.Int64

	mu      sync.Mutex
	history []porcupine.Operation
}

func (l *linearRun[S]) note(client int, op linearOp, do func() linearSaid) {
	call := l.clock.Add(1)
	updates := do()
	end := l.clock.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = append(l.history, porcupine.Operation{ClientId: client, Input: op, Call: call, Output: updates, Return: end})
}

// had is a unit that a goroutine got.
type had struct {
	key, step int
	taken     Taken
}

// work is one goroutine's part of a step. It returns what it still has.
func (l *linearRun[S]) work(client, step int, random *rand.Rand, has []had) []had {
	const keyCount, operations = 3, 7
	now := t0 - t0%int64(linearWindow) + int64(step)*int64(linearWindow)/3
	for range operations {
		if len(has) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(has))
			h := has[i]
			has = append(has[:i], has[i+1:]...)
			l.note(client, linearOp{key: h.key, step: step, back: true, taken: h.step}, func() linearSaid {
				l.table.Refund(l.alg.Compile(), keys.KeyOf(raw(h.key)), h.taken, 1)
				return linearSaid{}
			})
			continue
		}
		key := random.IntN(keyCount)
		l.note(client, linearOp{key: key, step: step}, func() linearSaid {
			taken := l.table.Take(l.alg.Compile(), keys.KeyOf(raw(key)), raw(key), now, 1, allWaits)
			if taken.Allowed {
				has = append(has, had{key, step, taken})
			}
			return linearSaid{taken.Allowed, taken.Remaining}
		})
		runtime.Gosched()
	}
	return has
}

func testLinear[S any](t *testing.T, alg algorithms.Params, r linearRule) {
	const goroutines, rounds = 4, 150
	for round := range uint64(rounds) {
		l := &linearRun[S]{alg: alg, table: of[S](alg, 100)}
		l.table.Configure(SyncConfig{Params: alg}, 100)
		var has [goroutines][]had
		for step := range linearSteps {
			var wg sync.WaitGroup
			start := make(chan struct{})
			for g := range goroutines {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(round, uint64(step*goroutines+g)))
					<-start
					has[g] = l.work(g, step, random, has[g])
				})
			}
			close(start)
			wg.Wait()
		}
		if !porcupine.CheckOperations(r.model(), l.history) {
			t.Fatalf("round %d: no order of these %d operations explains what they saw", round, len(l.history))
		}
	}
}

func TestTableIsLinearizable(t *testing.T) {
	for _, c := range []struct {
		alg  algorithms.Params
		rule linearRule
	}{
		{algorithms.Params{Kind: algorithms.FixedWindow, Limit: linearLimit}, fixedRule}, {algorithms.Params{Kind: algorithms.SlidingWindow, Limit: linearLimit}, slidingRule},
		{algorithms.Params{Kind: algorithms.SlidingLog, Limit: linearLimit}, logRule}, {algorithms.Params{Kind: algorithms.TokenBucket, Limit: 3, Burst: linearLimit}, bucketRule},
		{algorithms.Params{Kind: algorithms.GCRA, Limit: 3, Burst: linearLimit}, bucketRule},
	} {
		c.alg.Window = linearWindow
		run := algorithms.ByState(c.alg.Kind, testLinear[algorithms.WindowState], testLinear[algorithms.BucketState], testLinear[algorithms.LogState])
		t.Run(c.alg.Kind.String(), func(t *testing.T) { run(t, c.alg, c.rule) })
	}
}
