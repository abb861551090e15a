package operate

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
)

// BulkPath is the path that sets or removes many overrides in one change.
const BulkPath = OverridesPath + "/bulk"

// SendForce is what the answer says to somebody who would remove half of them or more.
const SendForce = `send "force": true`

// maxBulk is how many bytes such a body has at most.
const maxBulk = 8 << 20

// A BulkRequest is the body: overrides of one zone. What each leaves out is as in the request.
type BulkRequest struct {
	Zone      string          `json:"zone"`
	For       string          `json:"for,omitempty"`
	Note      string          `json:"note,omitempty"`
	By        string          `json:"by,omitempty"`
	Overrides []ChangeRequest `json:"overrides"`
	// Replace removes what lasts of the zone's keys that are not listed, and an empty list also
	// what is temporary. Force is needed where that is half of it or more.
	Replace bool `json:"replace,omitempty"`
	Force   bool `json:"force,omitempty"`
}

var bulkFields = []string{"zone", "for", "note", "by", "overrides", "replace", "force"}

// BulkDone is the answer: how many overrides were set or removed, and how many there were none of.
type BulkDone struct {
	Zone    string `json:"zone"`
	Set     int    `json:"set"`
	Removed int    `json:"removed,omitempty"`
	None    int    `json:"none,omitempty"`
	// Pending is set where Redis has yet to be told.
	Pending bool `json:"pending,omitempty"`
	control.Outcome
}

// serveBulk sets or removes many overrides, or none where one of them is wrong.
func serveBulk(w http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	remove := r.Method == http.MethodDelete
	if !remove && r.Method != http.MethodPost {
		return nil, NotAllowed(w, r, "POST, DELETE", "POST or DELETE")
	}
	req, err := decode[BulkRequest](r.Body, bulkFields, maxBulk)
	switch {
	case err != nil:
		return nil, err
	case len(req.Overrides) == 0 && !(req.Replace && req.Force):
		return nil, errors.New(`give "overrides": a list of objects with key or id, and limit`)
	}
	by := byOf(r, req.By)
	all, seen := make([]control.Change, len(req.Overrides)), make(map[string]bool)
	for i, one := range req.Overrides {
		one.Zone, one.For, one.Note = cmp.Or(one.Zone, req.Zone), cmp.Or(one.For, req.For, forever), cmp.Or(one.Note, req.Note)
		if all[i], err = overrideOf(config, one, remove); err != nil {
			return nil, fmt.Errorf("overrides[%d]: %w", i, err)
		}
		all[i].Who, all[i].By = who(r, req.By), by
		same := fmt.Sprint(all[i].Target.Key, all[i].Target.Zone, all[i].Temporary)
		if seen[same] && !remove {
			return nil, fmt.Errorf("overrides[%d]: another one before it is for the same key", i)
		}
		seen[same] = true
	}
	if remove {
		return removeBulk(r, config, req, all)
	}
	return setBulk(r, config, req, all)
}

// setBulk sets overrides, and removes what lasts of others where they replace all.
func setBulk(r *http.Request, config *lifecycle.Config, req BulkRequest, all []control.Change) (any, error) {
	n := len(all)
	if req.Replace {
		had, kept := 0, make(map[string]bool)
		for _, ch := range all {
			kept[ch.Zone+ch.IDText()] = true
		}
		for _, e := range overridesOf(config, req.Zone) {
			if !e.Temporary || n == 0 {
				if had++; !kept[e.Zone+e.ID] {
					all = append(all, control.Change{Target: e.Of(), Who: who(r, req.By)})
				}
			}
		}
		if gone := len(all) - n; gone > 0 && 2*gone >= had && !req.Force {
			return nil, fmt.Errorf("this would remove %d of the %d overrides of zone %q, and set %d; if that is meant, %s", gone, had, req.Zone, n, SendForce)
		}
	}
	o, err := config.Control().ChangeAll(r.Context(), all)
	switch {
	case errors.Is(err, control.ErrFull):
		return nil, fail(http.StatusInsufficientStorage, fmt.Errorf("there is room for %d overrides, and these are too many: none of them was set", control.MaxEntries))
	case errors.Is(err, control.ErrNone):
		return nil, fail(http.StatusNotFound, fmt.Errorf("zone %q has no overrides; %w", req.Zone, err))
	case err != nil:
		return nil, fail(http.StatusInternalServerError, err)
	}
	return BulkDone{Zone: req.Zone, Set: n, Removed: len(all) - n, Pending: o.Unsent, Outcome: o}, nil
}

// removeBulk removes overrides: what is temporary of a key, and what lasts.
func removeBulk(r *http.Request, config *lifecycle.Config, req BulkRequest, all []control.Change) (any, error) {
	var layers []control.Change
	removed := 0
	for _, ch := range all {
		if len(config.Control().Holding(ch.Target)) > 0 {
			removed++
		}
		for _, layer := range ch.Target.Layers() {
			layers = append(layers, control.Change{Target: layer, Who: ch.Who})
		}
	}
	o, err := config.Control().ChangeAll(r.Context(), layers)
	if errors.Is(err, control.ErrNone) {
		return nil, fail(http.StatusNotFound, fmt.Errorf("none of these has an override, so there is nothing to remove; `caddy rate-limit status` or GET %s lists what is", OverridesPath))
	}
	if err != nil {
		return nil, err
	}
	return BulkDone{Zone: req.Zone, Removed: removed, None: len(all) - removed, Pending: o.Unsent, Outcome: o}, nil
}
