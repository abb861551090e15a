package operate

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
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
}

var questionFields = []string{"method", "url", "remote_ip", "headers", "zone", "key", "id", "cost"}

// serveExplain answers what would become of a request.
func serveExplain(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	q, err := decode[Question](r.Body, questionFields)
	switch {
	case err != nil:
		return nil, err
	case (q.URL == "") == (q.Zone == ""):
		return nil, errors.New(`give "url" for a request, or "zone" with "key" or "id"`)
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
	case err != nil && q.Key == nil:
		return nil, fmt.Errorf("id: %w", err)
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
	q, by, n := r.URL.Query(), limits.ByUsed, TopKeys
	if q.Has("by") {
		by = limits.TopBy(q.Get("by"))
	}
	if q.Has("n") {
		var err error
		if n, err = strconv.Atoi(q.Get("n")); err != nil {
			return nil, fmt.Errorf("n: %q is no number", spelling.Clip(q.Get("n")))
		}
	}
	zone := q.Get("zone")
	if zone != "" {
		if _, err := findZone(config, zone); err != nil {
			return nil, err
		}
	}
	return TopOf(r.Context(), config, zone, by, n)
}
