package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

const (
	placeholderPrefix = "http.rate_limit."
	exceededName      = "exceeded.name"
	exceededWait      = "exceeded.wait"
	wouldDenyName     = "would_deny.name"
	wouldDenyWait     = "would_deny.wait"
)

// setPlaceholders makes {http.rate_limit.*} known to what handles the request from here on. wait,
// in seconds, and zone are a denial's; wait is 0 for an admitted request.
//
// It costs one allocation, a second one for several limits: the function that the replacer asks.
// That one can't be reused: the access log asks after the handler has returned. It does nothing
// where repl is nil.
func setPlaceholders(repl *caddy.Replacer, zone string, wait int64, results []Result) {
	if repl == nil {
		return
	}
	if len(results) == 1 && (wait == 0 || zone == results[0].Policy.Zone) {
		only := &results[0]
		p, limit, remaining, reset, used := only.Policy, only.Limit, only.Remaining, ceilSeconds(only.reset()), only.used()
		if wait == 0 && only.Cost == 0 && limit == p.Limit && used == p.Limit-remaining {
			repl.Map(func(name string) (any, bool) { // of 32 bytes, for most requests
				return lookUp(name, "", 0, []values{{p, p.Limit, remaining, reset, p.Limit - remaining, 0}})
			})
			return
		}
		cost := only.Cost
		repl.Map(func(name string) (any, bool) {
			return lookUp(name, p.Zone, wait, []values{{p, limit, remaining, reset, used, cost}})
		})
		return
	}
	all := make([]values, len(results))
	for i := range results {
		r := &results[i]
		all[i] = values{r.Policy, r.Limit, r.Remaining, ceilSeconds(r.reset()), r.used(), r.Cost}
	}
	repl.Map(func(name string) (any, bool) { return lookUp(name, zone, wait, all) })
}

// values are those of the placeholders of one limit.
type values struct {
	policy                        *Policy
	limit, remaining, reset, used int64
	cost                          int64 // as in a Result
}

// left is how many requests of the same cost remain.
func (v *values) left() int64 { return leftOf(v.remaining, v.cost) }

// used is how much of a limit is spent.
func (r *Result) used() int64 { return max(0, r.Size-r.Remaining) }

// own are the placeholders that stand for a whole request, fields those of each zone.
var (
	own    = []string{exceededName, exceededWait, wouldDenyName, wouldDenyWait}
	fields = []string{"limit", "remaining", "reset", "used", "cost"}
)

// CheckPlaceholder reports a name in {http.rate_limit.*} that no zone has a value for, whatever its
// name is.
func CheckPlaceholder(name string) error {
	rest, ok := strings.CutPrefix(name, placeholderPrefix)
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 || slices.Contains(own, rest) || slices.Contains(fields, rest[dot+1:]) {
		return nil
	}
	near := spelling.Nearest(rest, own)
	if field := spelling.Nearest(rest[dot+1:], fields); near == "" && field != "" {
		near = rest[:dot+1] + field
	}
	if near != "" {
		return fmt.Errorf("there is no placeholder {%s}; did you mean {%s%s}?", spelling.Clip(name), placeholderPrefix, near)
	}
	return fmt.Errorf("there is no placeholder {%s}; write one of a denial, like {%s%s}", spelling.Clip(name), placeholderPrefix, exceededWait)
}

// lookUp returns the value of a placeholder.
func lookUp(name, exceeded string, wait int64, all []values) (any, bool) {
	name, ok := strings.CutPrefix(name, placeholderPrefix)
	if !ok {
		return nil, false
	}
	if wait > 0 {
		switch name {
		case exceededName:
			return exceeded, true
		case exceededWait:
			return wait, true
		}
	}
	if name == wouldDenyName || name == wouldDenyWait {
		return "", true // Responder.WouldDeny sets another value, which comes first
	}
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return nil, false
	}
	shown := tightestOf(all, name[:dot])
	if shown == nil {
		return nil, false
	}
	switch name[dot+1:] {
	case "limit":
		return shown.limit, true
	case "remaining":
		return shown.remaining, true
	case "reset":
		return shown.reset, true
	case "used":
		return shown.used, true
	case "cost":
		return max(0, cmp.Or(shown.cost, 1)), true
	}
	return nil, false
}

// tightestOf returns the values of a zone; of several limits, those of the tightest.
func tightestOf(all []values, zone string) (shown *values) {
	for i := range all {
		v := &all[i]
		if v.policy.Zone == zone && (shown == nil || v.left() < shown.left() ||
			v.left() == shown.left() && v.policy.Window > shown.policy.Window) {
			shown = v
		}
	}
	return shown
}
