//go:build chaos

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file makes the report of the exactly-once run. It asserts nothing.

// within returns how much of a zone was admitted in the last d of an incarnation.
func (l *incarnation) within(zone string, d time.Duration) (n int) {
	if len(l.recent[zone]) == 0 {
		return 0
	}
	end := slices.Max(l.recent[zone])
	for _, at := range l.recent[zone] {
		if at > end-d {
			n++
		}
	}
	return n
}

// report writes what the run has shown.
func (m *onceRun) report(b balance) {
	var faults []string
	for name, n := range m.faults {
		faults = append(faults, fmt.Sprintf("%d × %s", n, name))
	}
	slices.Sort(faults)
	killed, lately := 0, 0
	for _, l := range m.ended {
		if l.killed {
			killed++
			for zone := range l.fields {
				lately += l.within(zone, onceSync)
			}
		}
	}
	failed, _ := m.tally.Errors()
	text := fmt.Sprintf(`| | |
|---|---|
| seed | %d |
| requests | %d in %s: %d admitted, %d denied, %d without an answer because their node was killed |
| faults | %d: %s |
| counts admitted, in all zones with an interval | %d |
| in Redis at the end | %d |
| in hashes that were evicted after the node that had counted them was gone | %d |
| unsent when their node was killed | %d, in %d kills; at most %d by what the nodes had reported just before and admitted since. In their last sync_rate they had admitted %d |
| unsent when their node was terminated | %d, in %d SIGTERMs; the nodes have logged that they could not send %d |
| difference | %d |
| counts admitted in strict zones | %s |
`, firstSeed(), m.tally.Sent(), time.Since(m.began).Round(time.Second), m.tally.Admitted(), m.tally.Denied(), failed,
		m.total, strings.Join(faults, ", "), b.admitted, b.counted, b.evicted, b.lost, killed, b.mayLose, lately,
		b.left, len(m.ended)-killed, b.mayLeave, b.difference(), m.strictReport())
	m.t.Log(text)
	if err := write("once", text); err != nil {
		m.t.Error(err)
	}
}

// strictReport returns what all strict zones have shown.
func (m *onceRun) strictReport() string {
	var all strictBalance
	var count strictCount
	for zone, c := range m.strictCounts() {
		b := m.strictBalance(zone)
		all = strictBalance{all.admitted + b.admitted, all.less + b.less, all.more + b.more}
		count = strictCount{count.sum + c.sum, count.alone + c.alone}
	}
	return fmt.Sprintf("%d; Redis has granted %d and nodes have decided %d, the difference is %d. Nodes that were killed had %d requests there, whose outcome nobody knows, since all was last right",
		all.admitted, count.sum-count.alone, count.alone, all.admitted-count.sum, all.more)
}
