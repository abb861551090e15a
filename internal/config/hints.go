// Hints say what to write in place of what a configuration has: a misspelled word, an option in the
// wrong block, the words of other rate limiters (Caddy plugins and their forks, Kong, nginx). It is
// for error messages only.

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/reqkey"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// otherOptions are options of others, and of earlier versions.
var otherOptions = map[string]string{
	"requests": asLimit, "period": asLimit, "interval": asLimit, "window_size": asLimit, "rate": asLimit, "max_events": asLimit,
	"reject_status": asStatus, "status_code": asStatus, "error_code": asStatus,
	"limit_by": asKey, "identifier": asKey,
	"whitelist": asExcept, "allowlist": asExcept, "allow": asExcept, "skip": asExcept, "exclude": asExcept,
	"shadow": asShadow, "dry_run": asShadow, "log_only": asShadow,
	"sync_interval": "write `sync_rate`, like `sync_rate 1s`",
	"url":           "write `redis`, like `redis redis://localhost:6379`",
	"sentinel":      "write `redis sentinel { … }`, with `master_name` in it",
	"header":        "write `headers ietf`, `kong` or `github`; a header of a request is a matcher, in the block of `match`",

	"ring_buffer":         "write `algorithm sliding_log`",
	"window_type":         "write `algorithm sliding_window` or `algorithm fixed_window`",
	"zone_size":           "write `max_keys`",
	"error_message":       "write `message`" + outside,
	"hide_client_headers": "write `headers off`" + outside,
	"fault_tolerant":      "write `on_redis_loss allow` for true, `on_redis_loss deny` for false",
	"nodelay":             "write a `burst`",

	"buckets":              "write `sub_windows`",
	"disable_placeholders": "remove it: nothing stands in its place",
	"key_prefix":           "write `namespace` beside redis",
	"tls_server_certs_pem": "write the certificates into files, and `tls_server_certs_path`",
}

const (
	asLimit  = "write `limit`, with its window, like `limit 100/1m`"
	asStatus = "write `status`" + outside
	asKey    = "write `key`, like `key {client_ip}`"
	asExcept = "write `except`, like `except private_ranges`"
	asShadow = "write `enforce off`"
	outside  = ", outside of the zone"
)

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

	"buckets":              "write sub_windows",
	"disable_placeholders": "remove it: nothing stands in its place",
	"key_prefix":           "write namespace, beside redis",
	"tls_server_certs_pem": "write the certificates into files, and tls_server_certs_path",
}

// otherNames are values of others, and of earlier versions.
var otherNames = map[string]string{
	"ring_buffer": "sliding_log", "sliding_window_log": "sliding_log", "sliding_window_counter": "sliding_window", "sliding": "sliding_window",
	"fixed": "fixed_window", "token": "token_bucket", "leaky": "leaky_bucket",
	"true": "on", "yes": "on", "false": "off", "no": "off",
	"open": "allow", "closed": "deny", "fail_open": "allow", "fail_closed": "deny", "draft": "ietf", "sentinel": "failover",
}

// ChooseName returns the index of value in names, 0 if there is no value. Its error says which name
// was probably meant, or which there are.
func ChooseName[T ~int | ~uint8](value string, names []string) (T, error) {
	if value == "" {
		return 0, nil
	}
	if i := slices.Index(names, value); i >= 0 {
		return T(i), nil
	}
	near := spelling.Nearest(value, names)
	if meant := otherNames[value]; slices.Contains(names, meant) {
		near = meant
	}
	if near != "" {
		return 0, fmt.Errorf("there is no %q; did you mean %s?", spelling.Clip(value), near)
	}
	return 0, fmt.Errorf("there is no %q; write one of %s", spelling.Clip(value), strings.Join(names, ", "))
}

// NoRateFirst returns the error for values after rate_limit and its matcher, "" for none, that
// begin with a placeholder or a name, nil if they begin with something else.
func NoRateFirst(matcher string, values []string) error {
	first := values[0]
	switch {
	case plainWord.MatchString(first):
		return nameFirst(values)
	case !strings.HasPrefix(first, "{"):
		return nil
	case strings.HasPrefix(first, "{args"):
		return fmt.Errorf("%s has no value, as the import gives too few; write the rate after the snippet's name, like `import limits 100/1m`", spelling.Clip(first))
	case strings.HasPrefix(first, "{env."), strings.HasPrefix(first, "{file."):
		return fmt.Errorf("%s is filled in too late: a rate is read with the Caddyfile; write it here, or as {$RATE} if it is in an environment variable", spelling.Clip(first))
	case strings.HasSuffix(first, "}"):
		return keyFirst(matcher, values)
	}
	return nil
}

