// Package calendar finds the calendars that limits go by, in the zone data of the system, or in
// that of the program where the system has none.
package calendar

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	_ "time/tzdata" // for containers that have none

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A key is what a calendar is found by.
type key struct {
	window time.Duration
	zone   string
	from   int
}

var found sync.Map // key -> *algorithms.Calendar

// Of is the calendar of a time zone whose windows are algorithms.Day, Week, Month or Year, where
// months begin on a day from 1 to 31. There is one of each: who has the same has the same pointer.
func Of(window time.Duration, zone string, from int) (*algorithms.Calendar, error) {
	if zone == "" || zone == "Local" {
		return nil, fmt.Errorf("%q is the time zone of the machine, which may be another one on each node; write the name of one, like Europe/Berlin, or UTC", zone)
	}
	if from < 1 || from > 31 {
		return nil, fmt.Errorf("%d is no day with which a month can begin; write 1 to 31", from)
	}
	if window != algorithms.Month {
		from = 1
	}
	k := key{window, zone, from}
	if c, ok := found.Load(k); ok {
		return c.(*algorithms.Calendar), nil
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("%q is not the name of a time zone; write one like Europe/Berlin or America/New_York, or UTC", zone)
	}
	c, _ := found.LoadOrStore(k, &algorithms.Calendar{Window: window, Zone: location, From: from, Last: new(atomic.Pointer[algorithms.Span])})
	return c.(*algorithms.Calendar), nil
}

// Text names a calendar: <window>-<time zone>, and with the day of a month <window>-<time
// zone>-<day>. Parse reads that.
func Text(c *algorithms.Calendar) string {
	name, _ := Name(c.Window)
	text := name + "-" + c.Zone.String()
	if c.Window == algorithms.Month {
		text += "-" + strconv.Itoa(c.From)
	}
	return text
}

func Parse(text string) (*algorithms.Calendar, error) {
	name, zone, _ := strings.Cut(text, "-")
	window, ok := Window(name)
	if !ok {
		return nil, errors.New("no window of a calendar")
	}
	from := 1
	if window == algorithms.Month {
		i := max(0, strings.LastIndexByte(zone, '-'))
		from, _ = strconv.Atoi(zone[min(i+1, len(zone)):])
		zone = zone[:i]
	}
	return Of(window, zone, from)
}

// units are the windows of a calendar, by their names.
var units = map[string]time.Duration{"day": algorithms.Day, "week": algorithms.Week, "month": algorithms.Month, "year": algorithms.Year}

// Window is the window with a name: day, week, month or year.
func Window(name string) (window time.Duration, ok bool) {
	window, ok = units[name]
	return window, ok
}

// Name is the name of such a window; ok is false for a window of some length.
func Name(window time.Duration) (name string, ok bool) {
	for name, unit := range units {
		if unit == window {
			return name, true
		}
	}
	return "", false
}
