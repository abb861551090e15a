// Package metrics counts what zones decide, and shows Prometheus the state of zones and of Redis.
//
// The counters belong to the process, so that they go on over a reload; each configuration has a
// registry of its own to which they are added. Labels are names from the configuration, never a key
// or an address: those are without bound, and may be personal data.
package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/answer"
)

const namespace, subsystem = "caddy", "rate_limit"

var (
	decisionCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "decisions_total",
		Help: "Requests that a zone decided on, by decision; disable_metrics leaves out those of a handler.",
	}, []string{"zone", "decision"})
	overflowCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "overflow_decisions_total",
		Help: "Decisions from the overflow sketch, for keys beyond max_keys.",
	}, []string{"zone"})
	nearCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "near_limit_total",
		Help: "Requests that a zone admitted with less than a fifth of a limit left, or of a burst or queue.",
	}, []string{"zone"})
)

// defaultCount counts requests without a number.
var defaultCount = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: namespace, Subsystem: subsystem, Name: "limit_defaults_total",
	Help: "Limits that should have come with a request and did not, so limit_default applied.",
}, []string{"zone"})

// costDefaultCount counts requests whose cost is not known.
var costDefaultCount = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: namespace, Subsystem: subsystem, Name: "cost_defaults_total",
	Help: "Requests whose cost should have come with them and did not, so cost_default applied.",
}, []string{"zone"})

// ZoneCounters are one zone's counters, looked up once. Nil ones count nothing.
type ZoneCounters struct {
	name      string
	decisions [answer.Counted]prometheus.Counter
	overflow  prometheus.Counter
	near      prometheus.Counter
	defaults  prometheus.Counter

	costDefaults prometheus.Counter
	// units and missing are nil but in zones that count them.
	units   [whats]prometheus.Counter
	missing [missings]prometheus.Counter
}

// users are how many handlers have each zone's counters.
var users = struct {
	sync.Mutex
	of map[string]int
}{of: map[string]int{}}

// NewZoneCounters returns the counters of a zone. They begin with the first handler that asks for
// them and go on until each has released them: a reload provisions the new handlers before it
// cleans up the old ones, so a zone that stays keeps its counters.
func NewZoneCounters(name string) *ZoneCounters {
	z := &ZoneCounters{name: label(name)}
	users.Lock()
	defer users.Unlock()
	users.of[z.name]++
	for r := range answer.Counted {
		z.decisions[r] = decisionCount.WithLabelValues(z.name, r.String())
	}
	z.overflow, z.near = overflowCount.WithLabelValues(z.name), nearCount.WithLabelValues(z.name)
	z.defaults, z.costDefaults = defaultCount.WithLabelValues(z.name), costDefaultCount.WithLabelValues(z.name)
	return z
}

// Release gives the counters up. The metrics of a zone that no handler has any more are removed:
// otherwise every rename would leave some behind, as long as the process lives.
func (z *ZoneCounters) Release() {
	if z == nil {
		return
	}
	users.Lock()
	defer users.Unlock()
	if users.of[z.name]--; users.of[z.name] > 0 {
		return
	}
	delete(users.of, z.name)
	decisionCount.DeletePartialMatch(prometheus.Labels{"zone": z.name})
	overflowCount.DeleteLabelValues(z.name)
	nearCount.DeleteLabelValues(z.name)
	defaultCount.DeleteLabelValues(z.name)
	costDefaultCount.DeleteLabelValues(z.name)
	unitCount.DeletePartialMatch(prometheus.Labels{"zone": z.name})
	costMissingCount.DeletePartialMatch(prometheus.Labels{"zone": z.name})
}

// Count counts a decision.
func (z *ZoneCounters) Count(d answer.Reason) {
	if z != nil {
		z.decisions[d].Inc()
	}
}

// CountOverflow counts a decision that came from the sketch, beside what was decided.
func (z *ZoneCounters) CountOverflow() {
	if z != nil {
		z.overflow.Inc()
	}
}

// CountDefault counts a limit that did not come with its request.
func (z *ZoneCounters) CountDefault() {
	if z != nil {
		z.defaults.Inc()
	}
}

// CountCostDefault counts a cost that did not come with its request.
func (z *ZoneCounters) CountCostDefault() {
	if z != nil {
		z.costDefaults.Inc()
	}
}

// CountNear counts an admitted request that left little of a limit, beside what was decided.
func (z *ZoneCounters) CountNear() {
	if z != nil {
		z.near.Inc()
	}
}

// label makes a name fit for a label, which is UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "?") }
