package metrics

// Zones with cost and response_cost count units beside requests.

var (
	unitCount        = newCount("units_total", "Units that a zone with cost has admitted, refunded, charged or denied.", "zone", "what")
	costMissingCount = newCount("response_cost_missing_total", "Responses without their cost, by why: absent, encoded, bad, or gone (cut, even after a figure).", "zone", "why")
)

// A What is what is counted of units.
type What uint8

const (
	UnitsAdmitted What = iota
	UnitsRefunded
	UnitsCharged
	UnitsDenied
	whats
)

var whatNames = [whats]string{"admitted", "refunded", "charged", "denied"}

// WithUnits has the counters of a zone count units, and figures that are missing where responses
// have some. It is for zones in which a request may take another number of units than one.
func (z *ZoneCounters) WithUnits(responses bool) {
	if z == nil {
		return
	}
	for i, what := range whatNames {
		z.units[i] = unitCount.WithLabelValues(z.name, what)
	}
	if responses {
		for i, why := range []string{"absent", "encoded", "bad", "gone"} {
			z.events[CostAbsent+Event(i)] = costMissingCount.WithLabelValues(z.name, why)
		}
	}
}

// CountUnits counts units, n at least 0, in a zone WithUnits.
func (z *ZoneCounters) CountUnits(what What, n int64) {
	if z != nil {
		z.units[what].Add(float64(n))
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
