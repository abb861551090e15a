// The server's time, from readings that took a while to arrive.

package ratesync

import (
	"strconv"
	"time"
)

// A serverClock keeps the last few readings of the server's time and trusts the one that travelled
// least. The zero value has none.
type serverClock struct {
	clockSample // the one that it trusts

	samples [8]clockSample
	next    int
}

// A clockSample is one reading: how far the server was ahead, and how far off that may be.
type clockSample struct {
	Offset, Uncertainty time.Duration
}

// Read adds a reading: server is its clock, between start and end of this node's.
func (c *serverClock) Read(server, start, end int64) clockSample {
	uncertainty := time.Duration(end-start) / 2
	c.samples[c.next%len(c.samples)] = clockSample{time.Duration(server-start) - uncertainty, uncertainty}
	c.next++
	best := c.samples[(c.next-1)%len(c.samples)]
	for _, s := range c.samples[:min(c.next, len(c.samples))] {
		if s.Uncertainty < best.Uncertainty && (s.Offset-best.Offset).Abs() <= s.Uncertainty+best.Uncertainty+50*time.Millisecond {
			best = s
		}
	}
	c.clockSample = best
	return best
}

// lately is how many readings RoundTrip looks at.
const lately = 3

// RoundTrip is the shortest of the last few readings, 0 where there is none: how far away the
// server is, without what a new connection or a busy processor adds to a reading.
func (c *serverClock) RoundTrip() (trip time.Duration) {
	for i := 1; i <= min(lately, c.next); i++ {
		took := 2 * c.samples[(c.next-i)%len(c.samples)].Uncertainty
		if i == 1 || took < trip {
			trip = took
		}
	}
	return trip
}

// parseTime reads the answer to TIME, in nanoseconds since the Unix epoch.
func parseTime(seconds, micros any) (int64, bool) {
	s, ok := seconds.(string)
	u, ok2 := micros.(string)
	if !ok || !ok2 {
		return 0, false
	}
	sec, err := strconv.ParseInt(s, 10, 64)
	usec, err2 := strconv.ParseInt(u, 10, 64)
	return sec*1e9 + usec*1e3, err == nil && err2 == nil
}
