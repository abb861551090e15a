package ratesync

import (
	"strconv"
	"time"
)

// A clock keeps the last few readings of the server's time and trusts the one that travelled least.
type clock struct {
	samples [8]sample
	next    int
	offset  time.Duration
}

// sample is one reading: how far the server was ahead, and how far off that may be.
type sample struct {
	offset, uncertainty time.Duration
	valid               bool
}

// read adds a reading: server is its clock, between start and end of this node's.
func (c *clock) read(server, start, end int64) sample {
	uncertainty := time.Duration(end-start) / 2
	c.samples[c.next%len(c.samples)] = sample{time.Duration(server-start) - uncertainty, uncertainty, true}
	c.next++
	best := c.samples[(c.next-1)%len(c.samples)]
	for _, s := range c.samples {
		if s.valid && s.uncertainty < best.uncertainty && (s.offset-best.offset).Abs() <= s.uncertainty+best.uncertainty+50*time.Millisecond {
			best = s
		}
	}
	c.offset = best.offset
	return best
}

// keepTime brings the tables to the server's time.
func (r *Replicator) keepTime(server, start, end int64) {
	r.mu.Lock()
	best := r.clock.read(server, start, end)
	r.mu.Unlock()
	for _, s := range r.attached() {
		s.counters.SetClock(r.now(), best.offset, best.uncertainty)
	}
}

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
