//go:build chaos

package cluster_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// This file makes the report of what faults have shown. It asserts nothing: fault_test.go does.

// A result is what one fault has shown.
type result struct {
	fault
	measured
	kept                  keptRow
	test                  string
	scenario              *scenario
	before, during, after *phase
	// The nodes' circuits at the end of each phase.
	circuitsBefore, circuitsDuring, circuitsAfter [nodeCount]cluster.Circuits
}

// measured are the figures of a result.
type measured struct {
	sent, failed                 int           // requests, in all zones
	admitted, lost               int           // in zones that sync, and those that Redis lacks
	counted, missing             int           // the same of one zone
	strict, alone, strictLost    int           // in the strict zone; alone was decided by nodes
	waited, trips                int           // requests that waited in vain, and circuits opened
	goroutinesBefore, goroutines int           // of the first node
	down, up, alsoLogged         int           // log lines
	synced                       time.Duration // from the end of the fault until all was synced
}

// resultTable is the results of a run.
type resultTable struct {
	sync.Mutex
	all []result
}

var results resultTable

func (t *resultTable) add(r result) {
	t.Lock()
	defer t.Unlock()
	t.all = append(t.all, r)
}

const tableHead = `What clients saw:

| fault | requests | failed | p99 against the control's: before, during, after | p99 during | test |
|---|---|---|---|---|---|
`

const keptHead = `| fault | responses that count, missing in Redis | the same, strict | bans, denials, too long by | places: on a node; on all, interval and strict; given out of none; free after | test |
|---|---|---|---|---|---|
`

// The first table is of requests, the other two of what was counted and of how nodes recover.
func (r result) markdown() string {
	ratio := func(p *phase) string {
		if p == nil { // the fault was there first
			return "-"
		}
		_, ratio := p.p99()
		return fmt.Sprintf("%.2f", ratio)
	}
	took, _ := r.during.p99()
	return fmt.Sprintf("| %s | %d | %d | %s, %s, %s | %.1f ms | `%s` |\n",
		r.name, r.sent, r.failed, ratio(r.before), ratio(r.during), ratio(r.after), float64(took.Microseconds())/1000, r.test)
}

const countsHead = `What was admitted and counted:

| fault | admitted / limit: alone, during, divided | counted in Redis, short of admitted | strict: granted by Redis, decided by nodes, short of admitted |
|---|---|---|---|
`

func (r result) counts() string {
	share := func(p *phase, zone string) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprintf("%.2f", float64(p.admitted(zone))/float64(r.scenario.load.limit())/p.length.Seconds())
	}
	strict := "forgotten"
	if !r.losesGrants {
		strict = fmt.Sprintf("%d, %d, %d", r.strict-r.alone, r.alone, r.strictLost)
	}
	return fmt.Sprintf("| %s | %s, %s, %s | %d, %d | %s |\n",
		r.name, share(r.before, "local"), share(r.during, "local"), share(r.during, "divide"), r.admitted-r.lost, r.lost, strict)
}

const recoveryHead = `What nodes did:

| fault | strict: timeouts, trips | goroutines before, after | lines down, up | synced again after |
|---|---|---|---|---|
`

func (r result) recovery() string {
	return fmt.Sprintf("| %s | %d, %d | %d, %d | %d, %d | %.2f s |\n",
		r.name, r.waited, r.trips, r.goroutinesBefore, r.goroutines, r.down, r.up, r.synced.Seconds())
}

// summary returns how p99 against the control's is spread with a fault and without: the phases
// without one show the noise.
func summary(all []result) string {
	var with, without []float64
	for _, r := range all {
		for _, p := range []*phase{r.before, r.during, r.after} {
			if p == nil {
				continue
			}
			_, ratio := p.p99()
			if p == r.during {
				with = append(with, ratio)
			} else {
				without = append(without, ratio)
			}
		}
	}
	return fmt.Sprintf("p99 against the control's: during a fault %s;\nwithout one %s.\n", spread(with), spread(without))
}

const noticeable = 1.2

func spread(ratios []float64) string {
	above := 0
	for _, ratio := range ratios {
		if ratio > noticeable {
			above++
		}
	}
	slices.Sort(ratios)
	at := func(q float64) float64 { return ratios[int(q*float64(len(ratios)-1))] }
	return fmt.Sprintf("above %.1f in %d of %d phases, median %.2f, nine of ten below %.2f", noticeable, above, len(ratios), at(.5), at(.9))
}

// write puts text between the marks of a name in the report, or only shows it.
func write(name, text string) error {
	fmt.Print(text)
	if !redistest.UpdateGoldens {
		return nil
	}
	page, err := os.ReadFile(reportPage)
	if err != nil {
		return err
	}
	first, last := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(string(page), first)
	_, after, ok2 := strings.Cut(rest, last)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks %s and %s", reportPage, first, last)
	}
	return os.WriteFile(reportPage, []byte(before+first+"\n"+text+"\n"+last+after), 0o644)
}

// print shows the results and writes them into the report.
func (t *resultTable) print() error {
	t.Lock()
	defer t.Unlock()
	if len(t.all) == 0 {
		return nil
	}
	var b strings.Builder
	for i, table := range []struct {
		head string
		row  func(result) string
	}{{tableHead, result.markdown}, {countsHead, result.counts}, {recoveryHead, result.recovery}} {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(table.head)
		for _, r := range t.all {
			b.WriteString(table.row(r))
		}
	}
	b.WriteString("\n" + summary(t.all))
	if err := write("faults", b.String()); err != nil {
		return err
	}
	b.Reset()
	b.WriteString(keptHead)
	for _, r := range t.all {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | `%s` |\n", r.name, r.kept.settled, r.kept.settledStrict, r.kept.bans, r.kept.places, r.test)
	}
	return write("kept", b.String())
}
