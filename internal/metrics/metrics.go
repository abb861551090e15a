// Package metrics counts what zones decide, and shows Prometheus the state of zones and of Redis.
//
// The counters belong to the process, so that they go on over a reload; each configuration has a
// registry of its own to which they are added. Labels are names from the configuration, never a key
// or an address: those are without bound, and may be personal data. An exemplar is the id of a key.
package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

const namespace, subsystem = "caddy", "rate_limit"

// newCount returns a counter with labels.
func newCount(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

var decisionCount = newCount("decisions_total", "Requests that a zone decided on, by decision; disable_metrics leaves out those of a handler.", "zone", "decision")

// An Event is what is counted beside decisions.
type Event uint8

const (
	// Overflow is a decision that came from a shared counter, and Near an admitted request that
	// left little of a limit. LimitDefault is a limit that did not come with its request, and
	// CostDefault a cost.
	Overflow Event = iota
	Near
	LimitDefault
	CostDefault
	// Units of a zone WithUnits: those of requests, and what was refunded or charged beside that.
	UnitsAdmitted
	UnitsRefunded
	UnitsCharged
	UnitsDenied
	// Why a response does not say what it cost, in a zone WithUnits: CostAbsent is no figure at
	// all, CostEncoded a body that is compressed, CostBad a figure that is no number, and CostGone
	// a response that was cut, or whose client left.
	CostAbsent
	CostEncoded
	CostBad
	CostGone
	events
)

var (
	unitCount        = newCount("units_total", "Units that a zone with cost has admitted, refunded, charged or denied.", "zone", "what")
	costMissingCount = newCount("response_cost_missing_total", "Responses without their cost, by why: absent, encoded, bad, or gone (cut, even after a figure).", "zone", "why")
)

// eventCounts are the counters of events, each with its label beside the zone, "" for none.
var eventCounts = [events]struct {
	*prometheus.CounterVec
	label string
}{
	Overflow:      {newCount("overflow_decisions_total", "Decisions for keys beyond max_keys, which share counters.", "zone"), ""},
	Near:          {newCount("near_limit_total", "Requests that a zone admitted with a fifth or less of a limit left, or of a burst or queue.", "zone"), ""},
	LimitDefault:  {newCount("limit_defaults_total", "Limits that did not come with their request, so limit_default applied.", "zone"), ""},
	CostDefault:   {newCount("cost_defaults_total", "Requests whose cost did not come with them, so cost_default applied.", "zone"), ""},
	UnitsAdmitted: {unitCount, "admitted"},
	UnitsRefunded: {unitCount, "refunded"},
	UnitsCharged:  {unitCount, "charged"},
	UnitsDenied:   {unitCount, "denied"},
	CostAbsent:    {costMissingCount, "absent"},
	CostEncoded:   {costMissingCount, "encoded"},
	CostBad:       {costMissingCount, "bad"},
	CostGone:      {costMissingCount, "gone"},
}

// allCounts are all counters of zones.
func allCounts() (all []*prometheus.CounterVec) {
	for _, e := range eventCounts {
		all = append(all, e.CounterVec)
	}
	return append(all, decisionCount)
}

// ZoneCounters are one zone's counters, looked up once. Nil ones count nothing.
type ZoneCounters struct {
	name      string
	decisions [answer.Counted]prometheus.Counter
	events    [events]prometheus.Counter // those of units are nil but in zones WithUnits
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
	z.begin(Overflow, CostDefault)
	return z
}

// begin has the counters of some events begin.
func (z *ZoneCounters) begin(first, last Event) {
	for e := first; e <= last; e++ {
		labels := []string{z.name}
		if eventCounts[e].label != "" {
			labels = append(labels, eventCounts[e].label)
		}
		z.events[e] = eventCounts[e].WithLabelValues(labels...)
	}
}

// WithUnits has the counters of a zone count units, and figures that are missing where responses
// have some. It is for zones in which a request may take another number of units than one.
func (z *ZoneCounters) WithUnits(responses bool) {
	if z == nil {
		return
	}
	z.begin(UnitsAdmitted, UnitsDenied)
	if responses {
		z.begin(CostAbsent, CostGone)
	}
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
	for _, count := range allCounts() {
		count.DeletePartialMatch(prometheus.Labels{"zone": z.name})
	}
}

// Count counts a decision.
func (z *ZoneCounters) Count(d answer.Reason) {
	if z != nil {
		z.decisions[d].Inc()
	}
}

// Show has the counter of a decision show the id of a key that it was made for, as its exemplar.
func (z *ZoneCounters) Show(d answer.Reason, id keys.ID) {
	if z != nil {
		z.decisions[d].(prometheus.ExemplarAdder).AddWithExemplar(0, prometheus.Labels{"key_id": id.Short()})
	}
}

// CountEvent counts what happened beside what was decided.
func (z *ZoneCounters) CountEvent(e Event) { z.CountUnits(e, 1) }

// CountUnits counts units, n at least 0.
func (z *ZoneCounters) CountUnits(e Event, n int64) {
	if z != nil {
		z.events[e].Add(float64(n))
	}
}

// CountSettled counts that what was n units has cost m.
func (z *ZoneCounters) CountSettled(n, m int64) {
	switch {
	case m < n:
		z.CountUnits(UnitsRefunded, n-m)
	case m > n:
		z.CountUnits(UnitsCharged, m-n)
	}
}

// label makes a name fit for a label, which is UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "?") }
