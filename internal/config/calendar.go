package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/calendar"
	"github.com/caddy-tide/ratelimit/internal/spelling"
)

// A Window is how long a limit looks back: a length, or algorithms.Day, Week, Month or Year. In
// JSON it is a duration, or the name of one of these.
type Window time.Duration

// UnmarshalJSON reads it.
func (w *Window) UnmarshalJSON(text []byte) error {
	var name string
	if json.Unmarshal(text, &name) == nil {
		if unit, ok := calendar.Window(name); ok {
			*w = Window(unit)
			return nil
		}
	}
	var d caddy.Duration
	err := d.UnmarshalJSON(text)
	*w = Window(asLength(time.Duration(d)))
	return err
}

// asLength is a length that was written. None is taken for a window of a calendar.
func asLength(d time.Duration) time.Duration {
	if _, ok := calendar.Name(d); ok {
		return d.Truncate(time.Microsecond)
	}
	return d
}

// MarshalJSON writes it.
func (w Window) MarshalJSON() ([]byte, error) {
	if name, ok := calendar.Name(time.Duration(w)); ok {
		return json.Marshal(name)
	}
	return json.Marshal(int64(w))
}

// A Calendar is by which calendar days, weeks, months and years begin.
type Calendar struct {
	// Zone is the name of a time zone, "" where no limit goes by a calendar.
	Zone string `json:"zone,omitempty"`
	// From is the day with which months begin, 1 to 31; 0 is 1.
	From int `json:"from,omitempty"`
}

// ParseCalendar reads a time zone and from which day on a month is: Europe/Berlin from 15.
func ParseCalendar(values []string) (c Calendar, err error) {
	c.Zone = values[0]
	if len(values) == 1 {
		return c, nil
	}
	if len(values) != 3 || values[1] != "from" {
		return c, fmt.Errorf("%q is not understood; write the time zone, and with which day months begin, like `calendar Europe/Berlin from 15`", spelling.Clip(values[1]))
	}
	if c.From, err = strconv.Atoi(values[2]); err != nil || c.From == 0 {
		return c, fmt.Errorf("%q is no day with which a month can begin; write 1 to 31", spelling.Clip(values[2]))
	}
	return c, nil
}

// String returns the calendar as ParseCalendar reads it.
func (c Calendar) String() string {
	if c.From > 1 {
		return fmt.Sprintf("%s from %d", c.Zone, c.From)
	}
	return c.Zone
}
