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
	goroutinesBefore, goroutines int           // of the first node
	alsoLogged                   int           // log lines
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

const tableHead = `| fault | requests, failed | admitted / limit: alone, during, divided | Redis lacks, strict | synced again after |
|---|---|---|---|---|
`

func (r result) markdown() string {
	share := func(p *phase, zone string) string {
		if p == nil { // the fault was there first
			return "-"
		}
		return fmt.Sprintf("%.2f", float64(p.admitted(zone))/float64(r.scenario.load.limit())/p.length.Seconds())
	}
	strict := "forgotten"
	if !r.losesGrants {
		strict = fmt.Sprint(r.strictLost)
	}
	return fmt.Sprintf("| %s | %d, %d | %s, %s, %s | %d, %s | %.2f s |\n",
		r.name, r.sent, r.failed, share(r.before, "local"), share(r.during, "local"), share(r.during, "divide"), r.lost, strict, r.synced.Seconds())
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
	b.WriteString(tableHead)
	for _, r := range t.all {
		b.WriteString(r.markdown())
	}
	b.WriteString("\n" + summary(t.all))
	return write("faults", b.String())
}
