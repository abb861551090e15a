package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// The shortest and the longest window. Twice the longest, in nanoseconds, is far from overflowing.
const (
	MinWindow = time.Millisecond
	MaxWindow = 10 * 365 * 24 * time.Hour
)

// ParseWindow reads a window: a Caddy duration or a bare unit (s, m, h, d), from MinWindow to
// MaxWindow.
func ParseWindow(s string) (time.Duration, error) {
	switch s {
	case "s", "m", "h", "d":
		s = "1" + s
	}
	window, err := caddy.ParseDuration(s)
	if near := nearWindow(s); err != nil && near != "" {
		return 0, fmt.Errorf("the window %q is not a duration; did you mean %s?", spelling.Clip(s), near)
	}
	if err != nil && strings.Trim(s, "0123456789.") == "" {
		return 0, fmt.Errorf("the window %q has no unit; write %ss for seconds, or use m, h or d", spelling.Clip(s), spelling.Clip(s))
	}
	if err != nil {
		return 0, fmt.Errorf("the window %q is not a duration of %s at most; write one like 1s, 90s, 1m, 1h or 1d", spelling.Clip(s), WindowText(MaxWindow))
	}
	return asLength(window), checkWindow(window)
}

// parseRateWindow reads the window of a rate: ParseWindow's, or day, week, month or year.
func parseRateWindow(s string) (time.Duration, error) {
	if window, ok := calendar.Window(s); ok {
		return window, nil
	}
	return ParseWindow(s)
}

var wordyWindow = regexp.MustCompile(`(?i)^([0-9.]*)(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)$`)

// nearWindow returns what 1min, 1M, hour or 2weeks was probably meant to be, "" for anything else.
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

func checkWindow(window time.Duration) error {
	switch {
	case window < 0:
		return fmt.Errorf("the window %s is negative; write %s", WindowText(window), WindowText(-max(window, -MaxWindow)))
	case window == 0:
		return errors.New("the window 0s is empty; write 1s or another duration of at least 1ms")
	case window < time.Microsecond: // a number in JSON
		return fmt.Errorf("the window %s is too short; write 1ms at least, in JSON as text with its unit, like \"60s\"", WindowText(window))
	case window < MinWindow:
		return fmt.Errorf("the window %s is too short; write 1ms at least", WindowText(window))
	case window > MaxWindow:
		return fmt.Errorf("the window %s is too long; write %s at most", WindowText(window), WindowText(MaxWindow))
	}
	return nil
}

// LengthText returns how long something takes as people read it: 9m55s, 2h5m, 2d1h. It leaves out
// seconds from ten minutes on, and minutes from two days on.
func LengthText(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d >= 48*time.Hour:
		d = d.Round(time.Hour)
	case d >= 10*time.Minute:
		d = d.Round(time.Minute)
	default:
		d = d.Round(time.Second)
	}
	var text string
	for _, u := range units[:4] {
		if n := d / u.unit; n > 0 {
			text += strconv.FormatInt(int64(n), 10) + u.name
			d %= u.unit
		}
	}
	return cmp.Or(text, "0s")
}

// units are those of durations, the largest first.
var units = []struct {
	name string
	unit time.Duration
}{
	{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond},
}

// WindowText returns a duration with the largest unit that needs no fraction: 1m, 90s, 1d, 1500ms.
// Different durations have different texts, so it can be part of a name. A window of a calendar is
// day, week, month or year.
func WindowText(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	if name, ok := calendar.Name(d); ok {
		return name
	}
	for _, u := range units {
		if d%u.unit == 0 {
			return strconv.FormatInt(int64(d/u.unit), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}
