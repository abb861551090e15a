package algorithms

import (
	"fmt"
	"testing"
	"time"
)

// Zones of which clocks are set back over midnight, or forward, that leave out a date, have
// offsets of half or three quarters of an hour, or move by three hours.
var zones = []string{
	"America/Havana", "America/Santiago", "America/Asuncion", "Atlantic/Azores", "Pacific/Apia", "Asia/Kathmandu",
	"Australia/Lord_Howe", "Pacific/Kiritimati", "Europe/Berlin", "America/New_York", "Asia/Shanghai", "UTC",
	"America/St_Johns", "Antarctica/Casey",
}

func calendarOf(t testing.TB, window time.Duration, zone string, from int) *Calendar {
	t.Helper()
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return &Calendar{Window: window, Zone: location, From: from}
}

// dateOf is the local date at an instant.
func dateOf(t int64, zone *time.Location) string {
	return time.Unix(0, t).In(zone).Format(time.DateOnly)
}

// Each instant of 22 years is in exactly one window, which begins as soon as its date is the local
// one, or was over: what is known of a date is asked of time.Format, minute by minute where the
// clocks change.
func TestEachInstantIsInOneWindow(t *testing.T) {
	t.Parallel()
	calendars := []Calendar{
		{Window: Day, From: 1}, {Window: Week, From: 1}, {Window: Year, From: 1},
		{Window: Month, From: 1}, {Window: Month, From: 15}, {Window: Month, From: 29}, {Window: Month, From: 30}, {Window: Month, From: 31},
	}
	for _, zone := range zones {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			for i := range calendars {
				c := calendarOf(t, calendars[i].Window, zone, calendars[i].From)
				now := time.Date(2008, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
				until := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
				for s := c.At(now); s.Begin < until; {
					checkSpan(t, c, s)
					next := c.At(s.End)
					if next.Begin != s.End || next.Number <= s.Number {
						t.Fatalf("from %d: after %+v comes %+v", c.From, s, next)
					}
					if skipped := next.Number - s.Number - 1; skipped > 0 && dateOf(s.End-1, c.Zone) != "2011-12-29" {
						t.Errorf("from %d: %d windows are empty after %s", c.From, skipped, dateOf(s.End-1, c.Zone))
					}
					for _, at := range []int64{s.Begin, s.Begin + (s.End-s.Begin)/2, s.End - 1} {
						if got := c.At(at); got != s {
							t.Fatalf("from %d: %d is in %+v, want %+v", c.From, at, got, s)
						}
					}
					s = next
				}
			}
		})
	}
}

// checkSpan checks when a window begins, and its number.
func checkSpan(t *testing.T, c *Calendar, s Span) {
	t.Helper()
	first, number := c.firstDate(s.Number), s.Number
	minute, day := int64(time.Minute), int64(24*time.Hour)
	if date := dateOf(s.Begin, c.Zone); date < first {
		t.Fatalf("%v of %s from %d, number %d, begins on %s, want %s", c.Window, c.Zone, c.From, number, date, first)
	}
	_, before := time.Unix(0, s.Begin-day).In(c.Zone).Zone()
	_, after := time.Unix(0, s.Begin+day).In(c.Zone).Zone()
	step := day / 2
	if before != after {
		step = minute
	}
	for at := s.Begin - minute; at > s.Begin-day-day/4; at -= step {
		if date := dateOf(at, c.Zone); date >= first {
			t.Fatalf("%v of %s from %d, number %d, begins at %v, and it was %s at %v", c.Window, c.Zone, c.From, number, time.Unix(0, s.Begin).In(c.Zone), date, time.Unix(0, at).In(c.Zone))
		}
	}
	if length := s.End - s.Begin; length <= 0 || length >= longest(c.Window) {
		t.Fatalf("%v of %s from %d, number %d, is %v long", c.Window, c.Zone, c.From, number, time.Duration(length))
	}
}

// firstDate is the date with which a window begins, by its number.
func (c *Calendar) firstDate(n int64) string {
	switch c.Window {
	case Day:
		return time.Unix(n*86400, 0).UTC().Format(time.DateOnly)
	case Week: // the first one has the 1st of January 1970, a Thursday
		return time.Unix((7*n-3)*86400, 0).UTC().Format(time.DateOnly)
	case Year:
		return fmt.Sprintf("%04d-01-01", 1970+n)
	}
	year, month := 1970+n/12, 1+n%12
	lengths := []int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
	last := lengths[month-1]
	if month == 2 && year%4 == 0 {
		last = 29
	}
	return fmt.Sprintf("%04d-%02d-%02d", year, month, min(c.From, last))
}

// From 2038 on the zones' rules go on without a table of the changes.
func TestCalendarsGoOn(t *testing.T) {
	t.Parallel()
	for _, zone := range zones {
		c := calendarOf(t, Day, zone, 1)
		for s := c.At(time.Date(2039, 12, 1, 0, 0, 0, 0, time.UTC).UnixNano()); s.Number < 26000; {
			checkSpan(t, c, s)
			next := c.At(s.End)
			if next.Begin != s.End || next.Number != s.Number+1 {
				t.Fatalf("after %+v comes %+v", s, next)
			}
			s = next
		}
	}
}

