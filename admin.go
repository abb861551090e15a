package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/rates"
	"github.com/caddy-tide/ratelimit/internal/spelling"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

func init() {
	caddy.RegisterModule(new(adminAPI))
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
	return []caddy.AdminRoute{{Pattern: statusPath, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

// status is the answer.
type status struct {
	Zones []limitStatus    `json:"zones"`
	Redis *ratesync.Status `json:"redis,omitempty"`
	// Strict is there where a zone has sync_rate 0.
	Strict *strict.Status `json:"strict,omitempty"`
}

// limitStatus is one limit of a zone. Own, Elsewhere and Unsent are sums over all keys of what a
// decision can still use.
type limitStatus struct {
	Zone      string   `json:"zone"`
	Algorithm string   `json:"algorithm"`
	Limit     int64    `json:"limit"`
	Window    string   `json:"window"`
	SyncRate  SyncRate `json:"sync_rate"`
	Keys      int      `json:"keys"`
	Own       int64    `json:"own"`
	Elsewhere int64    `json:"elsewhere"`
	Unsent    int64    `json:"unsent"`
	// Node is the field of this node in the hashes of the zone in Redis.
	Node string `json:"node,omitempty"`
	// Exchange is there where the counts go to Redis.
	Exchange *ratesync.ExchangeStatus `json:"exchange,omitempty"`
	// Overflow counts decisions for keys beyond max_keys, OverflowBytes is the memory of their
	// sketch: it is made when the table is nearly full.
	Overflow      int64 `json:"overflow"`
	OverflowBytes int64 `json:"overflow_bytes"`
}

// statusPath is the only path there is.
const statusPath = "/rate_limit/"

func (*adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != statusPath {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("there is no %s; the state is at %s", spelling.Clip(r.URL.Path), statusPath)}
	}
	if r.Method != http.MethodGet {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s not allowed; use GET", r.Method)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(currentStatus())
}

// currentStatus describes the configuration that has its way now.
func currentStatus() status {
	running.Lock()
	defer running.Unlock()
	s := status{Zones: []limitStatus{}}
	if len(running.apps) == 0 {
		return s
	}
	app := running.apps[0]
	if app.shared != nil {
		redis := app.shared.replicator.Status()
		s.Redis = &redis
	}
	seen := make(map[counters]bool)
	for i := range app.limits {
		l := &app.limits[i]
		if seen[l.counters] {
			continue // a zone that several handlers share
		}
		seen[l.counters] = true
		if s.Strict == nil && app.shared != nil && l.settings.SyncRate == rates.Strict {
			circuits := app.shared.strict.Status()
			s.Strict = &circuits
		}
		t, node := l.counters.stats(), l.counters.node()
		if l.settings.SyncRate < 0 || app.shared == nil {
			t.Unsent, node = 0, "" // there is nowhere to send it
		}
		overflow, bytes := l.counters.overflowed()
		s.Zones = append(s.Zones, limitStatus{
			Zone: l.settings.Name, Algorithm: l.settings.Kind.String(), Limit: l.rate.Limit, Window: rates.WindowText(l.rate.Window),
			SyncRate: l.settings.SyncRate, Keys: t.Keys, Own: t.Own, Elsewhere: t.Remote, Unsent: t.Unsent, Node: node,
			Exchange: l.counters.exchange(),
			Overflow: overflow, OverflowBytes: bytes,
		})
	}
	return s
}

var _ caddy.AdminRouter = (*adminAPI)(nil)
