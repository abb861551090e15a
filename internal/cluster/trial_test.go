package cluster_test

import (
	"fmt"
	"maps"
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
	// begin breaks something and end mends it; what begin leaves to be seen in the nodes' logs is
	// awaited in between.
	begin, end func()
	// reason is a part of the line on the way down, of the nodes in cut (nil: all). Without a
	// reason the exchange goes on, and no node may write that it fails.
	reason string
	cut    []int
	// may is a part of a line on the way down that a node may write, or not.
	may string
	// says is another line that some node must write, once each.
	says string
	// strangers are nodes that have never heard of each other when the fault comes, and so can't
	// divide a limit.
	strangers bool
	// extra is how many more times the limit may be admitted in a phase.
	extra float64
	// lost is how many of the requests admitted in a zone may be missing in Redis in the end: those
	// that a killed node had not sent.
	lost func(zone string) int
	// forgets says that Redis loses what only it had counted: the grants of a strict zone.
	forgets bool
}

const (
	lineDown = "sync with redis fails"
	lineUp   = "sync with redis works again"
)

// suffer goes through quiet, fault and quiet again, under load all the time, and checks what must
// hold: no request fails, what Redis counts in the end is what clients saw admitted, each node
// writes one line down and one up, no goroutine is left, and limits hold. How long requests take is
// compared to the control group, and reported.
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
	for _, n := range s.Nodes {
		isUp(t, n)
	}
	r := row{trial: f, test: t.Name(), scene: s, quiet: quiet, before: before, calm: s.allCircuits()}
	r.ill = s.enter("fault")
	f.begin()
	s.awaitDown(f)
	s.last(r.ill)
	f.end()
	s.heal(f, &r)
}

// begin is suffer for a fault that is there before the nodes: the quiet that it is compared to
// comes after it.
func (s *scene) begin(f trial) {
	s.t.Helper()
	f.strangers = true
	s.warm()
	before := leastGoroutines(s.t, s.Nodes[0])
	s.load("fault")
	r := row{trial: f, test: s.t.Name(), scene: s, ill: s.current(), before: before}
	s.awaitDown(f)
	s.last(r.ill)
	f.end()
	s.heal(f, &r)
}

// heal is the second half of suffer: what broke is mended.
func (s *scene) heal(f trial, r *row) {
	t := s.t
	t.Helper()
	healed := time.Now()
	r.broken = s.allCircuits()
	want := s.admitted("wide") - f.loss("wide")
	r.after = s.enter("healed")
	eventually(t, "all is synced again", func() error {
		if got := s.holds("wide"); got < want {
			return fmt.Errorf("redis holds %d of %d", got, want)
		}
		return s.exchanged()
	})
	r.synced = time.Since(healed)
	s.last(r.after)
	s.stop()
	if f.forgets {
		s.touch(r.after)
	}
	s.client.Close()
	r.after.length = time.Since(r.after.began)
	r.done = s.allCircuits()
	s.checkAnswers(r)
	s.checkCounts(f, r)
	s.checkStrict(f, r)
	s.checkKinds(f)
	s.checkLines(f, r)
	s.checkLimits(f, r)
	s.checkGoroutines(r)
	if !t.Failed() {
		rows.add(*r)
	}
}

// allCircuits are the circuits of each node.
func (s *scene) allCircuits() (all [sceneNodes]cluster.Circuits) {
	s.t.Helper()
	for node := range all {
		all[node] = s.circuits(node)
	}
	return all
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

// awaitDown waits until every node that loses Redis says so, and why: in its log, or, where that
// had said before that something fails, in its status.
func (s *scene) awaitDown(f trial) {
	s.t.Helper()
	for i, n := range s.Nodes {
		if !f.hit(i) {
			continue
		}
		eventually(s.t, "a node writes that the exchange fails", func() error {
			down := n.Log.With(lineDown)
			if has(down, f.reason) {
				return nil
			}
			status, err := n.Status(s.t.Context())
			if err != nil {
				return err
			}
			s.named[i] = has(slices.Collect(maps.Values(status.Redis.Failing)), f.reason)
			if len(down) == 0 || !s.named[i] {
				return fmt.Errorf("node %d wrote %q, and its status says %v, want %q", n.Number, down, status.Redis.Failing, f.reason)
			}
			return nil
		})
	}
}

func has(lines []string, text string) bool {
	return slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, text) })
}

