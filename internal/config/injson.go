package config

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// RedisMend is how Redis is configured, as a part of a sentence.
const RedisMend = "add the line `redis redis://localhost:6379` to the rate_limit block of the global options at the top"

var (
	// bothWays is a line of a Caddyfile with what it is in JSON.
	bothWays = regexp.MustCompile("`[^`]*`, in JSON ")
	oneLine  = regexp.MustCompile("`([a-z_0-9]+) ([^`]+)`")
)

// InJSON returns the text of an error about JSON: where it says what to write as a line of a
// Caddyfile, that is in JSON. Lines that it doesn't know stay.
func InJSON(text string) string {
	text = strings.ReplaceAll(text, RedisMend, "add `\"redis\": {\"url\": \"redis://localhost:6379\"}` to apps.rate_limit")
	text = bothWays.ReplaceAllString(text, "")
	return oneLine.ReplaceAllStringFunc(text, func(line string) string {
		m := oneLine.FindStringSubmatch(line)
		if field := inJSON(m[1], m[2]); field != "" {
			return "`" + field + "`"
		}
		return line
	})
}

// inJSON returns the field that an option or a matcher with this value is in JSON, "" for none.
func inJSON(option, value string) string {
	quoted := func(s string) string {
		text, _ := json.Marshal(s) // which no string makes fail
		return string(text)
	}
	switch option {
	case "limit":
		return `"limits": [` + limitInJSON(value) + `]`
	case "zone":
		name, rest, _ := strings.Cut(value, " { limit ")
		if limit, ok := strings.CutSuffix(rest, " }"); ok {
			return fmt.Sprintf(`%s: {"limits": [%s]}`, quoted(name), limitInJSON(limit))
		}
	case "after":
		return `"after": ` + limitInJSON(value)
	case "limit_default":
		n, _, _ := strings.Cut(value, "/")
		return `"default": ` + n
	case "events":
		return `"max_events": ` + value
	case "queue", "burst", "buckets", "max_keys", "concurrent", "cost_default", "ipv4_prefix", "ipv6_prefix":
		return fmt.Sprintf("%q: %s", option, value)
	case "cost":
		if value == "bytes" {
			return `"cost": [{"bytes": true}]`
		}
		amount, _, _ := strings.Cut(value, " ")
		if _, err := strconv.Atoi(amount); err != nil {
			amount = quoted(amount)
		}
		return `"cost": [{"units": ` + amount + `}]`
	case "response_cost":
		return `"response_cost": [{` + sourceInJSON(value) + `}]`
	case "window", "algorithm", "sync_rate", "key", "empty_key", "on_redis_loss", "bandwidth":
		return fmt.Sprintf("%q: %s", option, quoted(value))
	case "enforce":
		if value == "off" {
			return `"enforce": 0`
		}
	case "ban":
		length, after, _ := strings.Cut(value, " after ")
		if after != "" {
			after = `, "after": ` + limitInJSON(after)
		}
		return `"ban": {"for": ` + quoted(length) + after + `}`
	case "count_responses":
		var codes []string
		for _, code := range strings.Fields(value) {
			codes = append(codes, strings.TrimSuffix(code, "xx"))
		}
		return `"count_responses": {"status_code": [` + strings.Join(codes, ", ") + `]}`
	case "reserve":
		return `"reserve": [{"share": 0.2, "match": [{"header": {"X-Plan": ["paid"]}}]}]`
	case "path", "host", "method":
		return fmt.Sprintf("%q: [%s]", option, quoted(value))
	case "client_ip", "remote_ip":
		return fmt.Sprintf(`%q: {"ranges": [%s]}`, option, quoted(value))
	}
	return ""
}

// sourceInJSON returns the field of a source of response_cost.
func sourceInJSON(value string) string {
	switch source, of, _ := strings.Cut(value, " "); source {
	case "bytes":
		return `"bytes": true`
	case "json":
		return fmt.Sprintf(`"json": [%q]`, of)
	case "header":
		return fmt.Sprintf(`"header": %q`, of)
	}
	return fmt.Sprintf(`"units": %q`, value)
}

// limitInJSON returns a rate as an object.
func limitInJSON(rate string) string {
	number, window, _ := strings.Cut(rate, "/")
	if _, err := strconv.Atoi(number); err != nil {
		number = strconv.Quote(number) // a placeholder
	}
	if w, err := ParseWindow(window); err == nil {
		window = WindowText(w)
	}
	return fmt.Sprintf(`{"max_events": %s, "window": %q}`, number, window)
}
