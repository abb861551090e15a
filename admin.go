package ratelimit

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-tide/ratelimit/internal/admin"
	"github.com/caddy-tide/ratelimit/internal/command"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/rates"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
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
	return []caddy.AdminRoute{{Pattern: admin.Root, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

// statusBody is the answer.
type statusBody struct {
	Zones []limitStatus    `json:"zones"`
	Redis *ratesync.Status `json:"redis,omitempty"`
	// Strict is there where a zone has sync_rate strict.
	Strict *strict.Status `json:"strict,omitempty"`
	// Control is how this node stands to what is changed at run time: Enforcement and Overrides are
	// what is in force now, and Nodes who is there to apply it.
	Control     *control.Summary     `json:"control,omitempty"`
	Nodes       []control.Node       `json:"nodes,omitempty"`
	Enforcement []control.EntryState `json:"enforcement,omitempty"`
	Overrides   []control.EntryState `json:"overrides,omitempty"`
}

// limitStatus is one limit of a zone. Own, Remote and Unsent are sums over all keys of what a
// decision can still use.
type limitStatus struct {
	Zone      string   `json:"zone"`
	Algorithm string   `json:"algorithm"`
	Limit     int64    `json:"limit"`
	LimitFrom string   `json:"limit_from,omitempty"` // the placeholder; Limit is then the default
	Window    string   `json:"window"`
	SyncRate  SyncRate `json:"sync_rate"`
	// Keys is how many counters this node has, Own what it counted, Remote what it knows of the
	// other nodes' counts, Unsent the part of Own that Redis has not confirmed.
	Keys   int   `json:"keys"`
	Own    int64 `json:"own"`
	Remote int64 `json:"remote"`
	Unsent int64 `json:"unsent"`
	// Node is the field of this node in the hashes of the zone in Redis.
	Node string `json:"node,omitempty"`
	// Sync is there where the counts go to Redis.
	Sync *ratesync.SyncStatus `json:"sync,omitempty"`
	// Overflow counts decisions for keys beyond max_keys, OverflowBytes is the memory of their
	// sketch: it is made when the table is nearly full.
	Overflow      int64 `json:"overflow"`
	OverflowBytes int64 `json:"overflow_bytes"`
}

func (*adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != admin.Root {
		return admin.Serve(w, r)
	}
	if r.Method != http.MethodGet {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s not allowed; use GET", r.Method)}
	}
	status := currentStatus()
	if config := lifecycle.Current(); config != nil {
		state := config.Control().State(r.Context())
		status.Control, status.Nodes, status.Enforcement, status.Overrides = &state.Summary, state.Nodes, state.Enforcement, state.Overrides
	}
	return admin.Answer(w, status)
}

// currentStatus describes the current configuration.
func currentStatus() statusBody {
	s := statusBody{Zones: []limitStatus{}}
	config := lifecycle.Current()
	if config == nil {
		return s
	}
	if config.Redis != nil {
		redis := config.Redis.Replicator.Status()
		s.Redis = &redis
	}
	seen := make(map[*counters.Counters]bool)
	for l := range config.Each {
		if seen[l.Counters] {
			continue // a zone that several handlers share
		}
		seen[l.Counters] = true
		if s.Strict == nil && config.Redis != nil && l.Settings.SyncRate == rates.Strict {
			circuits := config.Redis.Strict.Status()
			s.Strict = &circuits
		}
		t, node := l.Totals(), l.Node()
		if !l.IsSynced(config.Redis) {
			t.Unsent, node = 0, "" // there is nowhere to send it
		}
		overflow, bytes := l.Overflow()
		s.Zones = append(s.Zones, limitStatus{
			Zone: l.Settings.Name, Algorithm: l.Settings.Kind.String(), Limit: l.Rate.Limit, LimitFrom: l.Rate.From, Window: rates.WindowText(l.Rate.Window),
			SyncRate: l.Settings.SyncRate, Keys: t.Keys, Own: t.Own, Remote: t.Remote, Unsent: t.Unsent, Node: node,
			Sync:     l.Sync(),
			Overflow: overflow, OverflowBytes: bytes,
		})
	}
	return s
}

var _ caddy.AdminRouter = (*adminAPI)(nil)
