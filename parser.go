package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// parser reads options and their values.
type parser struct{ *caddyfile.Dispenser }

// optionTokens are the options of one block so far, and where they stand.
type optionTokens map[string]caddyfile.Token

// place adds the place of the option that an error is about.
func (p parser) place(err error, options optionTokens, otherwise caddyfile.Token) error {
	var about *optionError
	if errors.As(err, &about) {
		if token, ok := options[about.option]; ok {
			return placeAt(token, err)
		}
	}
	return placeAt(otherwise, err)
}

// options reads the block that opens here, if one does. It calls set at each option, and set reads
// the values. Only the repeatable options may stand several times.
func (p parser) options(seen optionTokens, set func(option string) error, repeatable ...string) error {
	for nesting := p.Nesting(); p.NextBlock(nesting); {
		option, token := p.Val(), p.Token()
		if first, twice := seen[option]; twice && !slices.Contains(repeatable, option) {
			return placeAt(token, fmt.Errorf("%s is given twice, first at %s; keep one of them%s", option, placeOf(first), onOneLine(option)))
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

// count returns the error for too few or too many values.
func (p parser) count(option string) error {
	return fmt.Errorf("the number of values is wrong; write it like `%s`, with quotes around a value that holds spaces", config.ExampleOf(option))
}

// word reads the option's one value.
func (p parser) word() (string, error) {
	option := p.Val()
	var value string
	if !p.AllArgs(&value) {
		return "", p.count(option)
	}
	return value, nil
}

// one reads the option's one value by parse.
func one[T any](p parser, parse func(string) (T, error)) (value T, err error) {
	text, err := p.word()
	if err != nil {
		return value, err
	}
	return parse(text)
}

// words reads the option's values, at least one.
func (p parser) words() ([]string, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return nil, p.count(option)
	}
	return values, nil
}

// wordOr reads the option's one value, or returns what no value stands for.
func (p parser) wordOr(none string) (string, error) {
	if p.CountRemainingArgs() == 0 {
		return none, nil
	}
	return p.word()
}

// flag reads on or off, and no value as on.
func (p parser) flag() (bool, error) {
	option := p.Val()
	values := p.RemainingArgs()
	if len(values) == 0 {
		return true, nil
	}
	if len(values) > 1 || values[0] == "" {
		return false, fmt.Errorf("it takes on or off, or nothing for on; write `%s`", option)
	}
	i, err := config.ChooseName[int](values[0], []string{"on", "off"})
	return err == nil && i == 0, err
}

// whole reads a whole number that fits into T.
func whole[T int | int64](p parser) (T, error) {
	value, err := p.word()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && int64(T(n)) != n:
		return 0, fmt.Errorf("the number %s is out of range; write a smaller one", spelling.Clip(value))
	case err != nil:
		return 0, fmt.Errorf("%q is not a whole number; write digits only", spelling.Clip(value))
	}
	return T(carried(n)), nil
}

// pointer returns a pointer to a value, so that 0 and nothing differ.
func pointer[T any](value T, err error) (*T, error) { return &value, err }

// duration reads a Caddy duration from the shortest to the longest window.
func (p parser) duration() (caddy.Duration, error) {
	d, err := one(p, config.ParseWindow)
	return caddy.Duration(d), err
}

func (p parser) syncRate() (*config.SyncRate, error) { return pointer(one(p, config.ParseSyncRate)) }

// rates reads values as rates.
func (p parser) rates(parse func(string) (config.Rate, error)) (all []config.Rate, err error) {
	values, err := p.words()
	if err != nil {
		return nil, err
	}
	return parseRates(values, parse)
}

func parseRates(values []string, parse func(string) (config.Rate, error)) (all []config.Rate, err error) {
	for _, value := range values {
		r, err := parse(value)
		if err != nil {
			return nil, err
		}
		r.Limit = carried(r.Limit)
		all = append(all, r)
	}
	return all, nil
}

// limitsOf returns rates as the limits of a zone.
func limitsOf(all []config.Rate) (limits []Limit) {
	for _, r := range all {
		limits = append(limits, Limit{MaxEvents: config.Events{Number: r.Limit, From: r.From}, Window: caddy.Duration(r.Window)})
	}
	return limits
}

// carried returns n as it survives Caddy's adapter, which passes numbers through float64: above
// 2^53 they are rounded, and the largest ones come out too large to load. No client reaches either
// number.
func carried(n int64) int64 { return min(n, 1<<53) }

// perAdaptation returns a map that lives as long as one adaptation.
func perAdaptation[M ~map[string]V, V any](h httpcaddyfile.Helper, name string) M {
	m, ok := h.State[name].(M)
	if !ok {
		m = M{}
		h.State[name] = m
	}
	return m
}