// checkAnswers wants every request answered, by the control group as well.
func (s *scene) checkAnswers(r *row) {
	s.t.Helper()
	for _, p := range s.phases {
		n, err := failed(p.tallies)
		if r.failed += n; n > 0 {
			s.t.Errorf("while %s %d requests failed, the first with: %v", p.name, n, err)
		}
		if n, err := failed(p.control); n > 0 {
			s.t.Errorf("while %s %d requests to the control group failed, the first with: %v", p.name, n, err)
		}
		r.sent += p.sent()
	}
}

// checkCounts compares what Redis counts to what clients saw admitted, once nothing is under way.
func (s *scene) checkCounts(f trial, r *row) {
	t := s.t
	t.Helper()
	for _, zone := range []string{"wide", "bucket"} {
		seen, most := s.admitted(zone), f.loss(zone)
		eventually(t, "redis counts what clients saw admitted in zone "+zone, func() error {
			r.counted = s.holds(zone)
			if r.missing = seen - r.counted; r.missing > most || r.missing < 0 {
				return fmt.Errorf("redis counts %d, clients saw %d admitted, up to %d may be lost", r.counted, seen, most)
			}
			return nil
		})
		r.admitted += seen
		r.lost += r.missing
	}
}

// checkStrict does the same for the strict zone: what Redis has granted and what nodes have decided
// by themselves, together. What a Redis that forgets had granted is nowhere else; then it must not
// count more than was admitted.
//
// Requests wait in vain now and then, not each time. A short run has too few of them to say so.
func (s *scene) checkStrict(f trial, r *row) {
	t := s.t
	t.Helper()
	seen, most := s.admitted("strict"), f.loss("strict")
	if f.forgets {
		most = seen
	}
	// of a call that a killed node had given up nobody knows whether it counted, and nobody is left
	// to have it undone
	more := 0
	if f.lost != nil {
		for _, was := range s.past {
			more += int(was.circuits.Timeouts)
		}
	}
	eventually(t, "redis counts what clients saw admitted in the strict zone", func() error {
		r.strict, r.alone = s.holds("strict"), s.decidedAlone("strict")
		if missing := seen - r.strict; missing > most || missing < -more {
			return fmt.Errorf("redis counts %d, %d of them decided by nodes; clients saw %d admitted, up to %d may be lost", r.strict, r.alone, seen, most)
		}
		return nil
	})
	r.strictLost = seen - r.strict
	for node := range sceneNodes {
		r.waited += int(r.done[node].Timeouts)
		r.trips += int(r.done[node].Trips)
	}
	asked, vain := 0, 0
	r.ill.each("strict", func(t *cluster.Tally) { asked += t.Sent() })
	for node := range sceneNodes {
		vain += int(r.broken[node].Timeouts - r.calm[node].Timeouts)
	}
	if *long && vain > asked/4 {
		t.Errorf("%d of %d requests to the strict zone waited for Redis in vain while %s", vain, asked, r.ill.name)
	}
}

// checkKinds does the same for the strict zones of other algorithms. What nodes decided by
// themselves was charged there.
func (s *scene) checkKinds(f trial) {
	t := s.t
	t.Helper()
	for _, zone := range counted {
		seen, most, more := s.admitted(zone), f.loss(zone), 0
		if f.forgets {
			most = seen
		}
		if f.lost != nil {
			for _, was := range s.past {
				more += int(was.circuits.Timeouts)
			}
		}
		eventually(t, "redis counts what clients saw admitted in the strict zone "+zone, func() error {
			got := s.holdsStrict(zone)
			if zone == "beside" {
				got = s.holds(zone)
			}
			if missing := seen - got; missing > most || missing < -more {
				return fmt.Errorf("redis counts %d, clients saw %d admitted, up to %d may be lost", got, seen, most)
			}
			return nil
		})
	}
}

// checkLines counts the lines of each node, once all is well. A strict zone's requests that wait in
// vain without a fault, as on a busy machine, are one reason more for a line; in a short run, with
// other tests beside it, so are calls of the exchange that time out, and a strict zone that speaks
// before the exchange has had its turn, and only knows that Redis is not asked. Then the status
// must have named the fault.
func (s *scene) checkLines(f trial, r *row) {
	t := s.t
	t.Helper()
	for i, n := range s.Nodes {
		var down, up []string
		eventually(t, "a node says that all works again", func() error {
			status, err := n.Status(t.Context())
			down, up = n.Log.With(lineDown), n.Log.With(lineUp)
			if err == nil && (!status.Redis.Up || len(down) != len(up)+s.past[i].lines) {
				err = fmt.Errorf("node %d: %v; it wrote %d lines down and %d up: %q %q", n.Number, status.Redis.Failing, len(down), len(up), down, up)
			}
			return err
		})
		least := 0
		if f.hit(i) {
			least = 1
		}
		others := r.unprovoked(f, i)
		if !*long {
			others += len(n.Log.With("timeout: ")) + len(n.Log.With("did not answer lately"))
		}
		if f.may != "" {
			others += len(n.Log.With(f.may))
		}
		most := least + others
		if len(down) < least || len(down) > most {
			t.Errorf("node %d wrote %d lines down and as many up, want %d to %d: %q", n.Number, len(down), least, most, down)
		}
		if least > 0 && !has(down, f.reason) && !(s.named[i] && others > 0) {
			t.Errorf("node %d wrote %q, want a reason with %q", n.Number, down, f.reason)
		}
		r.down, r.up = max(r.down, len(down)), max(r.up, len(up))
		r.says += s.says(f, n)
	}
	if f.says != "" && r.says == 0 {
		t.Errorf("no node wrote %q", f.says)
	}
}

