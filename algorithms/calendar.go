package algorithms

import (
	"time"
)

// The windows of a calendar, as the Window of Params: a usual length and one nanosecond more, which
// no length that is written has. So a window tells which one it is, and a day is not 24 hours.
const (
	Day   = 24*time.Hour + 1
	Week  = 7*24*time.Hour + 1
	Month = 30*24*time.Hour + 1
	Year  = 365*24*time.Hour + 1
)

// longest is more than any of these windows lasts. A day can have 27 hours, where a zone moves by
// three.
func longest(window time.Duration) int64 {
	switch window {
	case Day:
		return int64(36 * time.Hour)
	case Week:
		return int64(8 * 24 * time.Hour)
	case Month:
		return int64(32 * 24 * time.Hour)
	}
	return int64(367 * 24 * time.Hour)
}

// A Span is one window of a calendar. Begin is its first instant, and End the first one of the
// next, in nanoseconds.
type Span struct{ Number, Begin, End int64 }

// A Calendar numbers the days, weeks, months or years of a time zone, from 1970 on. A window begins
// at the first instant at which that date or a later one is the local date. Clocks are set back
// over midnight in some zones: the date that was over comes once more, and its number doesn't.
//
// It is safe for concurrent use.
type Calendar struct {
	// Window is Day, Week, Month or Year, and From the day with which a month begins. Shorter
	// months begin with their last day.
	Window time.Duration
	Zone   *time.Location
	From   int

	// Last keeps the window that At returned last, for who asks again; nil keeps none. It is safe
	// for concurrent use, as an atomic.Pointer is.
	Last interface {
		Load() *Span
		Store(s *Span)
	}
}

// known is an instant from 1970 to 2116: what is before or after is no clock's.
func known(now int64) int64 { return min(max(now, 0), 1<<62) }

// At returns the window of an instant.
func (c *Calendar) At(now int64) Span {
	now = known(now)
	if c.Last != nil {
		if s := c.Last.Load(); s != nil && now >= s.Begin && now < s.End {
			return *s
		}
	}
	n := c.number(time.Unix(0, now).In(c.Zone))
	for c.begin(n) > now {
		n--
	}
	for c.begin(n+1) <= now {
		n++
	}
	s := Span{n, c.begin(n), c.begin(n + 1)}
	if c.Last != nil {
		c.Last.Store(&s)
	}
	return s
}

// number is the window of a date.
func (c *Calendar) number(t time.Time) int64 {
	year, month, day := t.Date()
	switch c.Window {
	case Day:
		return dayOf(year, month, day)
	case Week:
		n, _ := floorDivMod(dayOf(year, month, day)+firstMonday, 7)
		return n
	case Month:
		n := int64(year-1970)*12 + int64(month-1)
		if day < c.firstDay(year, month) {
			n--
		}
		return n
	}
	return int64(year - 1970)
}

// firstMonday is how many days before 1970 the first week begins.
const firstMonday = 3

// dayOf is the number of a date, whatever day of a month that is.
func dayOf(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / int64(24*time.Hour/time.Second)
}

// firstDay is the day with which the window of a month begins.
func (c *Calendar) firstDay(year int, month time.Month) int {
	return min(c.From, time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day())
}

// begin is the first instant of a window.
func (c *Calendar) begin(n int64) int64 {
	day := n
	switch c.Window {
	case Week:
		day = n*7 - firstMonday
	case Month:
		year, month, _ := time.Date(1970, time.Month(n+1), 1, 0, 0, 0, 0, time.UTC).Date()
		day = dayOf(year, month, c.firstDay(year, month))
	case Year:
		day = dayOf(1970+int(n), time.January, 1)
	}
	midnight := time.Unix(day*int64(24*time.Hour/time.Second), 0)
	// From an instant before which it is not, from one change of the zone's offset to the next.
	for t := midnight.Add(-36 * time.Hour).In(c.Zone); ; {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) { // as time says of the last days of 2040
			end = t.Add(24 * time.Hour)
		}
		if first := midnight.Add(-time.Duration(offset) * time.Second); end.IsZero() || first.Before(end) {
			return max(first.UnixNano(), t.UnixNano())
		}
		t = end
	}
}
