package accesslog

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// A timeReader reads the times and durations of one file. What it has seen tells it what the next
// one is.
type timeReader struct {
	layout   int    // the index of that of the last time that was text
	text     string // the last time that was text, and what it was
	at       int64
	fraction bool // durations with a fraction were seen, so whole ones are seconds as well
	nanos    bool // durations were seen that can only be nanoseconds
}

// layouts are how times are written as text. Those without a zone are taken for UTC.
var layouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05.000Z0700", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05.999999999",
	"2006/01/02 15:04:05.999999999", "02/Jan/2006:15:04:05 -0700", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 -0700",
	"2006-01-02 15:04:05.999999999", time.RFC1123Z, time.RFC1123, time.RFC850, time.ANSIC, time.UnixDate,
}

// time reads a time as text or as a number, in nanoseconds since the Unix epoch.
func (c *timeReader) time(text string) (at int64, ok bool) {
	if text == "" {
		return 0, false
	}
	if text == c.text {
		return c.at, true
	}
	if at, ok := instant(text); ok {
		return at, true
	}
	for i := range layouts {
		known := (c.layout + i) % len(layouts)
		t, err := time.Parse(layouts[known], text)
		if err != nil {
			continue
		}
		if c.layout = known; t.Year() < 1970 || t.Year() > 2200 { // which nanoseconds can't hold
			return 0, false
		}
		c.text, c.at = strings.Clone(text), t.UnixNano()
		return c.at, true
	}
	return 0, false
}

// instant reads a number since the Unix epoch: seconds, milliseconds, microseconds or nanoseconds,
// whichever of them is a year between 1973 and 5138.
func instant(text string) (at int64, ok bool) {
	n, err := strconv.ParseFloat(text, 64)
	unit := 1.
	switch {
	case err != nil || n < 1e8:
		return 0, false
	case n < 1e11:
		unit = 1e9
	case n < 1e14:
		unit = 1e6
	case n < 1e17:
		unit = 1e3
	}
	if !(n*unit < math.MaxInt64) {
		return 0, false
	}
	if exact, err := strconv.ParseInt(text, 10, 64); err == nil {
		return exact * int64(unit), true
	}
	whole, part := math.Modf(n)
	return int64(whole)*int64(unit) + int64(math.Round(part*unit)), true
}

// maxTook bounds durations: what is longer is no request.
const maxTook = 30 * 24 * time.Hour

// duration reads a duration. A number with a fraction is seconds, as is a whole one in a file where
// others have fractions. Otherwise a whole number is nanoseconds if it is large, or others were,
// and else milliseconds: no request takes less than 10 us, and few take more than 10 s. unit is
// that of the field, if its name tells.
func (c *timeReader) duration(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, _ := time.ParseDuration(text) // 0 with an error
		return bounded(float64(d))
	}
	if unit == 0 {
		c.fraction = c.fraction || strings.ContainsAny(text, ".eE")
		switch {
		case c.fraction:
			unit = time.Second
		case c.nanos || n >= 10_000:
			c.nanos = c.nanos || n >= 1_000_000
			unit = 1
		default:
			unit = time.Millisecond
		}
	}
	return bounded(n * float64(unit))
}

// bounded is 0 for what can't be how long a request took, in nanoseconds.
func bounded(nanos float64) time.Duration {
	if nanos >= 0 && nanos <= float64(maxTook) {
		return time.Duration(math.Round(nanos))
	}
	return 0
}