var plainWord = regexp.MustCompile(`^[A-Za-z_][\w-]*$`)

// nameFirst returns the error for the name of an option or of a zone in the place of a rate.
func nameFirst(values []string) error {
	name := spelling.Clip(values[0])
	switch {
	case name == "zone" && len(values) > 1:
		name = spelling.Clip(values[1])
	case Unnamed.Has(name):
		return fmt.Errorf("%s is an option, and the rate comes first; write `rate_limit 100/1m`, and in a block after it, on a line of its own, `%s`", name, ExampleOf(name))
	}
	return fmt.Errorf("%[1]q is not a rate; write one, like `rate_limit 100/1m`; or if a zone is meant, `zone %[1]s { … }` with its limit into the block of rate_limit: "+
		"there is no line that uses a zone of another rate_limit; to have it in several places, put that rate_limit into a snippet and import it", name)
}

var nginxRate = regexp.MustCompile(`^(\d+)r/([sm])$`)

// prefixedAddress are keys that are a part of an address, with the number of its bits.
var prefixedAddress = regexp.MustCompile(`^\{remote\.(host|ip)_prefix\.(\d{1,3})\}$`)

// keyFirst returns the error for a line of the plugin whose arguments are a key, a rate, a number
// of keys and a status. It rewrites the line as far as it is understood.
func keyFirst(matcher string, values []string) error {
	key, rate := values[0], "100/1m"
	if len(values) > 1 {
		rate = nginxRate.ReplaceAllString(values[1], "$1/$2")
	}
	if _, err := ParseRate(rate); err != nil {
		rate = "100/1m"
	}
	line := strings.Join(strings.Fields("rate_limit "+spelling.Clip(matcher)+" "+rate), " ")
	var block []string
	for i, option := range []string{"max_keys", "status"} {
		if len(values) > i+2 {
			block = append(block, fmt.Sprintf("`%s %s`", option, spelling.Clip(values[i+2])))
		}
	}
	block = append(keyOptions(key), block...)
	if key == "{remote.port}" {
		return fmt.Errorf("{remote.port} is a key that is new with each connection, so it limits nobody; write `%s`, which counts by the client's address", line)
	}
	return fmt.Errorf("%s is a key, and the rate comes first; write `%s`, and in a block after it, on lines of their own, %s", spelling.Clip(key), line, strings.Join(block, ", "))
}

// keyOptions returns how a key of that plugin is written here.
func keyOptions(key string) []string {
	name := strings.Trim(key, "{}")
	switch part := prefixedAddress.FindStringSubmatch(key); {
	case part != nil:
		of, family := "{client_ip}", 4
		if part[1] == "host" {
			of = "{remote_host}"
		}
		if bits, _ := strconv.Atoi(part[2]); bits > 32 {
			family = 6
		}
		return []string{"`key " + of + "`", fmt.Sprintf("`ipv%d_prefix %s`", family, part[2])}
	case reqkey.MeansClientIP(name):
		key = "{client_ip}"
	case name == "remote.host":
		key = "{remote_host}"
	}
	return []string{"`key " + spelling.Clip(key) + "`"}
}

// NumberMissing returns the error for a rate without its number in the place of a matcher, nil for
// any other word: {$N}/1m, with N not set, is /1m, and a limit for that path is not what was meant.
// A path like /s is meant where it stands alone, before a block of zones.
func NumberMissing(word string, alone bool) error {
	window, ok := strings.CutPrefix(word, "/")
	if _, err := ParseWindow(window); !ok || err != nil {
		return nil
	}
	if alone && strings.TrimLeft(window, "0123456789") == window {
		return nil
	}
	return fmt.Errorf("/%[1]s stands where a path is, but looks like a rate whose number is missing, as {$N}/%[1]s is where N is not set; "+
		"set the variable, or write {$N:100}/%[1]s for a default; if the path is meant, write `@path path /%[1]s` and `rate_limit @path 100/1m`", spelling.Clip(window))
}

var unknownField = regexp.MustCompile(`unknown field "(\w+)"`)

// ExplainJSON returns an error of the JSON decoder, with what to write instead if something comes
// to mind. shapes are hints for values of another type than these.
func ExplainJSON(err error, shapes map[reflect.Type]string) error {
	if err == nil {
		return nil
	}
	var hint string
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		hint = shapes[mismatch.Type]
	} else if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		hint = otherFields[m[1]]
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, hint)
}
