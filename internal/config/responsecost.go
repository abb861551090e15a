package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/caddy-tide/ratelimit/internal/figures"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A ResponseCost is what a response says that its request has cost, in units: the sum of its terms,
// rounded up. Without terms a request costs what it took.
type ResponseCost struct {
	Terms []ResponseTerm
	// Default is the least that is charged where a response that counts doesn't say it.
	Default int64
}

// A ResponseTerm is where a figure of a response comes from, exactly one of these, and a factor.
type ResponseTerm struct {
	// Header is the field of the response's header that has the number. Default: none.
	Header string `json:"header,omitempty"`

	// JSON are paths of numbers in the response's body, like usage.total_tokens, of which the
	// greatest counts: in JSON, in lines of it, and in server-sent events. Default: none.
	JSON []string `json:"json,omitempty"`

	// Bytes takes the length of the response's body, as it leaves the handler. Default: false.
	Bytes bool `json:"bytes,omitempty"`

	// Units is a placeholder that has the number once the handler has returned. Default: none.
	Units string `json:"units,omitempty"`

	// Factor is what the figure is multiplied with, more than 0 and at most 10^9. Default: 1.
	Factor *float64 `json:"factor,omitempty"`
}

// IsBytes reports whether all that is counted is bytes.
func (c *ResponseCost) IsBytes() bool {
	return len(c.Terms) > 0 && !slices.ContainsFunc(c.Terms, func(t ResponseTerm) bool { return !t.Bytes })
}

// JSON returns the paths of each term that has some, nil for none.
func (c *ResponseCost) JSON() (lines [][]string) {
	for i := range c.Terms {
		if paths := c.Terms[i].JSON; len(paths) > 0 {
			lines = append(lines, paths)
		}
	}
	return lines
}

// Times returns the factor.
func (t *ResponseTerm) Times() float64 { return *cmp.Or(t.Factor, new(1.0)) }

const sources = "write where the figure stands, like `response_cost header X-Cost`, `response_cost json usage.total_tokens`, `response_cost bytes` or `response_cost {http.vars.units}`, and if need be a factor after it, like `* 0.25`"

// Check reports what is wrong with a term.
func (t *ResponseTerm) Check() error {
	given := 0
	for _, is := range []bool{t.Header != "", len(t.JSON) > 0, t.Bytes, t.Units != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return errors.New("it has no source, or several; " + sources)
	case t.Times() <= 0 || t.Times() > maxFactor || math.IsNaN(t.Times()):
		return fmt.Errorf("the factor %g is not above 0, or above 10^9; write one like 0.25", t.Times())
	case t.Units != "":
		return CheckPlaceholder(t.Units)
	}
	for _, path := range t.JSON {
		if err := figures.CheckPath(path); err != nil {
			return err
		}
	}
	return nil
}

// ParseResponseTerm reads a source, and what may follow it: a star and a factor.
func ParseResponseTerm(values []string) (t ResponseTerm, err error) {
	if n := len(values); n > 2 && values[n-2] == "*" {
		factor, ok := ParseUnits(values[n-1])
		if !ok {
			return t, fmt.Errorf("the factor %q is not a number; %s", spelling.Clip(values[n-1]), sources)
		}
		t.Factor, values = &factor, values[:n-2]
	}
	words := []string{"header", "json", "bytes"}
	near := spelling.Nearest(values[0], words)
	switch {
	case near != "" && !slices.Contains(words, values[0]):
		return t, fmt.Errorf("there is no %q; did you mean %s?", spelling.Clip(values[0]), near)
	case len(values) == 2 && values[0] == "header":
		t.Header = values[1]
	case len(values) > 1 && values[0] == "json":
		t.JSON = values[1:]
	case len(values) == 1 && values[0] == "bytes":
		t.Bytes = true
	case len(values) == 1 && strings.HasPrefix(values[0], "{"):
		t.Units = values[0]
	default:
		return t, errors.New(sources)
	}
	return t, t.Check()
}
