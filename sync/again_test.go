package ratesync

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// lone is a node with one table.
type lone[S any] struct {
	*table.Table[S]
	*TableSyncer
	*Replicator
}

func newLone[S any](i int, w redis.UniversalClient, alg algorithms.Params, rate time.Duration) lone[S] {
	n := lone[S]{Table: tableOf[S](alg, 1000), Replicator: NewReplicator(w, "test", time.Second, wallClock, zap.NewNop())}
	n.TableSyncer = NewTableSyncer(n.Table, SpecOf("z", alg))
	n.TableSyncer.node = fmt.Sprint("node", i) // by which it waits after a loss
	n.Configure(table.SyncConfig{Params: alg, Interval: rate, Early: true, Waker: n.Waker}, 1000)
	n.Attach(n.TableSyncer, rate)
	return n
}

func (n lone[S]) end() {
	n.Detach()
	n.Replicator.Close()
}

// What a node knows of a key that it is not asked for any more: all that the others had counted
// when it synced the key last, for which it asks once more, and of what they count later what they
// send before that. With the next request it imports the rest, at once where its last sync is more
// than three intervals and a second ago.
func TestWhatANodeKnowsOfAKeyItIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 10 * time.Second
		alg := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1_000_000, Window: 10_000 * time.Hour}
		store, random := newLuaStore(t), rand.New(rand.NewPCG(3, 3))
		net := &network{random: rand.New(rand.NewPCG(4, 4))} // the loops of the nodes use it
		var nodes [2]lone[algorithms.WindowState]
		for i := range nodes {
			nodes[i] = newLone[algorithms.WindowState](i, &wire{net: net, store: store}, alg, rate)
		}
		count := func(i int, n int64) {
			nodes[i].Take(alg.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), n, 0)
		}
		knows := func(i int) int64 {
			sum := nodes[i].Totals(wallClock())
			return sum.Own + sum.Remote
		}
		total := int64(0)
		for range redistest.Times(100, 1000) {
			first, last := 0, 1
			if random.IntN(2) == 0 {
				first, last = last, first
			}
			time.Sleep(time.Minute)
			for range 4 { // the last of them wait for the cycle
				count(first, 1)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Duration(random.Int64N(int64(2 * rate))))
			count(last, 1)
			total += 5
			time.Sleep(3 * rate)
			if got := knows(last); got != total {
				t.Errorf("the node that was asked last knows of %d requests, want %d", got, total)
			}
			before := knows(first)
			if before < total-1 {
				t.Errorf("the node that was asked first knows of %d requests, want %d at least", before, total-1)
			}
			count(last, 5)
			total += 5
			time.Sleep(6 * rate)
			if a, b := knows(first), knows(last); a != before || b != total {
				t.Errorf("a node that is not asked any more knows of %d requests, the other of %d, want %d and %d", a, b, before, total)
			}
			count(first, 1)
			total++
			time.Sleep(time.Second)
			if got := knows(first); got != total {
				t.Errorf("a node that is asked again knows of %d requests a second later, want %d", got, total)
			}
		}
		for _, n := range nodes {
			n.end()
		}
	})
}
