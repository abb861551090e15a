// Command incr is Caddy with what a strict zone is held to: a handler that counts in Redis, with
// INCRBY and EXPIRE in one round trip, and knows nothing else.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/bench/harness"
)

func init() { caddy.RegisterModule(new(handler)) }

func main() { harness.Main("incr") }

type handler struct {
	Redis  string         `json:"redis"`
	Header string         `json:"header"`
	Limit  int64          `json:"limit"`
	Window caddy.Duration `json:"window"`

	client *redis.Client
}

// CaddyModule returns the Caddy module information.
func (*handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.rate_limit", New: func() caddy.Module { return new(handler) }}
}

// Provision connects to Redis.
func (h *handler) Provision(caddy.Context) error {
	h.client = redis.NewClient(&redis.Options{Addr: h.Redis})
	return nil
}

// ServeHTTP lets a request through or denies it.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	window := time.Duration(h.Window)
	key := fmt.Sprint("incr:", r.Header.Get(h.Header), ":", time.Now().UnixNano()/int64(window))
	pipe := h.client.Pipeline()
	n := pipe.IncrBy(r.Context(), key, 1)
	pipe.Expire(r.Context(), key, 2*window)
	if _, err := pipe.Exec(r.Context()); err != nil {
		return err
	}
	if n.Val() > h.Limit {
		return caddyhttp.Error(http.StatusTooManyRequests, errors.New("rate limit exceeded"))
	}
	return next.ServeHTTP(w, r)
}
