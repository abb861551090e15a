package cluster_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// A trial is one fault, and what nodes are to make of it.
type trial struct {
	// fault is its name in the report.
	fault string
	// begin breaks something and end mends it; what begin leaves to be seen in the nodes' logs is awaited in between.
	begin, end func()
	// reason is a part of the line on the way down, of the nodes in cut (nil: all). Without a reason the exchange goes on, and no node may write
	// that it fails.
	reason string
	cut    []int
	// says is another line that some node must write, once each.
	says string
	// strangers are nodes that have never heard of each other when the fault comes, and so can't divide a limit.
	strangers bool
	// extra is how many more times the limit may be admitted in a phase.
	extra float64
	// lost is how many of the requests admitted in a zone may be missing in Redis in the end: those that a killed node had not sent.
	lost func(zone string) int
	// broken are the requests that may fail: those under way at a node that is killed.
	broken int
}

const (
	lineDown = "exchange with redis fails"
	lineUp   = "exchange with redis works again"
)

// suffer goes through quiet, fault and quiet again, under load all the time, and checks what must hold: no request fails, what Redis counts
// in the end is what clients saw admitted, each node writes one line down and one up, no goroutine is left, and limits hold.
func (s *scene) suffer(f trial) {
	t := s.t
	t.Helper()
	for _, n := range s.Nodes {
		isUp(t, n)
	}
	s.warm()
	before := goroutines(t, s.Nodes[0])
	s.load("quiet")
	quiet := s.current()
	s.last(quiet)
	ill := s.enter("fault")
	f.begin()
	s.awaitDown(f)
	s.last(ill)
	f.end()
	s.heal(f, ill, quiet, before)
}

// begin is suffer for a fault that is there before the nodes: the quiet that it is compared to comes after it.
func (s *scene) begin(f trial) {
	s.t.Helper()
	f.strangers = true
	s.warm()
	before := goroutines(s.t, s.Nodes[0])
	s.load("fault")
	ill := s.current()
	s.awaitDown(f)
	s.last(ill)
	f.end()
	s.heal(f, ill, nil, before)
}

// heal is the second half of suffer: what broke is mended.
func (s *scene) heal(f trial, ill, quiet *phase, before int) {
	t := s.t
	t.Helper()
	healed := time.Now()
	want := s.admitted("wide") - f.loss("wide")
	after := s.enter("healed")
	eventually(t, "all is synced again", func() error {
		if got := s.holds("wide"); got < want {
			return fmt.Errorf("redis holds %d of %d", got, want)
		}
		return s.up()
	})
	synced := time.Since(healed)
	s.last(after)
	s.stop()
	s.client.Close()
	after.length = time.Since(after.began)
	r := row{trial: f, test: t.Name(), scene: s, quiet: quiet, ill: ill, after: after, synced: synced, before: before}
	s.checkCounts(f, &r)
	s.checkLines(f, &r)
	s.checkLimits(f, &r)
	s.checkGoroutines(&r)
	if !t.Failed() {
		rows.add(r)
	}
}

func (f trial) loss(zone string) int {
	if f.lost == nil {
		return 0
	}
	return f.lost(zone)
}

// hit says whether a node loses Redis.
func (f trial) hit(node int) bool {
	return f.reason != "" && (f.cut == nil || slices.Contains(f.cut, node))
}

// awaitDown waits until every node that loses Redis says so.
func (s *scene) awaitDown(f trial) {
	s.t.Helper()
	for i, n := range s.Nodes {
		if f.hit(i) {
			eventually(s.t, "a node writes that the exchange fails", func() error {
				if len(n.Log.With(lineDown)) == 0 {
					return fmt.Errorf("node %d wrote last: %s", n.Number, n.Log.Tail(1))
				}
				return nil
			})
		}
	}
}

// checkCounts compares what Redis counts to what clients saw admitted, once nothing is under way.
func (s *scene) checkCounts(f trial, r *row) {
	t := s.t
	t.Helper()
	for _, p := range s.phases {
		failed, err := p.failed()
		if r.failed += failed; r.failed > f.broken {
			t.Errorf("while %s %d requests failed, the first with: %v", p.name, failed, err)
		}
		r.sent += p.sent()
	}
	for _, zone := range []string{"wide", "bucket"} {
		seen, most := s.admitted(zone), f.loss(zone)
		eventually(t, "redis counts what clients saw admitted in zone "+zone, func() error {
			r.counted = s.holds(zone)
			// A failed request may have been counted.
			if r.missing = seen - r.counted; r.missing > most || r.missing < -r.failed {
				return fmt.Errorf("redis counts %d, clients saw %d admitted, up to %d may be lost", r.counted, seen, most)
			}
			return nil
		})
		r.admitted += seen
		r.lost += r.missing
	}
}

