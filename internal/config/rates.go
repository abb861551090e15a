// The rates of a configuration, read, checked and written: how many requests in how long.

package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/saturate"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A Rate is a number of requests in a window of time.
type Rate struct {
	// Limit is the number of requests, 0 or more; 0 denies all. Where the number comes with the
	// request it is the default.
	Limit int64
	// Window is MinWindow to MaxWindow, or one of a calendar, such as algorithms.Month.
	Window time.Duration
	// From is the placeholder that the number comes from with each request, in its braces; "" where
	// it is the same for all.
	From string
}

// ParseRate reads a rate, how many in how long: 100/1m, 10/s, 5/90s, 1/1d, 250000/month. The number
// is 0 or more, 0 denies all. ParseWindow reads the window, unless it is one of a calendar.
func ParseRate(s string) (Rate, error) {
	r, err := parseRate(s)
	if near := nearRate(s); err != nil && near != "" {
		return Rate{}, fmt.Errorf("%q is not a rate; did you mean %s?", spelling.Clip(s), near)
	}
	return r, err
}

func parseRate(s string) (Rate, error) {
	count, text, _ := strings.Cut(s, "/")
	if strings.HasPrefix(s, "{") && strings.Contains(s, "}/") {
		return Rate{}, fmt.Errorf("the number of %s comes with the request, which only the limit of a zone can; write a number here, like 60/1m, or `limit %[1]s` into a block like `zone plan`, and a limit_default beside it", spelling.Clip(s))
	}
	if strings.HasPrefix(s, "{") {
		return Rate{}, fmt.Errorf("%s is not a rate; write the rate here, like 100/1m, and the key in a block of its own, like { key %[1]s }", spelling.Clip(s))
	}
	if count == "" {
		return Rate{}, fmt.Errorf("%q has no number; write how many in how long, like 100/1m", spelling.Clip(s))
	}
	n, err := ParseCount(count)
	if whole := wholeRate(count, text); err != nil && whole != "" {
		return Rate{}, fmt.Errorf("%q is not a whole number; write %s, with a longer window", count, whole)
	}
	if err != nil {
		return Rate{}, err
	}
	if text == "" {
		return Rate{}, fmt.Errorf("%q has no window; write how many in how long, in one word, like %d/1m", spelling.Clip(s), n)
	}
	window, err := parseRateWindow(text)
	if err != nil {
		return Rate{}, err
	}
	return Rate{Limit: n, Window: window}, nil
}

// MeantRate returns the rate that an error of ParseRate proposes for a text, if it does.
func MeantRate(s string) (r Rate, ok bool) {
	count, window, _ := strings.Cut(s, "/")
	r, err := parseRate(cmp.Or(nearRate(s), wholeRate(count, window)))
	return r, err == nil
}

// wholeRate writes a number with a fraction as a whole one in a longer window, 0.5/s as 1/2s; "" if
// there is none in a thousand windows.
func wholeRate(number, window string) string {
	n, err := strconv.ParseFloat(number, 64)
	w, noWindow := ParseWindow(window)
	if err != nil || noWindow != nil || n > 1e9 {
		return ""
	}
	for times := 1.0; times <= 1000 && times*float64(w) <= float64(MaxWindow); times++ {
		r := Rate{Limit: int64(math.Round(n * times)), Window: w * time.Duration(times)}
		if math.Abs(n*times-float64(r.Limit)) < 1e-6 && r.Limit > 0 && r.Check() == nil {
			return r.String()
		}
	}
	return ""
}

// ParseLimit reads a rate, or one whose number comes with the request: {plan}/1m.
func ParseLimit(s string) (Rate, error) {
	if count, _, ok := strings.Cut(s, "/{"); ok {
		return Rate{}, fmt.Errorf("the window of %s can't come with the request; write it here, like %s/1m", spelling.Clip(s), spelling.Clip(count))
	}
	end := strings.LastIndexByte(s, '}')
	if !strings.HasPrefix(s, "{") || end < 0 {
		return ParseRate(s)
	}
	r := Rate{From: s[:end+1]}
	text, ok := strings.CutPrefix(s[end+1:], "/")
	if !ok || text == "" {
		return Rate{}, fmt.Errorf("%q has no window; write how many in how long, in one word, like %s/1m", spelling.Clip(s), spelling.Clip(r.From))
	}
	if err := CheckPlaceholder(r.From); err != nil {
		return Rate{}, err
	}
	var err error
	r.Window, err = parseRateWindow(text)
	return r, err
}

// CheckPlaceholder reports what is wrong with a placeholder that a number comes from.
func CheckPlaceholder(s string) error {
	name, ok := strings.CutPrefix(s, "{")
	if name, ok2 := strings.CutSuffix(name, "}"); !ok || !ok2 || name == "" || strings.ContainsAny(name, "{}") {
		return fmt.Errorf("%q is neither a whole number nor one placeholder; write digits only, like 100, or one placeholder, like {plan}", spelling.Clip(s))
	}
	return nil
}

// wordyRate matches rates as other programs and people write them: 100r/s, 100rpm, 100/min, 5/1M.
var wordyRate = regexp.MustCompile(`(?i)^(\d+) *(?:r|reqs?|requests?)?(?:/|per|p)([0-9.]*[a-z]+)$`)

// nearRate returns what such a rate was probably meant to be, "" if it is something else.
func nearRate(s string) string {
	m := wordyRate.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	near := nearWindow(m[2])
	if near == "" {
		near = m[2]
		if strings.Trim(near, "smhd") == "" {
			near = "1" + near
		}
	}
	if r, err := parseRate(m[1] + "/" + near); err == nil {
		return r.String()
	}
	return ""
}

// ParseCount reads a whole number of 0 or more.
func ParseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-"):
		return 0, fmt.Errorf("the number %s is too large; write %d at most", spelling.Clip(s), int64(math.MaxInt64))
	case err != nil && !errors.Is(err, strconv.ErrRange), strings.HasPrefix(s, "+"):
		return 0, fmt.Errorf("%q is not a whole number; write digits only, like the 100 in 100/1m", spelling.Clip(s))
	}
	if err != nil || n < 0 {
		return 0, fmt.Errorf("the number %s is negative; write 0 or more", spelling.Clip(s))
	}
	return n, nil
}

// Check reports what is wrong with a rate that did not come from Parse.
func (r Rate) Check() error {
	if r.Limit < 0 {
		return fmt.Errorf("the number %d is negative; write 0 or more", r.Limit)
	}
	if r.From != "" {
		if err := CheckPlaceholder(r.From); err != nil {
			return err
		}
	}
	return checkWindow(r.Window)
}

// String returns the rate as ParseLimit reads it, without its default.
func (r Rate) String() string {
	if r.From != "" {
		return r.From + "/" + WindowText(r.Window)
	}
	return strconv.FormatInt(r.Limit, 10) + "/" + WindowText(r.Window)
}

// Span returns how long n requests, 0 or more, take at the rate: the longest Duration where it is
// longer than that, 0 at a rate that denies all.
func (r Rate) Span(n int64) time.Duration {
	if r.Limit == 0 {
		return 0
	}
	return time.Duration(saturate.MulDiv(n, int64(r.Window), r.Limit))
}

// Sorted returns the rates that decide, by window: of equal windows the one with the lowest limit.
func Sorted(all []Rate) []Rate {
	all = slices.SortedFunc(slices.Values(all), func(a, b Rate) int {
		return cmp.Or(cmp.Compare(a.Window, b.Window), cmp.Compare(a.Limit, b.Limit))
	})
	return slices.CompactFunc(all, func(a, b Rate) bool { return a.Window == b.Window })
}
