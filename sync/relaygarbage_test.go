//go:build chaos

package ratesync

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// garbage is what another program leaves in the Redis of one of two regions, or somebody who may
// write there.
type garbage struct {
	name  string
	leave func(k *kinds, a, b *redistest.Server)
}

func garbages() []garbage {
	head := NewKeyspace("test").head + "0}:"
	told := func(r *redistest.Server, name string) {
		r.Do("ZADD", head+"told", time.Now().UnixMicro(), name)
	}
	nobody := "z:f-1000h:AAAAAAAAAAAAAAAAAAAAAA:"
	return []garbage{
		{"the last number that Lua can count, of a reading", func(_ *kinds, a, _ *redistest.Server) { a.Do("SET", head+"read", cell.MaxExact-1) }},
		{"the same, in a hash of the other region", func(k *kinds, _, b *redistest.Server) {
			b.Do("HSET", k.hash("k7"), "~a", fmt.Sprint(cell.MaxExact-1, " 5 5"))
		}},
		{"a number of a hundred years' time, in a hash of the other region", func(k *kinds, _, b *redistest.Server) {
			b.Do("HSET", k.hash("k7"), "~a", fmt.Sprint(int64(1)<<52-1, " 5 5"))
		}},
		{"scores that no clock comes to", func(_ *kinds, a, b *redistest.Server) {
			a.Do("ZADD", head+"told", "inf", head+nobody+"1", "1e300", head+nobody+"2")
			b.Do("ZADD", head+"told", cell.MaxExact, head+nobody+"1")
		}},
		{"keys of another type", func(_ *kinds, a, b *redistest.Server) {
			a.Do("SET", head+"told", "mine")
			b.Do("DEL", head+"read")
			b.Do("RPUSH", head+"read", "mine")
		}},
		{"attempts without end", func(_ *kinds, a, _ *redistest.Server) {
			a.Do("HSET", head+nobody+"1", "sum", "5 "+strings.Repeat("9", 400)+" 5")
			told(a, head+nobody+"1")
		}},
		{"a fill of two lines", func(_ *kinds, a, _ *redistest.Server) {
			a.Do("HSET", head+nobody+"1", "sum", "5 5")
			a.Do("SET", head+nobody+"fill", "5 123 0.1 999 a\nb")
			told(a, head+nobody+"1")
		}},
		{"keys of another program", func(_ *kinds, a, b *redistest.Server) {
			a.Do("SET", "session:ban:x", fmt.Sprint(time.Now().UnixMicro(), " 3600000000 0"))
			a.Do("HSET", "other{0}:a:b:1", "sum", "5 5")
			b.Do("SET", "session:ban:x", "mine")
			told(a, "session:ban:x")
			told(a, "other{0}:a:b:1")
		}},
	}
}

// What another program, or somebody who may write to the Redis of one region, leaves there keeps
// nothing from being told, and reaches no key of another program in the other region.
func TestGarbageHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for _, row := range garbages() {
		t.Run(row.name, func(t *testing.T) {
			a, b := redistest.Start(t), redistest.Start(t)
			k := startKinds(t, map[string]func() redis.UniversalClient{
				"a": func() redis.UniversalClient { return a.Client() }, "b": func() redis.UniversalClient { return b.Client() },
			}, nil)
			k.take(1)
			k.await("at first", "")
			row.leave(k, a, b)
			for range 2 {
				k.take(1)
				k.await("beside garbage", "")
			}
			if had := b.Do("EXISTS", "other{0}:a:b:1"); had != int64(0) {
				t.Errorf("the other region has a key of another program: %v", had)
			}
			if had := b.Do("GET", "session:ban:x"); had != nil && had != "mine" {
				t.Errorf("a key of another program has become %v", had)
			}
		})
	}
}