// unprovoked is how often requests of a node's strict zone waited in vain, or opened a circuit,
// while nothing kept Redis from it.
func (r *row) unprovoked(f trial, node int) (n int) {
	add := func(from, to cluster.Circuits) { n += int(max(to.Trips-from.Trips, to.Timeouts-from.Timeouts)) }
	if !f.hit(node) {
		add(cluster.Circuits{}, r.done[node])
		return n
	}
	if r.quiet != nil {
		add(cluster.Circuits{}, r.calm[node])
	}
	add(r.broken[node], r.done[node])
	return n
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

// checkLimits holds the zone with on_redis_loss divide to its limit in all phases, and the other
// one to one limit for each node while Redis is lost. The bounds are wide: they are for a limit
// that is no longer there.
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
		// Each node has a queue of its own while it is alone, or always.
		drains := 1.3 * sceneNodes * (float64(s.pace.narrow())*(p.length.Seconds()+1+f.extra) + 5)
		for _, zone := range []string{"squeue", "beside"} {
			if got := p.admitted(zone); float64(got) > drains {
				t.Errorf("while %s, %s long, the queue of %s admitted %d at limit %d/1s", p.name, p.length, zone, got, s.pace.narrow())
			}
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
	// How the nodes' circuits stood at the end of each phase.
	calm, broken, done [sceneNodes]cluster.Circuits

	sent, failed               int
	admitted, counted, missing int
	lost                       int
	strict, alone, strictLost  int
	waited, trips              int
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

const tableHead = `| fault | requests | failed | p99 against the control's: before, during, after | p99 during | admitted / limit: alone, during, divided | counted in Redis, short of admitted | strict: granted by Redis, decided by nodes, short of admitted | strict: timeouts, trips | goroutines before, after | lines down, up | synced again after | test |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

func (r row) markdown() string {
	ratio := func(p *phase) string {
		if p == nil { // the fault was there first
			return "-"
		}
		_, ratio := p.p99()
		return fmt.Sprintf("%.2f", ratio)
	}
	share := func(p *phase, zone string) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprintf("%.2f", float64(p.admitted(zone))/float64(r.scene.pace.limit())/p.length.Seconds())
	}
	strict := "forgotten"
	if !r.forgets {
		strict = fmt.Sprintf("%d, %d, %d", r.strict-r.alone, r.alone, r.strictLost)
	}
	took, _ := r.ill.p99()
	return fmt.Sprintf("| %s | %d | %d | %s, %s, %s | %.1f ms | %s, %s, %s | %d, %d | %s | %d, %d | %d, %d | %d, %d | %.2f s | `%s` |\n",
		r.fault, r.sent, r.failed, ratio(r.quiet), ratio(r.ill), ratio(r.after), float64(took.Microseconds())/1000,
		share(r.quiet, "local"), share(r.ill, "local"), share(r.ill, "divide"), r.admitted-r.lost, r.lost, strict, r.waited, r.trips,
		r.before, r.goroutines, r.down, r.up, r.synced.Seconds(), r.test)
}

// summary says how p99 against the control's is spread with a fault and without: what the phases
// without one show is the noise.
func summary(all []row) string {
	var ill, well []float64
	for _, r := range all {
		for _, p := range []*phase{r.quiet, r.ill, r.after} {
			if p == nil {
				continue
			}
			_, ratio := p.p99()
			if p == r.ill {
				ill = append(ill, ratio)
			} else {
				well = append(well, ratio)
			}
		}
	}
	return fmt.Sprintf("p99 against the control's, during a fault: %s. Without one: %s.\n", spread(ill), spread(well))
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
	b.WriteString("\n" + summary(t.all))
	return write("faults", b.String())
}
