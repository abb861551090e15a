package main

import (
	"context"
	"hash/maphash"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// A key is a client in the forms that the subjects want it in.
type key struct {
	text  string // its IP address
	addr  string // with a port
	boxed any    // text
}

// An ask asks for one request of a key and says whether it is admitted. It is not safe for
// concurrent use.
type ask func(*key) bool

// A subject is a limiter under comparison.
type subject struct {
	name string
	// open makes one that admits limit requests a key and window. The first result makes an ask for
	// each goroutine, the second ends it.
	open func(limit int, window time.Duration) (func() ask, func(), error)
}

const table1 = 1_000_000 // keys that a table of Tide holds, its default

// limiters decide by key, without HTTP. The first is what the others are compared with.
func limiters() []subject {
	return []subject{
		{"Tide, sliding_window", tide[algorithms.WindowState](algorithms.SlidingWindow)},
		{"Tide, token_bucket", tide[algorithms.BucketState](algorithms.TokenBucket)},
		{"Tide, sliding_log", tide[algorithms.LogState](algorithms.SlidingLog)},
		{"x/time/rate, 64 maps", timeRate},
		{"go-limiter", goLimiter},
		{"throttled", throttledGCRA},
		{"ulule/limiter", ulule},
		{"httprate", httpRate},
	}
}

func tide[S any](kind algorithms.Kind) func(int, time.Duration) (func() ask, func(), error) {
	return func(limit int, window time.Duration) (func() ask, func(), error) {
		p := algorithms.Params{Kind: kind, Limit: int64(limit), Window: window}
		l, tab := p.Compile(), table.New[S](kind, table1)
		tab.Configure(table.SyncConfig{Params: p}, table1)
		return func() ask {
			raw := make([]byte, 0, 64)
			return func(k *key) bool {
				raw = append(raw[:0], k.text...)
				return tab.Take(l, keys.KeyOf(raw), raw, clock.Now(), 1, 0).Allowed
			}
		}, func() {}, nil
	}
}

// timeRate is what many write around a rate.Limiter: maps of limiters, each with a lock. Nothing is
// ever dropped from them.
func timeRate(limit int, window time.Duration) (func() ask, func(), error) {
	type stripe struct {
		mu  sync.Mutex
		all map[string]*rate.Limiter
		_   [48]byte // keeps neighbours' locks off this cache line
	}
	var stripes [64]stripe
	for i := range stripes {
		stripes[i].all = make(map[string]*rate.Limiter)
	}
	seed := maphash.MakeSeed()
	every := rate.Limit(float64(limit) / window.Seconds())
	take := func(k *key) bool {
		st := &stripes[maphash.String(seed, k.text)%64]
		st.mu.Lock()
		l := st.all[k.text]
		if l == nil {
			l = rate.NewLimiter(every, limit)
			st.all[k.text] = l
		}
		st.mu.Unlock()
		return l.Allow()
	}
	return func() ask { return take }, func() {}, nil
}

func goLimiter(limit int, window time.Duration) (func() ask, func(), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(limit), Interval: window})
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	take := func(k *key) bool {
		_, _, _, ok, err := store.Take(ctx, k.text)
		return check(ok, err)
	}
	return func() ask { return take }, func() { _ = store.Close(ctx) }, nil
}

func newThrottled(limit int, window time.Duration) (*throttled.GCRARateLimiterCtx, error) {
	store, err := throttledmem.NewCtx(0)
	if err != nil {
		return nil, err
	}
	return throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(limit, window), MaxBurst: limit - 1})
}

func throttledGCRA(limit int, window time.Duration) (func() ask, func(), error) {
	l, err := newThrottled(limit, window)
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	take := func(k *key) bool {
		limited, _, err := l.RateLimitCtx(ctx, k.text, 1)
		return check(!limited, err)
	}
	return func() ask { return take }, func() {}, nil
}

func newUlule(limit int, window time.Duration) *limiter.Limiter {
	return limiter.New(ululemem.NewStore(), limiter.Rate{Limit: int64(limit), Period: window})
}

func ulule(limit int, window time.Duration) (func() ask, func(), error) {
	l := newUlule(limit, window)
	ctx := context.Background()
	take := func(k *key) bool {
		c, err := l.Get(ctx, k.text)
		return check(!c.Reached, err)
	}
	return func() ask { return take }, func() {}, nil
}

// httpRate has no decision apart from HTTP. The nearest is the one that leaves the answer to its
// caller, with its headers switched off.
func httpRate(limit int, window time.Duration) (func() ask, func(), error) {
	l := httprate.NewRateLimiter(limit, window, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	return func() ask {
		r, err := http.NewRequest(http.MethodGet, "/", nil)
		if err != nil {
			fail(err)
		}
		w := newSink()
		return func(k *key) bool { return !l.OnLimit(w, r, k.text) }
	}, func() {}, nil
}
