package reqkey

import "encoding/json"

// IsBeforeAuthentication reports whether among these handlers, as JSON and with all that is in
// them, a rate_limit with a zone stands before the first handler that authenticates, where there is
// one. Handlers run in this order, unless a matcher leaves one out.
func IsBeforeAuthentication(handlers []json.RawMessage, zone string) bool {
	w := handlerWalk{zone: zone}
	for _, text := range handlers {
		var handler any
		if json.Unmarshal(text, &handler) != nil {
			return false // Caddy says what is wrong with it
		}
		w.visit(handler)
	}
	return w.limits && w.authenticates
}

// handlerWalk goes through handlers until it has met one that authenticates.
type handlerWalk struct {
	zone                  string
	limits, authenticates bool
}

func (w *handlerWalk) visit(v any) {
	if w.authenticates {
		return
	}
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			w.visit(one)
		}
	case map[string]any:
		switch v["handler"] {
		case "authentication":
			w.authenticates = true
			return
		case "rate_limit":
			zones, _ := v["rate_limits"].(map[string]any)
			_, has := zones[w.zone]
			w.limits = w.limits || has
			return
		}
		for _, name := range []string{"handle", "routes"} {
			w.visit(v[name])
		}
	}
}
