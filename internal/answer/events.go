package answer

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// The events: a request is denied, or would be if the zone were enforced; a key is near its limit;
// a ban begins.
const (
	exceededEvent  = "rate_limit_exceeded"
	nearEvent      = "rate_limit_near"
	wouldDenyEvent = "rate_limit_would_deny"
	bannedEvent    = "rate_limit_banned"
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
// It may be called on nil.
func (e *Events) emit(event string, r *http.Request, zone string, key *Who, seconds int64) {
	if e == nil || !e.app.ShouldEmit(event) {
		return
	}
	id, text := key.names()
	e.emitOf(event, r, map[string]any{
		"zone": zone, "key_id": id, "key": text, "wait": time.Duration(seconds) * time.Second, "remote_ip": "", "client_ip": "",
	})
}

// A Who is the key that an event is about: its bytes, nil for none, and the template of keys that
// are to be shown, nil for none.
type Who struct {
	Key   []byte
	Shown *reqkey.Template
}

// names are the key's ID, and its text where that is to be shown; "" for no key.
func (w Who) names() (id, text string) {
	if len(w.Key) == 0 {
		return "", ""
	}
	if w.Shown != nil {
		text = w.Shown.Text(w.Key)
	}
	return keys.IDOf(w.Key).Short(), text
}

// emitOf emits an event with the addresses of a request. Early data proves none.
func (e *Events) emitOf(event string, r *http.Request, data map[string]any) {
	if !reqkey.IsEarly(r) {
		data["remote_ip"], data["client_ip"] = reqkey.RemoteHost(r), reqkey.ClientIP(r)
	}
	e.app.Emit(e.ctx, event, data)
}

// TellsNear reports whether anyone listens to keys that come near their limits.
func (o *Responder) TellsNear() bool { return o.Events != nil && o.Events.app.ShouldEmit(nearEvent) }

// Near tells that these limits are nearly spent for the key of a request.
func (o *Responder) Near(r *http.Request, limits []NearLimit) {
	for _, l := range limits {
		id, text := l.Who.names()
		var window any = l.Policy.Window
		if name, ok := calendar.Name(l.Policy.Window); ok {
			window = name
		}
		o.Events.emitOf(nearEvent, r, map[string]any{
			"zone": l.Policy.Zone, "key_id": id, "key": text, "limit": l.Limit, "remaining": l.Remaining, "window": window,
			"remote_ip": "", "client_ip": "",
		})
	}
}

// A NearLimit is a limit that is nearly spent for a key.
type NearLimit struct {
	*Result
	Who Who
}
