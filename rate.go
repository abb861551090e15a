package ratelimit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

const (
	minWindow = time.Millisecond
	maxWindow = 10 * 365 * 24 * time.Hour // keeps twice a window, in nanoseconds, far from overflowing

	minSyncRate = 20 * time.Millisecond
)

// parseRate reads a rate, how many in how long: 100/1m, 10/s, 5/90s, 1/1d. The number is 0 or more, 0 denies all. The window is a
// Caddy duration or a bare unit (s, m, h, d), from 1ms to ten years.
func parseRate(s string) (rate, error) {
	r, err := readRate(s)
	if near := nearRate(s); err != nil && near != "" {
		return rate{}, fmt.Errorf("%q is not a rate; did you mean %s?", clip(s), near)
	}
	return r, err
}

func readRate(s string) (rate, error) {
	count, text, _ := strings.Cut(s, "/")
	if strings.HasPrefix(s, "{") {
		return rate{}, fmt.Errorf("%s is not a rate; write the rate here, like 100/1m, and the key in a block of its own, like { key %[1]s }", clip(s))
	}
	if count == "" {
		return rate{}, fmt.Errorf("%q has no number; write how many in how long, like 100/1m", clip(s))
	}
	n, err := parseCount(count)
	if err != nil {
		return rate{}, err
	}
	if text == "" {
		return rate{}, fmt.Errorf("%q has no window; write how many in how long, in one word, like %d/1m", clip(s), n)
	}
	window, err := parseWindow(text)
	if err != nil {
		return rate{}, err
	}
	return rate{n: n, window: window}, nil
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
	if r, err := readRate(m[1] + "/" + near); err == nil {
		return r.String()
	}
	return ""
}

var wordyWindow = regexp.MustCompile(`(?i)^([0-9.]*)(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)$`)

// nearWindow is nearRate for windows: 1min, 1M, hour, 2weeks.
func nearWindow(s string) string {
	m := wordyWindow.FindStringSubmatch(s)
	if m == nil || m[2] == "s" || m[2] == "m" || m[2] == "h" || m[2] == "d" {
		return ""
	}
	unit := strings.ToLower(m[2][:1])
	if unit == "w" {
		if n, err := strconv.Atoi(cmp.Or(m[1], "1")); err == nil {
			return strconv.Itoa(7*n) + "d"
		}
		return ""
	}
	return cmp.Or(m[1], "1") + unit
}

// parseCount reads a whole number of 0 or more.
func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-"):
		return 0, fmt.Errorf("the number %s is too large; write %d at most", clip(s), int64(math.MaxInt64))
	case err != nil && !errors.Is(err, strconv.ErrRange), strings.HasPrefix(s, "+"):
		return 0, fmt.Errorf("%q is not a whole number; write digits only, like the 100 in 100/1m", clip(s))
	}
	if err != nil || n < 0 {
		return 0, fmt.Errorf("the number %s is negative; write 0 or more", clip(s))
	}
	return n, nil
}

// parseWindow reads a window: a Caddy duration or a bare unit.
func parseWindow(s string) (time.Duration, error) {
	switch s {
	case "s", "m", "h", "d":
		s = "1" + s
	}
	window, err := caddy.ParseDuration(s)
	if near := nearWindow(s); err != nil && near != "" {
		return 0, fmt.Errorf("the window %q is not a duration; did you mean %s?", clip(s), near)
	}
	if err != nil && strings.Trim(s, "0123456789.") == "" {
		return 0, fmt.Errorf("the window %q has no unit; write %ss for seconds, or use m, h or d", clip(s), clip(s))
	}
	if err != nil {
		return 0, fmt.Errorf("the window %q is not a duration of %s at most; write one like 1s, 90s, 1m, 1h or 1d", clip(s), windowText(maxWindow))
	}
	return window, checkWindow(window)
}

func checkWindow(window time.Duration) error {
	switch {
	case window < 0:
		return fmt.Errorf("the window %s is negative; write %s", windowText(window), windowText(-max(window, -maxWindow)))
	case window == 0:
		return errors.New("the window 0s is empty; write 1s or another duration of at least 1ms")
	case window < minWindow:
		if window > 0 && window < time.Microsecond { // a number in JSON
			return fmt.Errorf("the window %s is too short; write 1ms at least, in JSON as text with its unit, like \"60s\"", windowText(window))
		}
		return fmt.Errorf("the window %s is too short; write 1ms at least", windowText(window))
	case window > maxWindow:
		return fmt.Errorf("the window %s is too long; write %s at most", windowText(window), windowText(maxWindow))
	}
	return nil
}

