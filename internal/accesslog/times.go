package accesslog

import (
	"strconv"
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
func (c *timeReader) time(text []byte) (at int64, ok bool) {
	if len(text) == 0 {
		return 0, false
	}
	if string(text) == c.text {
		return c.at, true
	}
	if at, ok := instant(text); ok {
		return at, true
	}
	s := string(text)
	for i := range layouts {
		known := (c.layout + i) % len(layouts)
		t, err := time.Parse(layouts[known], s)
		if err != nil {
			continue
		}
		if c.layout = known; t.Year() < 1970 || t.Year() > 2200 { // which nanoseconds can't hold
			return 0, false
		}
		c.text, c.at = s, t.UnixNano()
		return c.at, true
	}
	return 0, false
}

// instant reads a number since the Unix epoch: seconds, milliseconds, microseconds or nanoseconds,
// whichever of them is a year between 1973 and 5138.
func instant(text []byte) (at int64, ok bool) {
	whole, nanos, digits, ok := decimal(text)
	if !ok || digits < 9 || whole < 0 {
		return 0, false
	}
	switch {
	case whole < 1e11:
		if whole > 9e9 { // after which nanoseconds overflow
			return 0, false
		}
		return whole*1e9 + nanos, true
	case whole < 1e14:
		return whole*1e6 + nanos/1e3, whole < 9e12
	case whole < 1e17:
		return whole*1e3 + nanos/1e6, whole < 9e15
	}
	return whole, true
}

// decimal reads a number of at most 18 digits before the point: what stands before it, the
// billionths after it, and how many digits stand before it.
func decimal(text []byte) (whole, billionths int64, digits int, ok bool) {
	i, negative := 0, false
	if len(text) > 0 && text[0] == '-' {
		i, negative = 1, true
	}
	for ; i < len(text) && isDigit(text[i]); i++ {
		if digits++; digits > 18 {
			// A time of 19 digits is one in nanoseconds.
			n, err := strconv.ParseInt(string(text), 10, 64)
			return n, 0, len(text), err == nil
		}
		whole = whole*10 + int64(text[i]-'0')
	}
	if digits == 0 {
		return 0, 0, 0, false
	}
	if i < len(text) && text[i] == '.' {
		unit := int64(1e9)
		for i++; i < len(text) && isDigit(text[i]); i++ {
			unit /= 10
			billionths += unit * int64(text[i]-'0')
		}
	}
	if i < len(text) { // an exponent, or no number
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil || f > 9e18 || f < -9e18 || f != f {
			return 0, 0, 0, false
		}
		whole = int64(f)
		return whole, int64((f - float64(whole)) * 1e9), len(strconv.FormatInt(whole, 10)), true
	}
	if negative {
		whole, billionths = -whole, -billionths
	}
	return whole, billionths, digits, true
}

// maxTook bounds durations: what is longer is no request.
const maxTook = 30 * 24 * time.Hour

// duration reads a duration. A number with a fraction is seconds, as is a whole one in a file where
// others have fractions. Otherwise a whole number is nanoseconds if it is large, or others were,
// and else milliseconds: no request takes less than 10 us, and few take more than 10 s. unit is
// that of the field, if its name tells.
func (c *timeReader) duration(text []byte, unit time.Duration) time.Duration {
	whole, billionths, _, ok := decimal(text)
	if !ok {
		d, _ := time.ParseDuration(string(text)) // 0 with an error
		return bounded(d)
	}
	if unit == 0 {
		for _, b := range text {
			c.fraction = c.fraction || b == '.' || b == 'e'
		}
		switch {
		case c.fraction:
			unit = time.Second
		case c.nanos || whole >= 10_000:
			c.nanos = c.nanos || whole >= 1_000_000
			unit = 1
		default:
			unit = time.Millisecond
		}
	}
	if whole > int64(maxTook/unit) || whole < 0 {
		return 0
	}
	return bounded(time.Duration(whole)*unit + time.Duration(float64(billionths)*float64(unit)/1e9))
}

// bounded is 0 for what can't be how long a request took.
func bounded(d time.Duration) time.Duration {
	if d < 0 || d > maxTook {
		return 0
	}
	return d
}
