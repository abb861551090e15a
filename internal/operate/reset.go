package operate

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// ResetPath is the path of resets.
const ResetPath = Root + "reset"

// resetRequest is the body of a reset: a zone, and one of the others.
type resetRequest struct {
	Zone string  `json:"zone"`
	Key  *string `json:"key"`
	ID   string  `json:"id"`
	All  bool    `json:"all"`
	By   string  `json:"by"`
}

var resetFields = []string{"zone", "key", "id", "all", "by"}

// ResetDone is the answer to a reset.
type ResetDone struct {
	Zone string `json:"zone"`
	All  bool   `json:"all,omitempty"`
	ID   string `json:"id,omitempty"`
	// Forgiven is how many requests, or units where Units is set, are forgiven that the node that
	// answers has counted.
	Forgiven int64 `json:"forgiven"`
	Units    bool  `json:"units,omitempty"`
	// Unknown is set where neither this node nor Redis has counted anything for the key.
	Unknown bool `json:"unknown,omitempty"`
	// Pending is set where Redis has yet to be told.
	Pending bool `json:"pending,omitempty"`
	// Stays is what the reset has no effect on.
	Stays []string `json:"stays,omitempty"`
	control.Outcome
}

// serveReset resets a key of a zone, or all of them.
func serveReset(_ http.ResponseWriter, r *http.Request, config *lifecycle.Config) (any, error) {
	req, err := decode[resetRequest](r.Body, resetFields, maxBody)
	switch {
	case err != nil:
		return nil, err
	case req.Zone == "":
		return nil, errors.New(`give "zone"`)
	case req.All && (req.Key != nil || req.ID != ""), !req.All && (req.Key == nil) == (req.ID == ""):
		return nil, errors.New(`give "key", "id" or "all": true`)
	}
	zone, err := findZone(config, req.Zone)
	if err != nil {
		return nil, err
	}
	change := control.Change{Target: control.Target{Zone: req.Zone}, For: lasts(zone), Who: who(r, req.By)}
	unknown, stay := false, stays(zone, req.All)
	if !req.All {
		if req.Key != nil {
			if _, err := zone.Template.CheckAddress(*req.Key); err != nil {
				return nil, err
			}
		}
		k, err := keyOf(zone, req.Key, req.ID)
		if err != nil {
			return nil, err
		}
		change.Key, unknown = &k.ID, isUncounted(zone, k)
		if rules := zone.AtRuntime.Load(); rules != nil {
			if o := rules.OverrideOf(k.ID, k.Raw); o != nil && o.Deny {
				stay = append(stay, fmt.Sprintf("an operator denies this key, or a range with it; `caddy rate-limit overrides '%[1]s'` shows which, and `caddy rate-limit ban '%[1]s' <that> --remove` ends it", zone.Name))
			}
		}
	}
	o, forgiven, err := config.Control().Reset(r.Context(), change)
	switch {
	case errors.Is(err, control.ErrFull):
		return nil, fail(http.StatusInsufficientStorage, fmt.Errorf("%d keys were reset lately, which is as many as are remembered; reset all of the zone", control.MaxEntries))
	case err != nil:
		return nil, fail(http.StatusInternalServerError, err)
	}
	return ResetDone{
		Zone: change.Zone, All: req.All, ID: change.IDText(), Forgiven: forgiven, Units: zone.CountsUnits(), Unknown: unknown && forgiven == 0, Pending: o.Unsent, Stays: stay, Outcome: o,
	}, nil
}

// isUncounted reports whether a zone has for certain counted nothing for a key, here and on other
// nodes.
func isUncounted(zone *limits.Zone, k limits.Key) bool {
	h, ok, err := ExplainKey(zone, k, nil)
	if !ok || err != nil || isOverflowing(zone) {
		return false
	}
	for _, z := range h.Zones {
		if z.Unknown != "" || z.BannedUntil != nil || z.Override != "" || len(z.Limits) == 0 {
			return false
		}
		for _, l := range z.Limits {
			if l.Used > 0 {
				return false
			}
		}
	}
	return true
}

// stays says what a reset has no effect on.
func stays(zone *limits.Zone, ofAll bool) (all []string) {
	if !ofAll && isOverflowing(zone) {
		all = append(all, "the zone has more keys than max_keys; if this one is among those beyond, it is still counted where they share counters: reset all keys")
	}
	if zone.Kind.Traits().Queues {
		all = append(all, "requests that wait in the queue keep their slots")
	}
	if zone.Slots != nil {
		all = append(all, "what runs at once is not reset: a request keeps its place until it ends")
	}
	return all
}

// isOverflowing reports whether keys of a zone share counters, or did until a short time ago.
func isOverflowing(zone *limits.Zone) bool {
	for l := range zone.Each {
		if l.Table.OverflowBytes() > 0 {
			return true
		}
	}
	return false
}

// lasts is how long anything is left that a reset of a zone says something of: what counts, until
// all nodes have heard of it, and a ban that began before. Where bans grow, the store has one for
// so long after its end. One may last longer by an earlier configuration.
func lasts(zone *limits.Zone) (longest time.Duration) {
	longest = max(zone.Ban.For, 2*zone.Ban.Growing)
	if b := zone.Bans(); b != nil {
		now := clock.Now()
		b.Set.Each(now, func(_ ban.ID, one ban.Ban, _ string) { longest = max(longest, one.Rest(now)+zone.Ban.Growing) })
	}
	for l := range zone.EachWithDenials {
		p := l.Settings.Params(l.Rate)
		longest = max(longest, 2*p.Counts()+max(0, time.Duration(zone.SyncRate)))
	}
	return longest + time.Minute
}
