package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// Words of other rate limiters (Caddy plugins and their forks, Kong, nginx), and what to write for
// them. They are for error messages only.

// otherOptions are options of others.
var otherOptions = map[string]string{
	"ring_buffer":         "write `algorithm sliding_log`",
	"max_events":          "write `events`, or both in one line as `limit 100/1m`",
	"requests":            "write `limit`, with its window, like `limit 100/1m`",
	"rate":                "write `limit`, like `limit 100/1m`",
	"period":              "write `limit`, with its window, like `limit 100/1m`",
	"interval":            "write `limit`, with its window, like `limit 100/1m`",
	"window_size":         "write `limit`, with its window, like `limit 100/1m`",
	"window_type":         "write `algorithm sliding_window` or `algorithm fixed_window`",
	"zone_size":           "write `max_keys`",
	"reject_status":       "write `status`, outside of the zone",
	"status_code":         "write `status`, outside of the zone",
	"error_code":          "write `status`, outside of the zone",
	"error_message":       "write `message`, outside of the zone",
	"limit_by":            "write `key`, like `key {client_ip}`",
	"identifier":          "write `key`, like `key {client_ip}`",
	"hide_client_headers": "write `headers off`, outside of the zone",
	"fault_tolerant":      "write `on_redis_loss allow` for true, `on_redis_loss deny` for false",
	"nodelay":             "write `algorithm token_bucket` with a `burst`",
}

// otherNames are names of algorithms elsewhere.
var otherNames = map[string]string{
	"ring_buffer": "sliding_log", "sliding_window_log": "sliding_log", "sliding_window_counter": "sliding_window", "sliding": "sliding_window",
	"fixed": "fixed_window", "token": "token_bucket", "leaky": "leaky_bucket",
}

var nginxRate = regexp.MustCompile(`^(\d+)r/([sm])$`)

// placeholderFirst is the error for values after rate_limit that begin with a placeholder, nil if
// they don't.
func placeholderFirst(values []string) error {
	first := values[0]
	switch {
	case !strings.HasPrefix(first, "{"):
		return nil
	case strings.HasPrefix(first, "{args"):
		return fmt.Errorf("%s has no value, as the import gives too few; write the rate after the snippet's name, like `import limits 100/1m`", clip(first))
	case strings.HasPrefix(first, "{env."), strings.HasPrefix(first, "{file."):
		return fmt.Errorf("%s is filled in too late: a rate is read with the Caddyfile; write it here, or as {$RATE} if it is in an environment variable", clip(first))
	case strings.HasSuffix(first, "}"):
		return keyFirst(values)
	}
	return nil
}

// keyFirst is the error for a line of the plugin whose arguments are a key, a rate, a number of
// keys and a status. It writes the line anew as far as it is understood.
func keyFirst(values []string) error {
	key, rate := values[0], "100/1m"
	if len(values) > 1 {
		rate = nginxRate.ReplaceAllString(values[1], "$1/$2")
	}
	if _, err := parseRate(rate); err != nil {
		rate = "100/1m"
	}
	if name := strings.Trim(key, "{}"); reqkey.MeansClientIP(name) {
		key = "{client_ip}"
	} else if name == "remote.host" {
		key = "{remote_host}"
	}
	block := fmt.Sprintf("`key %s`", clip(key))
	for i, option := range []string{"max_keys", "status"} {
		if len(values) > i+2 {
			block += fmt.Sprintf(", `%s %s`", option, clip(values[i+2]))
		}
	}
	return fmt.Errorf("%s is a key, and the rate comes first; write `rate_limit %s`, and in a block after it, on lines of their own, %s", clip(values[0]), rate, block)
}

// UnmarshalJSON reads a handler, strictly as Caddy does. It says what to write in place of some
// shapes that other rate limiters have.
func (h *Handler) UnmarshalJSON(text []byte) error {
	type handler Handler // without this method
	return hinted(caddy.StrictUnmarshalJSON(text, (*handler)(h)))
}

// UnmarshalJSON reads the app, likewise.
func (a *App) UnmarshalJSON(text []byte) error {
	type app App
	return hinted(caddy.StrictUnmarshalJSON(text, (*app)(a)))
}

// hinted adds what to write instead to an error of the decoder, if something comes to mind.
func hinted(err error) error {
	if err == nil {
		return nil
	}
	if hint := jsonHint(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

var unknownField = regexp.MustCompile(`unknown field "(\w+)"`)

// jsonHint says what to write instead, "" if nothing comes to mind.
func jsonHint(err error) string {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return shapeHint(mismatch)
	}
	if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		return otherFields[m[1]]
	}
	return ""
}

func shapeHint(mismatch *json.UnmarshalTypeError) string {
	const limit = `write each rate as an object, like {"max_events": 100, "window": "1m"}`
	switch mismatch.Type {
	case reflect.TypeFor[map[string]*Zone]():
		return `write an object of zones by their names, like {"login": {"limits": [{"max_events": 5, "window": "1m"}]}}`
	case reflect.TypeFor[Zone](), reflect.TypeFor[*Zone]():
		return `write an object with the list in it, like {"limits": [{"max_events": 5, "window": "1m"}]}`
	case reflect.TypeFor[Redis](), reflect.TypeFor[*Redis]():
		return `write an object, like {"url": "redis://localhost:6379/0"}`
	case reflect.TypeFor[Limit]():
		return limit
	case reflect.TypeFor[[]Limit]():
		return "write a list; " + limit
	}
	return ""
}

// otherFields are fields in the JSON of others.
var otherFields = map[string]string{
	"rate":          `write {"rate_limits": {"all": {"key": "{http.vars.client_ip}", "limits": [{"max_events": 10, "window": "1s"}]}}}`,
	"key":           `it belongs into a zone, like {"rate_limits": {"all": {"key": "{http.vars.client_ip}", "limits": [{"max_events": 10, "window": "1s"}]}}}`,
	"zone_size":     "write max_keys, in a zone",
	"reject_status": "write status_code",
	"status":        "write status_code",
	"events":        "write max_events",
	"limit":         `write limits, like "limits": [{"max_events": 100, "window": "1m"}]`,
	"zones":         "write rate_limits",
	"zone":          "write rate_limits",
	"ring_buffer":   `write "algorithm": "sliding_log"`,
}
