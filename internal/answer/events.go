package answer

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// The events: a request is denied, or would be if the zone were enforced.
const (
	exceededEvent  = "rate_limit_exceeded"
	wouldDenyEvent = "rate_limit_would_deny"
)

// Events gives Caddy's event system an event for each request that is denied or would be.
type Events struct {
	app *caddyevents.App
	ctx caddy.Context
}

// NewEvents is called from Provision.
func NewEvents(ctx caddy.Context) (*Events, error) {
	app, err := ctx.App("events")
	if err != nil {
		return nil, fmt.Errorf("getting events app: %w", err)
	}
	return &Events{app.(*caddyevents.App), ctx}, nil
}

// emit emits an event of one request if anyone listens. Handlers of events run within the request.
func (e *Events) emit(event string, r *http.Request, zone string, seconds int64) {
	if !e.app.ShouldEmit(event) {
		return
	}
	data := map[string]any{"zone": zone, "wait": time.Duration(seconds) * time.Second, "remote_ip": "", "client_ip": ""}
	if !reqkey.IsEarly(r) { // which proves no address
		data["remote_ip"], data["client_ip"] = reqkey.RemoteHost(r), reqkey.ClientIP(r)
	}
	e.app.Emit(e.ctx, event, data)
}
