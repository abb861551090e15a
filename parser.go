package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// parser is a Dispenser with the habits of all our blocks.
type parser struct{ *caddyfile.Dispenser }

// given are the options of one block so far.
type given map[string]caddyfile.Token

// placed is an error that tells its file and line.
type placed struct{ error }

func (e placed) Unwrap() error { return e.error }

// at is the token's place.
func at(token caddyfile.Token) string { return token.File + ":" + strconv.Itoa(token.Line) }

// placeAt adds file and line, unless the error has them.
func placeAt(token caddyfile.Token, err error) error {
	var already placed
	if errors.As(err, &already) || strings.Contains(err.Error(), ", at "+token.File+":") {
		return placed{err}
	}
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return placed{d.WrapErr(err)}
}

// place finds the line of the option that an error is about.
func (p parser) place(err error, options given, otherwise caddyfile.Token) error {
	var about *optionError
	if errors.As(err, &about) {
		if token, ok := options[about.option]; ok {
			return placeAt(token, err)
		}
	}
	return placeAt(otherwise, err)
}

// options walks the block that opens here, if one does, and calls set at each option. set reads the option's values.
func (p parser) options(seen given, repeatable string, set func(option string) error) error {
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		option, token := p.Val(), p.Token()
		if first, twice := seen[option]; twice && option != repeatable {
			return placeAt(token, fmt.Errorf("%s is given twice, first at %s; keep one of them%s", option, at(first), onOneLine(option)))
		}
		if err := set(option); err != nil {
			return placeAt(token, err)
		}
		seen[option] = token
	}
	return nil
}

func onOneLine(option string) string {
	switch option {
	case "limit":
		return ", with all rates on it, like `limit 5/1m 20/1h`"
	case "headers":
		return ", with all sets on it, like `headers draft kong`"
	}
	return ""
}

// unknownOption says which options there are, or which one it looks like.
func unknownOption(option string, others []string) error {
	if err := misplaced(option, others); err != nil {
		return err
	}
	if near := spelling.Nearest(option, others); near != "" {
		return fmt.Errorf("there is no option %q here; did you mean %s?", clip(option), near)
	}
	switch {
	case option == "{":
		return errors.New("a block opens after an option that takes none; remove the braces, or write each option on its own line")
	case slices.Contains(handlerOptions, option):
		return fmt.Errorf("%s is not an option of a zone; move it out of the zone's braces, beside the zone", option)
	case otherOptions[option] != "":
		return fmt.Errorf("there is no option %q here; %s", option, otherOptions[option])
	}
	return fmt.Errorf("there is no option %q here; the options are %s", clip(option), strings.Join(others, ", "))
}

// examples show how each option is written right.
var examples = map[string]string{
	"zone": "zone login { … }", "match": "match { … }", "key": "key {client_ip}", "limit": "limit 100/1m",
	"algorithm": "algorithm token_bucket", "burst": "burst 50", "buckets": "buckets 10", "queue": "queue 10", "sync_rate": "sync_rate 1s",
	"ipv4_prefix": "ipv4_prefix 24", "ipv6_prefix": "ipv6_prefix 64", "empty_key": "empty_key skip", "count_denied": "count_denied",
	"on_redis_loss": "on_redis_loss divide", "early_sync": "early_sync off", "max_keys": "max_keys 100000", "window": "window 1m", "events": "events 100",
	"status": "status 429", "message": `message "slow down"`, "headers": "headers draft", "jitter": "jitter 0.1", "log_key": "log_key",
	"sweep_interval": "sweep_interval 1m", "disable_metrics": "disable_metrics", "disable_placeholders": "disable_placeholders", "distributed": "distributed { … }",
	"read_interval": "read_interval 5s", "write_interval": "write_interval 5s", "purge_age": "purge_age 1m",
	"redis": "redis redis://localhost:6379", "namespace": "namespace shop", "strict_timeout": "strict_timeout 100ms", "persist": "persist`, or `persist /var/lib/caddy/rate_limit",
	"address": "address localhost:6379", "db": "db 0", "timeout": "timeout 1s", "pool_size": "pool_size 10",
}

// count is the error for too few or too many values.
func (p parser) count(option string) error {
	return fmt.Errorf("the number of values is wrong; write it like `%s`, with quotes around a value that holds spaces", example(option))
}

// word is the option's one value.
func (p parser) word() (string, error) {
	option := p.Val()
	var value string
	if !p.AllArgs(&value) {
		return "", p.count(option)
	}
	return value, nil
}

// words are the option's values, at least one.
func (p parser) words() ([]string, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return nil, p.count(option)
	}
	return values, nil
}

// secret is a value that may come from an environment variable that is not set. It takes no value for an empty one.
func (p parser) secret() (string, error) {
	if p.CountRemainingArgs() == 0 {
		return "", nil
	}
	return p.word()
}

// flag is on without a value.
func (p parser) flag() (bool, error) {
	option := p.Val()
	switch values := p.RemainingArgs(); {
	case len(values) == 0, len(values) == 1 && values[0] == "on":
		return true, nil
	case len(values) == 1 && values[0] == "off":
		return false, nil
	}
	return false, fmt.Errorf("it takes on or off, or nothing for on; write `%s`", option)
}

// number is a whole number that fits into T.
func number[T int | int64](p parser) (T, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && int64(T(n)) != n:
		return 0, fmt.Errorf("the number %s is out of range; write a smaller one", clip(value))
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number; write digits only", clip(value))
	}
	return T(carried(n)), nil
}

// pointer reads into a pointer, so that 0 and nothing differ.
func pointer[T any](value T, err error) (*T, error) { return &value, err }

// duration is any Caddy duration from the shortest to the longest window.
func (p parser) duration() (caddy.Duration, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	d, err := parseWindow(value)
	if err != nil {
		return 0, err
	}
	return caddy.Duration(d), nil
}

func (p parser) syncRate() (*SyncRate, error) {
	value, err := p.word()
	if err != nil {
		return nil, err
	}
	return pointer(parseSyncRate(value))
}

// rates are the limits of a zone.
func (p parser) rates() ([]Limit, error) {
	values, err := p.words()
	if err != nil {
		return nil, err
	}
	return parseLimits(values)
}

func parseLimits(values []string) ([]Limit, error) {
	var limits []Limit
	for _, value := range values {
		r, err := parseRate(value)
		if err != nil {
			return nil, err
		}
		limits = append(limits, Limit{MaxEvents: carried(r.n), Window: caddy.Duration(r.window)})
	}
	return limits, nil
}

// carried is n as it survives Caddy's adapter, which passes numbers through float64: above 2^53 they are rounded, and the largest ones
// come out too large to load. No client reaches either number.
func carried(n int64) int64 { return min(n, 1<<53) }
