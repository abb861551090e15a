package operate

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A Question is the body of what is to be explained: a request, or the next one of a key.
type Question struct {
	ExplainRequest
	Zone string  `json:"zone,omitempty"`
	Key  *string `json:"key,omitempty"`
	ID   string  `json:"id,omitempty"`
	// Cost is what the next request of the key takes. Default: what one takes whose cost is not
	// known.
	Cost *int64 `json:"cost,omitempty"`
	// IP asks all zones that count by the client's address.
	IP string `json:"ip,omitempty"`
}

var questionFields = []string{"method", "url", "remote_ip", "headers", "zone", "key", "id", "cost", "ip"}

// serveExplain answers what would become of a request.
func serveExplain(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	q, err := decode[Question](r.Body, questionFields, maxBody)
	switch {
	case err != nil:
		return nil, err
	case q.IP != "" && q.URL == "" && q.Zone == "":
		return explainAddress(config, q.IP)
	case q.IP != "" || (q.URL == "") == (q.Zone == ""):
		return nil, errors.New(`give "url" for a request, "zone" with "key" or "id", or "ip"`)
	case q.Zone != "":
		return explainKey(config, q)
	case q.Key != nil || q.ID != "" || q.Cost != nil:
		return nil, errors.New("key, id and cost belong to a zone; a request brings its own key and cost")
	}
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		return nil, fail(http.StatusServiceUnavailable, errors.New("no HTTP server is running"))
	}
	return Explain(app.(*caddyhttp.App), q.ExplainRequest)
}

// explainAddress answers what would become of the next request of an address, in each zone that
// counts by addresses.
func explainAddress(config *lifecycle.Config, ip string) (any, error) {
	site, seen := ExplainedSite{ClientIP: ip, Handlers: []Reached{}}, map[string]bool{}
	if _, err := netip.ParseAddr(ip); err != nil {
		return nil, fmt.Errorf("ip: %q is no address; write one like 203.0.113.9", spelling.Clip(ip))
	}
	for z := range config.Zones {
		key := ip
		switch {
		case seen[z.Name]:
			continue
		case z.Key == reqkey.Default:
		case standsIn(z):
			key = reqkey.StandIn(ip)
		default:
			continue
		}
		seen[z.Name] = true
		k, err := keyOf(z, &key, "")
		if err != nil {
			return nil, err
		}
		if key != ip && isUncounted(z, k) {
			continue // its requests bring keys
		}
		h, _, err := ExplainKey(z, k, nil)
		if err != nil {
			return nil, fail(http.StatusInternalServerError, err)
		}
		site.Handlers = append(site.Handlers, Reached{Explained: h})
	}
	return site, nil
}

// standsIn reports whether a zone counts by the address where a request brings no key.
func standsIn(z *limits.Zone) bool {
	return z.EmptyKey == config.EmptyClientIP && !reqkey.HasAddress(z.Key) && !reqkey.IsConstant(z.Key)
}

// explainKey answers what would become of the next request of a key.
func explainKey(running *lifecycle.Config, q Question) (any, error) {
	zone, err := findZone(running, q.Zone)
	if err != nil {
		return nil, err
	}
	if (q.Key == nil) == (q.ID == "") {
		return nil, errors.New(`give "key" or "id"`)
	}
	k, err := keyOf(zone, q.Key, q.ID)
	switch {
	case err != nil:
		return nil, err
	case q.Cost != nil && !zone.CountsUnits():
		return nil, fmt.Errorf("cost: each request takes 1 of zone %q, which has no cost; leave it out", zone.Name)
	case q.Cost != nil && (*q.Cost < 0 || *q.Cost > config.MaxCost):
		return nil, fmt.Errorf("cost: %d is not between 0 and 2^40", *q.Cost)
	}
	handler, ok, err := ExplainKey(zone, k, q.Cost)
	switch {
	case err != nil:
		return nil, fail(http.StatusInternalServerError, err)
	case !ok:
		return nil, fail(http.StatusNotFound, errors.New("no counter of this node has that id; give the key"))
	}
	return handler, nil
}

// serveTop answers which keys have spent the most.
func serveTop(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	q, by := r.URL.Query(), limits.ByUsed
	if q.Has("by") {
		by = limits.TopBy(q.Get("by"))
	}
	zone, n, err := whichKeys(q.Get("zone"), q.Get("n"), config)
	if err != nil {
		return nil, err
	}
	return TopOf(r.Context(), config, zone, by, q.Has("banned"), n)
}
