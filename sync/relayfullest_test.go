//go:build chaos

package ratesync

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// standing is a pair of real servers whose relay passes when it is told to, and no node.
type standing struct {
	*pair

	t            *testing.T
	home, there  redis.UniversalClient
	window       Spec
	bucket       Spec
	score        float64
	pipe         redis.Pipeliner
	small, first []string // names that may wait, and those that come first
}

func newStanding(t *testing.T, namespace string, home, there redis.UniversalClient) *standing {
	rep := NewReplicator(home, namespace, 10*time.Second, clock.Now, zap.NewNop())
	rep.Relay(Regions{Here: "a", Others: map[string]redis.UniversalClient{"b": there}, Rate: time.Second})
	s := &standing{
		pair: rep.relay.pairs[0], t: t, home: home, there: there, score: 1e15, pipe: home.Pipeline(),
		window: SpecOf("w", algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1000, Window: 1000 * time.Hour}),
		bucket: SpecOf("b", algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1000, Burst: 1000, Window: 1000 * time.Hour}),
	}
	for _, spec := range []Spec{s.window, s.bucket} {
		source := NewSource(nil, spec)
		source.Tell(1, 1000)
		rep.counts.links[&source.link] = struct{}{}
	}
	return s
}

// tell has a name be told after all others.
func (s *standing) tell(id keys.ID, name string) string {
	s.score++
	shard := 0
	if s.x.r.cluster {
		shard = ShardOf(id)
	}
	s.pipe.ZAdd(s.t.Context(), s.x.r.keys.Told(shard), redis.Z{Score: s.score, Member: name})
	return name
}

// count counts so much of a key.
func (s *standing) count(spec Spec, key string, total int) string {
	id := keys.IDOf([]byte(key))
	name := string(s.x.r.keys.Table(spec).appendEpoch(nil, id, 5))
	s.pipe.HSet(s.t.Context(), name, "node", fmt.Sprint("1 ", total, " ", total), "sum", fmt.Sprint(total, " ", total))
	s.pipe.PExpire(s.t.Context(), name, time.Hour)
	if spec == s.bucket {
		now := time.Now().UnixMilli()
		s.pipe.Set(s.t.Context(), string(s.x.r.keys.Table(spec).appendFill(nil, id)), fmt.Sprintf("%d %d 0.000001 %d", total, now, now+3600_000), time.Hour)
	}
	return s.tell(id, name)
}

// known is how many of names the other region knows.
func (s *standing) known(names []string) (n int64) {
	pipe := s.there.Pipeline()
	for _, name := range names {
		pipe.Exists(s.t.Context(), name)
	}
	all, err := pipe.Exec(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, cmd := range all {
		n += cmd.(*redis.IntCmd).Val()
	}
	return n
}

// Of more than a second can tell, what changed last comes first where it is a ban, or has most of
// its limit: a window's or a bucket's, which has a fill; from a Cluster, and to one.
func TestTheFullestOfAllKindsComeFirst(t *testing.T) {
	t.Parallel()
	const many, full, total = linkSecond + 500, 40, 900
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: redistest.StartCluster(t, 3).Addrs})
	defer cluster.Close()
	for _, name := range []string{"from", "to"} {
		t.Run(name+" a Cluster", func(t *testing.T) {
			var one redis.UniversalClient = redistest.Start(t).Client()
			defer one.Close()
			var home, there redis.UniversalClient = cluster, one
			if name == "to" {
				home, there = there, home
			}
			s := newStanding(t, name, home, there)
			for i := range many {
				s.small = append(s.small, s.count(s.window, fmt.Sprint("small", i), 1+i%3))
			}
			var fills []string
			for i := range full {
				key := fmt.Sprint("full", i)
				id := keys.IDOf([]byte(key))
				ban := s.x.r.keys.Zone("w", "ban").Of(id)
				s.pipe.Set(t.Context(), ban, fmt.Sprint(time.Now().UnixMicro(), " ", time.Hour.Microseconds()), time.Hour)
				s.first = append(s.first, s.count(s.window, key, total), s.count(s.bucket, key, total), s.tell(id, ban))
				fills = append(fills, string(s.x.r.keys.Table(s.bucket).appendFill(nil, id)))
			}
			if _, err := s.pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			left, ok := s.pass(t.Context())
			for !ok { // a server has stood still
				left, ok = s.pass(t.Context())
			}
			if n, waits := s.known(s.first), many-s.known(s.small); n != 3*full || !left || waits == 0 {
				t.Errorf("after one second %d of %d that come first are told, and %d of %d others wait, left is %t", n, 3*full, waits, many, left)
			}
			for _, fill := range fills {
				text, _ := there.Get(t.Context(), fill).Result()
				if level, _, _ := strings.Cut(text, "."); first(level) < total-1 || first(level) > total {
					t.Errorf("the fill of a bucket with %d is told as %q", total, text)
				}
			}
			for left || !ok {
				left, ok = s.pass(t.Context())
			}
			if n := s.known(s.small); n != many {
				t.Errorf("in the end %d of %d others are told", n, many)
			}
		})
	}
}
