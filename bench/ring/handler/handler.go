// Package handler is a stand-in for the older rate_limit plugin, for machines that can't get that
// one: a limiter of the same model (a map of keys under a mutex, and for each key a mutex and a
// ring of timestamps as long as the limit) and of the same JSON. It was written here from that one
// sentence. It is not the plugin, and what is measured with it is not the plugin's.
package handler

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler holds zones by name.
type Handler struct {
	RateLimits map[string]*Zone `json:"rate_limits"`
}

// Zone admits MaxEvents in any Window.
type Zone struct {
	Key       string         `json:"key"`
	Window    caddy.Duration `json:"window"`
	MaxEvents int            `json:"max_events"`

	mu    sync.Mutex
	rings map[string]*ring
}

type ring struct {
	mu   sync.Mutex
	when []time.Time
	next int
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.rate_limit", New: func() caddy.Module { return new(Handler) }}
}

// ServeHTTP lets a request through or denies it with an error for Caddy to answer.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for _, z := range h.RateLimits {
		if wait := z.ring(repl.ReplaceAll(z.Key, "")).take(time.Duration(z.Window)); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
			return caddyhttp.Error(http.StatusTooManyRequests, errors.New("rate limit exceeded"))
		}
	}
	return next.ServeHTTP(w, r)
}

func (z *Zone) ring(key string) *ring {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.rings == nil {
		z.rings = make(map[string]*ring)
	}
	r, ok := z.rings[key]
	if !ok {
		r = &ring{when: make([]time.Time, z.MaxEvents)}
		z.rings[key] = r
	}
	return r
}

// take returns 0 if there is room, else the wait.
func (r *ring) take(window time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if wait := window - now.Sub(r.when[r.next]); wait > 0 && !r.when[r.next].IsZero() {
		return wait
	}
	r.when[r.next] = now
	r.next = (r.next + 1) % len(r.when)
	return 0
}

var _ caddyhttp.MiddlewareHandler = (*Handler)(nil)
