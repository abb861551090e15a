package reqkey

import "encoding/json"

// IsGuarded reports whether among these handlers, as JSON and with all that is in them, a
// rate_limit with a zone stands in a route that a matcher selects requests for. A matcher of hosts
// selects a site, and is none here.
func IsGuarded(handlers []json.RawMessage, zone string) (guarded bool) {
	for _, text := range handlers {
		var handler any
		if json.Unmarshal(text, &handler) == nil {
			guarded = guarded || guards(handler, zone, false)
		}
	}
	return guarded
}

func guards(v any, zone string, matched bool) bool {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			if guards(one, zone, matched) {
				return true
			}
		}
	case map[string]any:
		if zones, ok := v["rate_limits"].(map[string]any); ok && v["handler"] == "rate_limit" {
			_, has := zones[zone]
			return matched && has
		}
		sets, _ := v["match"].([]any)
		for _, set := range sets {
			by, _ := set.(map[string]any)
			_, host := by["host"]
			matched = matched || len(by) > 1 || len(by) == 1 && !host
		}
		return guards(v["routes"], zone, matched) || guards(v["handle"], zone, matched)
	}
	return false
}
