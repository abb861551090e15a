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

// What a node has sent of a bucket, and of which it has no reply, counts once on that node as well.
// The fill that Redis tells it next has it.
func TestABucketCountsOnceWhatGotNoReply(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.TokenBucket, algorithms.GCRA} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { bucketWithoutReply(t, kind) })
		})
	}
}

func bucketWithoutReply(t *testing.T, kind algorithms.Kind) {
	p := algorithms.Params{Kind: kind, Limit: 20, Window: 1000 * time.Hour, Burst: 20}
	net, store := &network{random: rand.New(rand.NewPCG(1, 2))}, newLuaStore(t)
	here, elsewhere := bucketNode(t, p, net, store), bucketNode(t, p, net, store)
	if !elsewhere(4) {
		t.Fatal("4 of 20 are denied")
	}
	time.Sleep(3 * time.Second)
	net.become(&net.unanswered, 1)
	if !here(6) {
		t.Fatal("6 of 20 are denied by a node that has not heard of any")
	}
	time.Sleep(10 * time.Second) // Redis has them, and has told nobody
	if !here(1) {
		t.Error("the seventh is denied")
	}
	net.heal()
	time.Sleep(10 * time.Second)
	if !here(9) {
		t.Error("after 4 and 7 of 20, 9 are denied")
	}
	if here(1) {
		t.Error("after 20 of 20, another one is admitted")
	}
}

// bucketNode starts a node that counts in buckets, and returns how it is asked for so many.
func bucketNode(t *testing.T, p algorithms.Params, net *network, store *luaStore) func(int64) bool {
	n := tableOf[algorithms.BucketState](p, 1000)
	r := NewReplicator(&wire{net: net, store: store}, "test", time.Second, wallClock, zap.NewNop())
	s := NewSource(n, SpecOf("z", p))
	n.Configure(table.SyncConfig{Params: p, Rate: time.Second, Early: true, Waker: s.Waker}, 1000)
	r.Attach(s, time.Second)
	t.Cleanup(func() {
		s.Detach()
		r.Close()
	})
	return func(count int64) bool {
		return n.Take(p.Compile(), keys.KeyOf([]byte("k")), []byte("k"), wallClock(), count, 0).Allowed
	}
}
