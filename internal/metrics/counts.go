package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/answer"
)

// Counts are what a zone has counted since it began.
type Counts struct {
	Admitted float64 `json:"admitted"`
	// Denied are denials of all kinds, WouldDeny those of a zone that is not enforced.
	Denied    float64 `json:"denied"`
	WouldDeny float64 `json:"would_deny"`
	// Unavailable is the part of Denied that on_redis_loss deny answered.
	Unavailable float64 `json:"unavailable,omitempty"`
	// Skipped are requests that it let pass uncounted, such as those of its except.
	Skipped float64 `json:"skipped,omitempty"`
	// Near are requests that were admitted with a fifth or less of a limit left.
	Near float64 `json:"-"`
}

// Met are all requests that came to the zone.
func (c Counts) Met() float64 { return c.Admitted + c.Denied + c.WouldDeny + c.Skipped }

// counted has the counters of zones alone.
var counted = func() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(decisionCount, eventCounts[Near].CounterVec)
	return r
}()

// ByZone returns what each zone of this process has counted, by its name. Zones with
// disable_metrics are not in it.
func ByZone() (map[string]Counts, error) {
	families, err := counted.Gather()
	all := map[string]Counts{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			zone, decision, n := "", "near", m.GetCounter().GetValue()
			for _, l := range m.GetLabel() {
				if l.GetName() == "zone" {
					zone = l.GetValue()
				} else {
					decision = l.GetValue()
				}
			}
			c := all[zone]
			switch decision {
			case "near":
				c.Near += n
			case answer.Admitted.String():
				c.Admitted += n
			case answer.WouldDeny.String():
				c.WouldDeny += n
			case answer.Skipped.String():
				c.Skipped += n
			case answer.Unavailable.String():
				c.Unavailable += n
				c.Denied += n
			default:
				c.Denied += n
			}
			all[zone] = c
		}
	}
	return all, err
}
