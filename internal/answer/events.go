package answer

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
)

const exceededEvent = "rate_limit_exceeded"

// Events gives Caddy's event system an event for each denied request.
type Events struct {
	app    *caddyevents.App
	ctx    caddy.Context
	client func(*http.Request) Client
}

// NewEvents is called from Provision.
func NewEvents(ctx caddy.Context, client func(*http.Request) Client) (*Events, error) {
	app, err := ctx.App("events")
	if err != nil {
		return nil, fmt.Errorf("getting events app: %w", err)
	}
	return &Events{app.(*caddyevents.App), ctx, client}, nil
}

// exceeded emits the event of one denied request if anyone listens. Handlers of events run within
// the request.
func (e *Events) exceeded(r *http.Request, zone string, seconds int64) {
	if !e.app.ShouldEmit(exceededEvent) {
		return
	}
	c := e.client(r)
	e.app.Emit(e.ctx, exceededEvent, map[string]any{
		"zone": zone, "wait": time.Duration(seconds) * time.Second, "remote_ip": c.RemoteIP, "client_ip": c.ClientIP,
	})
}

// A Client is who sent a request.
type Client struct {
	// Early is set for early data, which proves no address: then both are empty.
	Early bool
	// RemoteIP is the address of the peer, ClientIP the one that the server found behind its
	// trusted proxies.
	RemoteIP, ClientIP string
}
