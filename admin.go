package ratelimit

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-tide/ratelimit/internal/command"
	"github.com/caddy-tide/ratelimit/internal/operate"
	_ "github.com/caddy-tide/ratelimit/internal/statuspage"
)

func init() {
	caddy.RegisterModule(new(adminAPI))
	caddycmd.RegisterCommand(command.RateLimit())
}

// adminAPI answers GET /rate_limit/ on the admin endpoint with the state of all zones. It shows no
// keys and no addresses.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (*adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.rate_limit", New: func() caddy.Module { return new(adminAPI) }}
}

// Routes returns the route for the state.
func (a *adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: operate.Root, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

func (*adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != operate.Root {
		return operate.Serve(w, r)
	}
	if r.Method != http.MethodGet {
		return operate.NotAllowed(w, r, http.MethodGet, http.MethodGet)
	}
	return operate.WriteAnswer(w, operate.StateWithChanges(r.Context()))
}

var _ caddy.AdminRouter = (*adminAPI)(nil)
