//go:build chaos

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
)

// onceStrict are the zones of the exactly-once run in which Redis decides. A request to /strictpair
// is for two of them, of which one denies in the end. Nodes have limits of their own.
var onceStrict = []string{"strict", "strictslide", "strictpair_wide", "strictpair_tight"}

// limitByNode is a limit that nobody reaches, another one on each node.
const limitByNode = "limit {{.Node}}000000/" + far

func (m *onceRun) strictZones() (parts []string) {
	tight := max(1, m.rate/100)
	for _, z := range []struct{ name, path, algorithm, limit string }{
		{"strict", "strict", "fixed_window", limitByNode},
		{"strictslide", "strictslide", "sliding_window", limitByNode},
		{"strictpair_wide", "strictpair", "sliding_window", limitByNode},
		{"strictpair_tight", "strictpair", "fixed_window", fmt.Sprintf("limit {{if eq .Node 1}}%d{{else}}%d{{end}}/%s", tight, 2*tight, far)},
	} {
		parts = append(parts, keyedZone(z.name, z.path, z.limit, "algorithm "+z.algorithm, "sync_rate strict"))
	}
	return parts
}

// isStrict reports whether a key in Redis is of a strict zone.
func isStrict(key string) bool {
	return slices.ContainsFunc(onceStrict, func(zone string) bool { return strings.Contains(key, ":"+zone+":") })
}

// A strictCount is what Redis has of a strict zone: all that was admitted, and the part of it
// that nodes have decided by themselves, which is in their fields.
type strictCount struct{ sum, alone int }

// strictCounts are those of each zone.
func (m *onceRun) strictCounts() map[string]strictCount {
	m.t.Helper()
	counts := make(map[string]strictCount)
	for _, zone := range onceStrict {
		count := counts[zone]
		for key, fields := range cells(m.t, m.redis.Master, zone) {
			count.sum += unitsOf(m.t, key, "sum", fields["sum"])
			count.alone += aloneIn(m.t, key, fields)
		}
		counts[zone] = count
	}
	return counts
}

// closeStrict keeps requests from strict zones and waits until Redis counts there what clients saw
// admitted. The caller opens them again.
func (m *onceRun) closeStrict() {
	m.t.Helper()
	m.strict.Lock()
	eventually(m.t, "redis counts what clients saw admitted in strict zones", func() error {
		counts := m.strictCounts()
		for _, zone := range onceStrict {
			if err := m.strictBalance(zone).check(zone, counts[zone]); err != nil {
				return err
			}
		}
		return nil
	})
	for node := range m.Nodes {
		l := m.current[node].Load()
		l.mu.Lock()
		for zone, n := range l.asked {
			l.settled[zone] = n
		}
		l.mu.Unlock()
	}
}

// A strictBalance is the sums of strict zones. What a node that was killed was asked since all was
// right may have been granted without being admitted (more), or decided alone and not sent (less);
// of one that was terminated, less is what it has logged.
type strictBalance struct{ admitted, less, more int }

func (m *onceRun) strictBalance(zone string) (b strictBalance) {
	count := func(l *incarnation) {
		l.mu.Lock()
		defer l.mu.Unlock()
		b.admitted += l.admitted[zone]
		if l.killed && slices.Contains(m.ended, l) {
			b.less, b.more = b.less+l.asked[zone]-l.settled[zone], b.more+l.asked[zone]-l.settled[zone]
		} else {
			b.less += l.unsent[zone]
		}
	}
	for _, l := range m.ended {
		count(l)
	}
	for node := range m.Nodes {
		count(m.current[node].Load())
	}
	return b
}

// check compares what Redis counts of a zone.
func (b strictBalance) check(zone string, c strictCount) error {
	if c.sum > b.admitted+b.more || c.sum < b.admitted-b.less || c.alone > c.sum {
		return fmt.Errorf("zone %s: redis counts %d, %d of them decided by nodes; clients saw %d admitted, %d may be missing and %d too many",
			zone, c.sum, c.alone, b.admitted, b.less, b.more)
	}
	return nil
}
