package ratesync

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// unfilled runs two nodes with more keys than they hold, over reloads that change the limit and
// max_keys, with a store that loses all fills so often, 0 for never. It returns how much was
// admitted, and how many losses there were.
func unfilled(t *testing.T, p algorithms.Params, seed uint64, every time.Duration) (admitted, losses int64) {
	synctest.Test(t, func(t *testing.T) {
		const rate, step, length = time.Second, 100 * time.Millisecond, 5 * time.Minute
		random := rand.New(rand.NewPCG(seed, 17))
		store, net := newLuaStore(t), &network{random: rand.New(rand.NewPCG(seed, 18))}
		defer store.state.Close()
		s := &schedule[algorithms.BucketState]{alg: p}
		s.name()
		var nodes [2]*member[algorithms.BucketState]
		load := func(m *member[algorithms.BucketState], most int) {
			m.table.Configure(table.SyncConfig{
				Params: m.alg, Rate: rate, Early: true, Waker: m.source.Waker, After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
			}, most)
			m.rep.Attach(m.source, rate)
		}
		for i := range nodes {
			m := &member[algorithms.BucketState]{table: tableOf[algorithms.BucketState](p, 2), alg: p}
			m.source, m.rep = NewSource(m.table, s.spec), NewReplicator(&wire{net: net, store: store}, "test", time.Second, wallClock, zap.NewNop())
			load(m, 2)
			nodes[i] = m
			defer m.rep.Close()
			defer m.source.Detach()
		}
		take := func(m *member[algorithms.BucketState], key int) bool {
			return m.table.Take(m.alg.Compile(), keys.KeyOf(rawKey(key)), rawKey(key), wallClock(), 1, 0).Allowed
		}
		const all = 5
		next := every
		for passed := time.Duration(0); passed < length; passed += step {
			for _, m := range nodes {
				if take(m, random.IntN(all)) {
					admitted++
				}
			}
			if every > 0 && passed >= next {
				next += every
				losses++
				store.unfill()
			}
			if passed%(20*time.Second) == 0 {
				for _, m := range nodes {
					m.alg.Limit = p.Limit + int64(passed/(20*time.Second)%3)*p.Limit/2
					load(m, 2+int(passed/(20*time.Second)%2))
					m.table.Sweep(wallClock())
				}
			}
			time.Sleep(step)
		}
		time.Sleep(3 * p.Window)
		for key := range all {
			for i, m := range nodes {
				if !take(m, key) {
					t.Errorf("node %d denies key %d after a rest in which its bucket drains", i, key)
				}
			}
		}
	})
	return admitted, losses
}

// A bucket that loses its fill alone admits no more for it than a node sends in a sync, also where
// keys have no place of their own and limits change, and denies nobody for ever.
//
// bubble: unfilled runs in one.
func TestAnUnfilledBucketAdmitsWhatANodeSendsInASync(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]algorithms.Params{
		"token_bucket": {Kind: algorithms.TokenBucket, Limit: 20, Window: time.Minute, Burst: 30},
		"gcra":         {Kind: algorithms.GCRA, Limit: 20, Window: time.Minute, Burst: 5},
		"leaky_bucket": {Kind: algorithms.LeakyBucket, Limit: 20, Window: time.Minute, Queue: 10},
	} {
		if skipRaced(name) {
			continue
		}
		usual, _ := unfilled(t, p, 1, 0)
		got, losses := unfilled(t, p, 1, 3700*time.Millisecond)
		if losses == 0 || got > usual+losses {
			t.Errorf("%s: %d admitted, and %d with %d losses", name, usual, got, losses)
		}
	}
}