// check is for rates that did not come from parseRate.
func (r rate) check() error {
	if r.n < 0 {
		return fmt.Errorf("the number %d is negative; write 0 or more", r.n)
	}
	return checkWindow(r.window)
}

// String is the rate as parseRate reads it.
func (r rate) String() string { return strconv.FormatInt(r.n, 10) + "/" + windowText(r.window) }

// windowText is a duration with the largest unit that needs no fraction: 1m, 90s, 1d, 1500ms. Different durations have different
// texts, so it can be part of a name.
func windowText(d time.Duration) string {
	units := []struct {
		name string
		unit time.Duration
	}{
		{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
	}
	if d == 0 {
		return "0s"
	}
	for _, u := range units {
		if d%u.unit == 0 {
			return strconv.FormatInt(int64(d/u.unit), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// SyncRate is how often counts are exchanged: below 0 never, 0 on every request, else the interval. In JSON it is
// a duration string, "local", "strict", or a number of seconds.
type SyncRate time.Duration

const (
	syncLocal  SyncRate = -1
	syncStrict SyncRate = 0
)

// parseSyncRate reads -1 or local, 0 or strict, a number of seconds, or a duration of at least 20ms.
func parseSyncRate(s string) (SyncRate, error) {
	switch s {
	case "local":
		return syncLocal, nil
	case "strict":
		return syncStrict, nil
	}
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		return syncRateOfSeconds(seconds)
	}
	interval, err := caddy.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write one like 500ms or 1s, or strict (0), or local (-1)", clip(s))
	}
	if interval < 0 {
		return 0, fmt.Errorf("%q is negative; write local (-1) for no exchange, or a duration like 1s", clip(s))
	}
	return SyncRate(interval), SyncRate(interval).check()
}

// syncRateOfSeconds takes the numbers that Kong takes.
func syncRateOfSeconds(seconds float64) (SyncRate, error) {
	switch {
	case seconds == -1:
		return syncLocal, nil
	case math.IsNaN(seconds), seconds < 0:
		return 0, fmt.Errorf("%g seconds is not a rate to sync at; write local (-1) for no exchange, or a duration like 1s", seconds)
	case seconds > maxWindow.Seconds():
		return 0, fmt.Errorf("%g seconds is too long; write a duration like 1s, or local (-1) for no exchange", seconds)
	}
	s := SyncRate(math.Round(seconds * float64(time.Second)))
	if s == 0 && seconds != 0 {
		s = 1 // not strict: too short
	}
	return s, s.check()
}

func (s SyncRate) check() error {
	interval := time.Duration(s)
	switch {
	case interval > 0 && interval < minSyncRate:
		return fmt.Errorf("%s is too short; write %s or longer, or strict (0) to ask Redis on every request", windowText(interval), windowText(minSyncRate))
	case interval > maxWindow:
		return fmt.Errorf("%s is too long; write a duration like 1s, or local (-1) for no exchange", windowText(interval))
	}
	return nil
}

// String is the rate as parseSyncRate reads it.
func (s SyncRate) String() string {
	switch {
	case s < 0:
		return "local"
	case s == syncStrict:
		return "strict"
	}
	return windowText(time.Duration(s))
}

// MarshalJSON writes "local", "strict" or a duration string.
func (s SyncRate) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a duration string, "local", "strict", or a number of seconds.
func (s *SyncRate) UnmarshalJSON(text []byte) error {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	var parsed SyncRate
	var err error
	switch v := value.(type) {
	case nil:
		return nil
	case string:
		parsed, err = parseSyncRate(v)
	case float64:
		parsed, err = syncRateOfSeconds(v)
	default:
		err = errors.New(`neither a string nor a number; write a duration like "1s", "local" or "strict", or a number of seconds`)
	}
	if err != nil {
		return fmt.Errorf("parsing sync_rate: %w", err)
	}
	*s = parsed
	return nil
}

// clip keeps an error short whatever was written.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
