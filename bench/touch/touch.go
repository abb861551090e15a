// Package touch is an app of Caddy that keeps many keys of a zone busy from within the server. So a
// server has many keys to sync without a client that sends as many requests, for which two CPUs
// would be too few.
package touch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/bench/harness"
)

func init() { caddy.RegisterModule(new(App)) }

// Header is what the zone's key has to be.
const Header = "X-Api-Key"

// App sends one request of each of Keys keys to a handler every second, evenly.
type App struct {
	// Handler is a rate_limit handler; one with the same zone in a site shares its counters.
	Handler json.RawMessage `json:"handler"`
	Keys    int             `json:"keys"`

	handler caddyhttp.MiddlewareHandler
	stop    context.CancelFunc
	done    chan struct{}
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "touch", New: func() caddy.Module { return new(App) }}
}

// Provision loads the handler.
func (a *App) Provision(ctx caddy.Context) error {
	v, err := ctx.LoadModuleByID("http.handlers.rate_limit", a.Handler)
	if err != nil {
		return fmt.Errorf("loading the handler: %w", err)
	}
	a.handler = v.(caddyhttp.MiddlewareHandler)
	return nil
}

// Start begins to send.
func (a *App) Start() error {
	ctx, cancel := context.WithCancel(context.Background())
	a.stop, a.done = cancel, make(chan struct{})
	go a.run(ctx)
	return nil
}

// Stop ends it.
func (a *App) Stop() error {
	a.stop()
	<-a.done
	return nil
}

func (a *App) run(ctx context.Context) {
	defer close(a.done)
	keys := make([][]string, a.Keys)
	for i := range keys {
		keys[i] = []string{fmt.Sprint("key-", i)}
	}
	client := harness.NewClient(false)
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	begun := time.Now()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for due := int(time.Since(begun).Seconds() * float64(a.Keys)); sent < due; sent++ {
			client.Request.Header[Header] = keys[sent%len(keys)]
			client.Send("10.0.0.1", a.handler, next)
		}
	}
}
