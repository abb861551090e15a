package simulate

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/counters"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// zoneStats is what happened in a zone.
type zoneStats struct {
	of *limits.Zone // of one node

	requests, denied, wouldDeny int64
	clients, deniedClients      distinct
	// answered counts the denied requests by the first digit of their status.
	answered [6]int64
	windows  []*windowStats
	top      heavyHitters
	times    timeline
}

// windowStats is what happened in the window of one of a zone's limits.
type windowStats struct {
	limit   *counters.Limit
	part    int64 // the length of one, in nanoseconds
	clients clients
	ladder  ladder // nil for none
	numbers []int64
}

// partOf returns the length of a part of a window.
func partOf(window time.Duration) int64 { return max(1, int64(window)/parts) }

func newZoneStats(z *limits.Zone) *zoneStats {
	s := &zoneStats{of: z}
	for l := range z.Each {
		w := &windowStats{limit: l, part: partOf(l.Rate.Window)}
		w.ladder, w.numbers = newLadder(l)
		s.windows = append(s.windows, w)
	}
	return s
}

// count notes what the zone decided for a request.
func (s *zoneStats) count(z *limits.Zone, o *limits.Outcome, rec *accesslog.Record) {
	hash := o.Hash[0]
	s.clients.add(hash)
	for _, w := range s.windows {
		c := w.clients.of(hash)
		if c == nil {
			continue
		}
		part := rec.Start / w.part
		c.advance(part)
		n := c.add()
		w.clients.most = max(w.clients.most, n)
		if w.ladder != nil {
			w.ladder.take(c, n, rec.Start, part)
		}
	}
	if o.Denied {
		s.deniedClients.add(hash)
		s.top.add(hash, func() string { return z.Template.Text(o.Key) })
	}
	s.note(o.Denied, o.Shadow, rec)
}

// countWithoutKey notes a request that was denied as its key was empty.
func (s *zoneStats) countWithoutKey(rec *accesslog.Record) { s.note(true, false, rec) }

func (s *zoneStats) note(denied, shadow bool, rec *accesslog.Record) {
	s.requests++
	s.times.add(rec.Start, denied)
	switch {
	case !denied:
		return
	case shadow:
		s.wouldDeny++
	default:
		s.denied++
	}
	class := rec.Status / 100
	if class < 1 || class > 5 {
		class = 0
	}
	s.answered[class]++
}

// bins is how many a timeline has.
const bins = 240

// A timeline counts requests by when they came, in bins that get wider as it gets longer.
type timeline struct {
	start, width   int64 // of the first bin, in nanoseconds
	requests, over [bins]int64
}

// add counts a request.
func (t *timeline) add(at int64, denied bool) {
	if t.width == 0 {
		t.start, t.width = at, int64(time.Second)
	}
	for at-t.start >= t.width*bins {
		t.fold()
	}
	i := max(0, (at-t.start)/t.width)
	t.requests[i]++
	if denied {
		t.over[i]++
	}
}

// fold makes each bin twice as wide.
func (t *timeline) fold() {
	for i := range bins {
		r, o := int64(0), int64(0)
		if 2*i < bins {
			r, o = t.requests[2*i]+t.requests[2*i+1], t.over[2*i]+t.over[2*i+1]
		}
		t.requests[i], t.over[i] = r, o
	}
	t.width *= 2
}