// checkLines counts the lines of each node. In a short run a node may also say that a call has timed out: the machine may be busy with
// other tests.
func (s *scene) checkLines(f trial, r *row) {
	t := s.t
	t.Helper()
	for i, n := range s.Nodes {
		down, up, least := n.Log.With(lineDown), n.Log.With(lineUp), 0
		if f.hit(i) {
			least = 1
		}
		most := least
		if !*long {
			most += len(n.Log.With("timeout: "))
		}
		if len(down) != len(up) || len(down) < least || len(down) > most {
			t.Errorf("node %d wrote %d lines down and %d up, want %d each: %q %q", n.Number, len(down), len(up), least, down, up)
		}
		if least > 0 && !slices.ContainsFunc(down, func(line string) bool { return strings.Contains(line, f.reason) }) {
			t.Errorf("node %d wrote %q, want a reason with %q", n.Number, down, f.reason)
		}
		r.down, r.up = max(r.down, len(down)), max(r.up, len(up))
		r.says += s.says(f, n)
	}
	if f.says != "" && r.says == 0 {
		t.Errorf("no node wrote %q", f.says)
	}
}

// says counts another line that a node may write once.
func (s *scene) says(f trial, n *cluster.Node) int {
	if f.says == "" {
		return 0
	}
	lines := n.Log.With(f.says)
	if len(lines) > 1 {
		s.t.Errorf("node %d wrote %d lines, want at most one: %q", n.Number, len(lines), lines)
	}
	return len(lines)
}

// checkLimits holds the zone with on_redis_loss divide to its limit in all phases, and the other one to one limit for each node while
// Redis is lost. The bounds are wide: they are for a limit that is no longer there.
func (s *scene) checkLimits(f trial, r *row) {
	t := s.t
	t.Helper()
	for _, p := range s.phases {
		most := 1.3 * float64(s.pace.limit()) * (p.length.Seconds() + 1 + f.extra)
		if f.strangers && p == r.ill {
			most *= sceneNodes
		}
		if got := p.admitted("divide"); float64(got) > most {
			t.Errorf("while %s, %s long, zone divide admitted %d at limit %d/1s", p.name, p.length, got, s.pace.limit())
		}
		if p == r.ill && f.reason != "" && !f.strangers {
			most *= sceneNodes
		}
		if got := p.admitted("local"); float64(got) > most {
			t.Errorf("while %s, %s long, zone local admitted %d at limit %d/1s", p.name, p.length, got, s.pace.limit())
		}
	}
}

// checkGoroutines waits until there are no more than before.
func (s *scene) checkGoroutines(r *row) {
	s.t.Helper()
	eventually(s.t, "there are no more goroutines than before", func() error {
		n, profile, err := s.Nodes[0].Goroutines(s.t.Context())
		if r.goroutines = n; err == nil && n > r.before {
			err = fmt.Errorf("%d, before %d:\n%s", n, r.before, profile)
		}
		return err
	})
}

// A row is what one trial showed.
type row struct {
	trial
	test              string
	scene             *scene
	quiet, ill, after *phase

	sent, failed               int
	admitted, counted, missing int
	lost                       int
	before, goroutines         int
	down, up, says             int
	synced                     time.Duration
}

// table is the rows of a run.
type table struct {
	sync.Mutex
	all []row
}

var rows table

func (t *table) add(r row) {
	t.Lock()
	defer t.Unlock()
	t.all = append(t.all, r)
}

const tableHead = `| fault | requests | failed | p99 before, during, after | admitted / limit: alone, during, divided | counted in Redis, short of admitted | goroutines before, after | lines down, up | synced again after | test |
|---|---|---|---|---|---|---|---|---|---|
`

func (r row) markdown() string {
	ms := func(p *phase) string {
		if p == nil { // the fault was there first
			return "-"
		}
		return fmt.Sprintf("%.1f", float64(p.quantile(.99).Microseconds())/1000)
	}
	share := func(p *phase, zone string) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprintf("%.2f", float64(p.admitted(zone))/float64(r.scene.pace.limit())/p.length.Seconds())
	}
	return fmt.Sprintf("| %s | %d | %d | %s, %s, %s ms | %s, %s, %s | %d, %d | %d, %d | %d, %d | %.2f s | `%s` |\n",
		r.fault, r.sent, r.failed, ms(r.quiet), ms(r.ill), ms(r.after), share(r.quiet, "local"), share(r.ill, "local"), share(r.ill, "divide"),
		r.admitted-r.lost, r.lost, r.before, r.goroutines, r.down, r.up, r.synced.Seconds(), r.test)
}

// write puts text between the marks of a name in the report, or only shows it.
func write(name, text string) error {
	fmt.Print(text)
	if *report == "" {
		return nil
	}
	page, err := os.ReadFile(*report)
	if err != nil {
		return err
	}
	first, last := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(string(page), first)
	_, after, ok2 := strings.Cut(rest, last)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks %s and %s", *report, first, last)
	}
	return os.WriteFile(*report, []byte(before+first+"\n"+text+"\n"+last+after), 0o644)
}

// print shows the rows and writes them into the report.
func (t *table) print() error {
	t.Lock()
	defer t.Unlock()
	if len(t.all) == 0 || !*long && !testing.Verbose() {
		return nil
	}
	var b strings.Builder
	b.WriteString(tableHead)
	for _, r := range t.all {
		b.WriteString(r.markdown())
	}
	return write("faults", b.String())
}