func TestCalendarsOfKnownDates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		window     time.Duration
		zone       string
		from       int
		at         string
		begin, end string
	}{
		// Days of 25 and 23 hours, one without a midnight and one with two, one after whose first
		// minute it was 23:01 of the day before, and one before a date that was left out.
		{Day, "Europe/Berlin", 1, "2026-10-25T12:00:00Z", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{Day, "Europe/Berlin", 1, "2026-03-29T12:00:00Z", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{Day, "America/Havana", 1, "2026-03-08T12:00:00Z", "2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"},
		{Day, "America/Havana", 1, "2025-11-02T12:00:00Z", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00"},
		{Day, "America/St_Johns", 1, "2010-11-07T02:40:00Z", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{Day, "Pacific/Apia", 1, "2011-12-30T09:00:00Z", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{Week, "UTC", 1, "2027-01-01T12:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{Month, "Europe/Berlin", 15, "2026-12-01T00:00:00Z", "2026-11-15T00:00:00+01:00", "2026-12-15T00:00:00+01:00"},
		{Month, "UTC", 31, "2027-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"},
		{Month, "UTC", 31, "2028-02-28T00:00:00Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"},
		{Year, "Asia/Kathmandu", 1, "2026-12-31T18:14:59Z", "2026-01-01T00:00:00+05:45", "2027-01-01T00:00:00+05:45"},
	} {
		at, _ := time.Parse(time.RFC3339, tt.at)
		c := calendarOf(t, tt.window, tt.zone, tt.from)
		s := c.At(at.UnixNano())
		if begin, end := time.Unix(0, s.Begin).In(c.Zone).Format(time.RFC3339), time.Unix(0, s.End).In(c.Zone).Format(time.RFC3339); begin != tt.begin || end != tt.end {
			t.Errorf("%s in %s: from %s to %s, want %s to %s", tt.at, tt.zone, begin, end, tt.begin, tt.end)
		}
	}
}

// All of a window's units come back at its end, and what a client is told of that is exact, on days
// of 23, 24 and 25 hours.
func TestACalendarsWindowEndsAsTold(t *testing.T) {
	t.Parallel()
	p := Params{Kind: FixedWindow, Limit: 2, Window: Day, Calendar: calendarOf(t, Day, "Europe/Berlin", 1)}
	for _, day := range []string{"2026-03-29", "2026-07-01", "2026-10-25"} {
		at, _ := time.ParseInLocation(time.DateOnly, day, p.Calendar.Zone)
		span := p.Calendar.At(at.UnixNano())
		for _, now := range []int64{span.Begin, span.Begin + int64(90*time.Minute), span.End - 1} {
			k := keyOf[WindowState](p)
			k.take(now, 2, 0)
			d := k.take(now, 1, 0)
			if left := time.Duration(span.End - now); d.Allowed || d.Retry != left || d.Reset != left || d.Next != left {
				t.Errorf("%s: %+v with %v left", day, d, left)
			}
			if k.clone().take(span.End-1, 1, 0).Allowed || !k.clone().take(span.End, 2, 0).Allowed {
				t.Errorf("%s: the window doesn't end at %d", day, span.End)
			}
			if late := k.clone(); !late.take(span.End, 1, 0).Allowed || !late.take(span.End-1, 1, 0).Allowed || late.take(span.End-1, 1, 0).Allowed {
				t.Errorf("%s: a late request is not served as one of the next window", day)
			}
		}
	}
}

// A step of the clock moves counts by as many windows as it passed, whatever their lengths.
func TestAStepMovesCountsByTheCalendar(t *testing.T) {
	t.Parallel()
	month := calendarOf(t, Month, "Europe/Berlin", 1)
	at := func(text string) int64 {
		date, _ := time.ParseInLocation(time.DateTime, text, month.Zone)
		return date.UnixNano()
	}
	for _, tt := range []struct {
		from, to string
	}{
		{"2026-11-10 12:00:00", "2026-11-10 12:05:00"},
		{"2026-11-30 23:59:00", "2026-12-01 00:01:00"},
		{"2026-11-10 12:00:00", "2027-02-28 12:00:00"},
		{"2027-03-01 00:01:00", "2027-02-28 23:59:00"},
		{"2026-11-10 12:00:00", "2036-01-31 12:00:00"},
	} {
		k := keyOf[WindowState](Params{Kind: FixedWindow, Limit: 5, Window: Month, Calendar: month})
		from, to := at(tt.from), at(tt.to)
		k.take(from, 3, 0)
		k.shift(to, time.Duration(to-from))
		if l := k.ledger(); l.Epoch != month.At(to).Number || k.take(to, 0, 0).Remaining != 2 {
			t.Errorf("%s to %s: %+v in window %d", tt.from, tt.to, *l, month.At(to).Number)
		}
		if k.shift(from, time.Duration(from-to)); k.take(from, 0, 0).Remaining != 2 {
			t.Errorf("%s to %s and back: %+v", tt.from, tt.to, *k.ledger())
		}
	}
}
