package operate

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// question is the body of what is to be explained: a request, or the next one of a key.
type question struct {
	ExplainRequest
	Zone string  `json:"zone"`
	Key  *string `json:"key"`
	ID   string  `json:"id"`
}

var questionFields = []string{"method", "url", "remote_ip", "headers", "zone", "key", "id"}

// method checks the method of a path that takes only one.
func method(w http.ResponseWriter, r *http.Request, want string) error {
	if r.Method == want {
		return nil
	}
	w.Header().Set("Allow", want)
	return fail(http.StatusMethodNotAllowed, fmt.Errorf("method %s not allowed; use %s", spelling.Clip(r.Method), want))
}

// serveExplain answers what would become of a request.
func serveExplain(w http.ResponseWriter, r *http.Request) error {
	if err := method(w, r, http.MethodPost); err != nil {
		return err
	}
	config, err := running()
	if err != nil {
		return err
	}
	q, err := decode[question](r.Body, questionFields)
	if err != nil {
		return err
	}
	switch {
	case (q.URL == "") == (q.Zone == ""):
		return fail(http.StatusBadRequest, errors.New(`give "url" for a request, or "zone" with "key" or "id"`))
	case q.Zone != "":
		return explainKey(w, config, q)
	}
	if q.Key != nil || q.ID != "" {
		return fail(http.StatusBadRequest, errors.New("key and id belong to a zone; a request brings its own key"))
	}
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		return fail(http.StatusServiceUnavailable, errors.New("no HTTP server is running"))
	}
	site, err := Explain(app.(*caddyhttp.App), q.ExplainRequest)
	if err != nil {
		return fail(http.StatusBadRequest, err)
	}
	return WriteAnswer(w, site)
}

// explainKey answers what would become of the next request of a key.
func explainKey(w http.ResponseWriter, config *lifecycle.Config, q question) error {
	zone, err := findZone(config, q.Zone)
	if err != nil {
		return err
	}
	if (q.Key == nil) == (q.ID == "") {
		return fail(http.StatusBadRequest, errors.New(`give "key" or "id"`))
	}
	var k limits.Key
	if q.Key != nil {
		raw, err := zone.Template.Parse(*q.Key)
		if err != nil {
			return fail(http.StatusBadRequest, fmt.Errorf("key: %w", err))
		}
		k = limits.KeyOf(raw)
	} else {
		id, err := control.ParseID(q.ID)
		if err != nil {
			return fail(http.StatusBadRequest, fmt.Errorf("id: %w", err))
		}
		k = limits.KeyOfID(id)
	}
	handler, ok, err := ExplainKey(zone, k)
	switch {
	case err != nil:
		return err
	case !ok:
		return fail(http.StatusNotFound, errors.New("no counter of this node has that id; give the key"))
	}
	return WriteAnswer(w, handler)
}

// serveTop answers which keys have spent the most.
func serveTop(w http.ResponseWriter, r *http.Request) error {
	if err := method(w, r, http.MethodGet); err != nil {
		return err
	}
	config, err := running()
	if err != nil {
		return err
	}
	q, by, n := r.URL.Query(), limits.ByUsed, TopKeys
	if q.Has("by") {
		by = limits.TopBy(q.Get("by"))
	}
	if q.Has("n") {
		if n, err = strconv.Atoi(q.Get("n")); err != nil {
			return fail(http.StatusBadRequest, fmt.Errorf("n: %q is no number", spelling.Clip(q.Get("n"))))
		}
	}
	zone := q.Get("zone")
	if zone != "" {
		if _, err := findZone(config, zone); err != nil {
			return err
		}
	}
	all, err := TopOf(r.Context(), config, zone, by, n)
	if err != nil {
		return fail(http.StatusBadRequest, err)
	}
	return WriteAnswer(w, all)
}
