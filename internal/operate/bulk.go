package operate

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
)

// BulkPath is the path for many overrides in one change.
const BulkPath = OverridesPath + "/bulk"

// maxBulk is how many bytes such a body has at most.
const maxBulk = 8 << 20

// A BulkRequest is the body: overrides of one zone. What each leaves out is as in the request.
type BulkRequest struct {
	Zone      string          `json:"zone"`
	For       string          `json:"for,omitempty"`
	Note      string          `json:"note,omitempty"`
	By        string          `json:"by,omitempty"`
	Overrides []ChangeRequest `json:"overrides"`
}

var bulkFields = []string{"zone", "for", "note", "by", "overrides"}

// BulkDone is the answer: how many overrides were set.
type BulkDone struct {
	Zone string `json:"zone"`
	Set  int    `json:"set"`
	// Pending is set where Redis has yet to be told.
	Pending bool `json:"pending,omitempty"`
	control.Outcome
}

// serveBulk sets many overrides, or none where one of them is wrong.
func serveBulk(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	req, err := decodeUpTo[BulkRequest](r.Body, bulkFields, maxBulk)
	switch {
	case err != nil:
		return nil, err
	case len(req.Overrides) == 0:
		return nil, errors.New(`give "overrides": a list of objects with key or id, and limit`)
	}
	by := byOf(r, req.By)
	all := make([]control.Change, len(req.Overrides))
	for i, one := range req.Overrides {
		if one.Zone == "" {
			one.Zone = req.Zone
		}
		if one.For == "" {
			one.For = req.For
		}
		if one.Note == "" {
			one.Note = req.Note
		}
		if all[i], err = overrideOf(config, one, false); err != nil {
			return nil, fmt.Errorf("overrides[%d]: %w", i, err)
		}
		all[i].Who, all[i].By = who(r, req.By), by
	}
	o, err := config.Control().ChangeAll(r.Context(), all)
	switch {
	case errors.Is(err, control.ErrFull):
		return nil, fail(http.StatusInsufficientStorage, fmt.Errorf("there is room for %d overrides, and these are too many: none of them was set", control.MaxEntries))
	case err != nil:
		return nil, fail(http.StatusInternalServerError, err)
	}
	return BulkDone{Zone: req.Zone, Set: len(all), Pending: o.Unsent, Outcome: o}, nil
}
