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

// A Missing is why a response does not say what it cost.
type Missing uint8

const (
	// Absent is no figure at all, Encoded is a body that is compressed, Bad is a figure that is no
	// number, and Gone is a response that was cut, or whose client left.
	Absent Missing = iota
	Encoded
	Bad
	Gone
	missings
)

var missingNames = [missings]string{"absent", "encoded", "bad", "gone"}

// WithUnits has the counters of a zone count units, and figures that are missing where responses
// have some. It is for zones in which a request may take another number of units than one.
func (z *ZoneCounters) WithUnits(responses bool) {
	if z == nil {
		return
	}
	for i, what := range whatNames {
		z.units[i] = unitCount.WithLabelValues(z.name, what)
	}
	for i, why := range missingNames {
		if responses {
			z.missing[i] = costMissingCount.WithLabelValues(z.name, why)
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

// CountMissing counts a cost that a response did not tell.
func (z *ZoneCounters) CountMissing(why Missing) {
	if z != nil {
		z.missing[why].Inc()
	}
}
