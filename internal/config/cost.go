package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// MaxCost is the most that a request can cost.
const MaxCost = 1 << 40

// maxFactor is the largest factor of an amount.
const maxFactor = 1e9

// A Cost is what a request takes of each limit of a zone, in units: the sum of its terms, rounded
// up. The zero value is one unit.
type Cost struct {
	Terms []CostTerm
	// Default is for a request whose placeholders have no number, or whose body has no length. It
	// is needed, and given, where a term depends on the request.
	Default int64
}

// A CostTerm is an amount: some units, or as many as the body of the request has bytes, times a
// factor.
type CostTerm struct {
	// Units are a number, or a placeholder for one. Default: none; they or bytes are required.
	Units *Amount `json:"units,omitempty"`

	// Bytes takes the length of the request's body for the units. Default: false.
	Bytes bool `json:"bytes,omitempty"`

	// Factor is what the units are multiplied with. Range: more than 0, 10^9 at most. Default: 1.
	Factor *float64 `json:"factor,omitempty"`
}

// An Amount is a number of units as JSON has it: 1500, or a placeholder that the number comes from
// with each request, as in "{units}".
type Amount struct {
	// Number is the number, 0 where it comes from a placeholder.
	Number float64
	// From is the placeholder in its braces, "" for none.
	From string
}

// UnmarshalJSON reads a number, or a placeholder in quotes.
func (a *Amount) UnmarshalJSON(text []byte) error {
	*a = Amount{}
	return readNumberOrPlaceholder("units", text, &a.Number, &a.From)
}

// MarshalJSON writes what UnmarshalJSON reads.
func (a Amount) MarshalJSON() ([]byte, error) { return numberOrPlaceholder(a.Number, a.From) }

// Times returns the factor.
func (t *CostTerm) Times() float64 { return *cmp.Or(t.Factor, new(1.0)) }

// IsConstant reports whether the term is the same for all requests.
func (t *CostTerm) IsConstant() bool { return t.Units != nil && t.Units.From == "" }

// IsConstant reports whether the cost is the same for all requests.
func (c *Cost) IsConstant() bool {
	return !slices.ContainsFunc(c.Terms, func(t CostTerm) bool { return !t.IsConstant() })
}

// Constant returns the cost that is the same for all requests.
func (c *Cost) Constant() int64 {
	if len(c.Terms) == 0 {
		return 1
	}
	return WholeUnits(c.sum())
}

// sum returns the sum of terms that are numbers.
func (c *Cost) sum() (sum float64) {
	for i := range c.Terms {
		sum += c.Terms[i].Units.Number * c.Terms[i].Times()
	}
	return sum
}

// Fraction returns the sum of terms that are numbers where it is rounded up to another one, else 0.
// whole is that sum taken as often as it needs to be whole, a thousand times at most, else 0.
func (c *Cost) Fraction() (sum float64, times, whole int64) {
	if sum = c.sum(); float64(WholeUnits(sum)) <= sum {
		return 0, 0, 0
	}
	for times = 2; times <= 1000; times++ {
		n := sum * float64(times)
		if whole = int64(math.Round(n)); math.Abs(n-float64(whole)) < 1e-9*n {
			return sum, times, whole
		}
	}
	return sum, 0, 0
}

// IsBytes reports whether what is counted is bytes.
func (c *Cost) IsBytes() bool {
	return len(c.Terms) > 0 && !slices.ContainsFunc(c.Terms, func(t CostTerm) bool { return !t.Bytes })
}

// WholeUnits rounds a sum of products up, to 0 at least, and to one more than MaxCost at most. What
// is above a whole number by no more than such a sum can be wrong is that number: a million times
// 0.000123 is 123.
func WholeUnits(sum float64) int64 {
	if !(sum > 0) {
		return 0
	}
	if sum > MaxCost {
		return MaxCost + 1
	}
	return int64(math.Ceil(sum - sum/(1<<40)))
}

