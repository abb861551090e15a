package simulate

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/reqkey"
)

// zoneStats is what happened in a zone.
type zoneStats struct {
	of     *limits.Zone // of one node
	report Zone         // its counts of requests

	clients, deniedClients distinct
	windows                []*windowStats
	top                    heavyHitters
	times                  timeline
	// trials are zones with other limits, those of all windows.
	trials []*limits.Zone
	// counted is what has counted by its response, and noKey how many requests had an empty key,
	// for which the client's address stands in.
	counted, noKey int64
}

// windowStats is what happened in the window of one of a zone's limits.
type windowStats struct {
	limit      *limits.Limit
	part       int64 // the length of one, in nanoseconds
	clients    clients
	candidates candidates // nil for none, and where there are trials
	trials     []*zoneStats
	numbers    []int64 // the limits of either
}

// partOf returns the length of a part of a window.
func partOf(window time.Duration) int64 { return max(1, int64(window)/parts) }

func newZoneStats(z *limits.Zone) *zoneStats {
	s := &zoneStats{of: z, report: Zone{Answered: Answers{}}}
	for l := range z.Each {
		w := &windowStats{limit: l, part: partOf(l.Rate.Window)}
		w.candidates, w.numbers = newCandidates(l)
		s.windows = append(s.windows, w)
	}
	return s
}

// count notes what the zone decided for a request.
func (s *zoneStats) count(z *limits.Zone, o *limits.Outcome, rec *accesslog.Record) {
	hash, answered := o.Hash.A, classOf(rec.Status)
	s.clients.Add(hash)
	if reqkey.IsStandIn(o.Key) {
		s.noKey++
	}
	for _, w := range s.windows {
		c := w.clients.of(hash)
		if c == nil {
			continue
		}
		part := rec.Start / w.part
		c.advance(part)
		n := c.add(o.N)
		c.served = c.served || answered != "4xx"
		w.clients.most = max(w.clients.most, n)
		if w.candidates != nil {
			w.candidates.take(c, o.N, n, rec.Start, part, answered)
		}
	}
	if o.Denied {
		s.deniedClients.Add(hash)
		s.top.Add(hash, func() string { return z.Template.Text(o.Key) })
	}
	s.note(o.Denied, o.Shadow, rec)
}

// countClosed notes a request that was denied without asking the limits: its key is banned, or
// empty.
func (s *zoneStats) countClosed(z *limits.Zone, o *limits.Outcome, rec *accesslog.Record) {
	if o.Rest <= 0 {
		s.note(true, o.Shadow, rec)
		return
	}
	s.report.Banned++
	s.count(z, &limits.Outcome{Denied: true, Shadow: o.Shadow, Key: o.Key, Hash: keys.KeyOf(o.Key), N: o.N}, rec)
}

func (s *zoneStats) note(denied, shadow bool, rec *accesslog.Record) {
	s.report.Requests++
	s.times.Add(rec.Start, denied)
	switch {
	case !denied:
		return
	case shadow:
		s.report.WouldDeny++
	default:
		s.report.Denied++
	}
	s.report.Answered[classOf(rec.Status)]++
}

// Answers are how many responses there were of each class: 1xx to 5xx, or unknown.
type Answers map[string]int64

func classOf(status int) string {
	if 100 <= status && status < 600 {
		return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[status/100-1]
	}
	return "unknown"
}