// ParseUnits reads a number of units as a request or a response brings it: digits, with a fraction
// and an exponent if need be, as in JSON, and blanks around it. Whatever else comes is none.
func ParseUnits(s string) (n float64, ok bool) {
	s = strings.Trim(s, " \t")
	if s == "" || s[0] < '0' || s[0] > '9' || s[len(s)-1] < '0' || s[len(s)-1] > '9' {
		return 0, false
	}
	for i := range len(s) {
		if (s[i] < '0' || s[i] > '9') && strings.IndexByte(".eE+-", s[i]) < 0 {
			return 0, false
		}
	}
	if i := strings.IndexByte(s, '.'); i >= 0 && (s[i+1] < '0' || s[i+1] > '9') {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return n, true
}

// Check reports what is wrong with a term.
func (t *CostTerm) Check() error {
	switch {
	case t.Bytes == (t.Units != nil):
		return errors.New("it is neither a number of units nor bytes, or both; write each amount on its own, like `cost 200` and `cost bytes`")
	case t.Times() <= 0 || t.Times() > maxFactor || math.IsNaN(t.Times()):
		return fmt.Errorf("the factor %g is not above 0, or above 10^9; write one like 0.25", t.Times())
	case t.Bytes || t.Units.From != "":
		return nil
	case t.Units.Number < 0:
		return fmt.Errorf("%g is negative; write 0 or more", t.Units.Number)
	case t.Units.Number*t.Times() > MaxCost:
		return fmt.Errorf("%g is more than a request can cost; write at most 2^40", t.Units.Number*t.Times())
	}
	return nil
}

// ParseCostTerm reads an amount, and what may follow it: a star and a factor. sized is set where it
// is a size, like 1MiB.
func ParseCostTerm(values []string) (t CostTerm, sized bool, err error) {
	const example = "write an amount like 1500, {units} or bytes, and if need be a factor after it, like `cost bytes * 0.25`"
	if len(values) == 3 && values[1] == "*" {
		factor, ok := ParseUnits(values[2])
		if !ok {
			return t, false, fmt.Errorf("the factor %q is not a number; %s", spelling.Clip(values[2]), example)
		}
		t.Factor = &factor
		values = values[:1]
	}
	if len(values) != 1 {
		return t, false, errors.New(example)
	}
	text := values[0]
	switch {
	case text == "bytes":
		t.Bytes = true
		return t, false, t.Check()
	case strings.HasPrefix(text, "{"):
		t.Units = &Amount{From: text}
		if err := CheckPlaceholder(text); err != nil {
			return t, false, err
		}
		return t, false, t.Check()
	}
	n, ok := ParseUnits(text)
	if !ok {
		if plainWord.MatchString(text) && spelling.Nearest(text, []string{"bytes"}) != "" {
			return t, false, fmt.Errorf("there is no %q; did you mean bytes?", spelling.Clip(text))
		}
		var size int64
		if size, sized = ParseSize(text); !sized {
			return t, false, fmt.Errorf("%q is not a number of units; %s", spelling.Clip(text), example)
		}
		n = float64(size)
	}
	t.Units = &Amount{Number: n}
	return t, sized, t.Check()
}

// ParseSize reads a size, like 10GiB; ok is false for what has no unit of bytes, as a plain number.
func ParseSize(s string) (bytes int64, ok bool) {
	if !strings.HasSuffix(s, "B") || strings.ContainsAny(s, " ,") {
		return 0, false
	}
	n, err := humanize.ParseBytes(s)
	return int64(min(n, 1<<53)), err == nil
}

// SizeOf returns a rate whose number is a size as one with a number of bytes, and that size; other
// rates stay, with "".
func SizeOf(rate string) (text, size string) {
	size, _, _ = strings.Cut(rate, "/")
	n, ok := ParseSize(size)
	if !ok {
		return rate, ""
	}
	return strconv.FormatInt(n, 10) + rate[len(size):], size
}
