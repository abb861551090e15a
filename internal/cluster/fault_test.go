//go:build chaos

package cluster_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

// A fault is what happens to nodes or to Redis, and what nodes are to make of it.
type fault struct {
	name string // in the report
	// begin causes the fault and end ends it. What begin leaves to be seen in the nodes' logs is
	// awaited in between.
	begin, end func()
	// reason is a part of the line on the way down, of the nodes in cutOff (nil: all). Without a
	// reason the syncs go on, and no node may write that they fail.
	reason string
	cutOff []int
	// mayLog is a part of a line on the way down that a node may write, or not.
	mayLog string
	// alsoLogs is another line that some node must write, once each.
	alsoLogs string
	// unacquainted says that nodes have never seen a heartbeat of each other when the fault comes,
	// and so can't divide a limit.
	unacquainted bool
	// extraLimits is how many more times the limit may be admitted in a phase.
	extraLimits float64
	// mayLose is how many of the requests admitted in a zone may be missing in Redis in the end:
	// those that a killed node had not sent.
	mayLose func(zone string) int
	// losesGrants says that Redis loses what only it had counted: the grants of a strict zone.
	losesGrants bool
	// olderCopy says that Redis comes back with what it had a moment before: what was reserved in a
	// strict zone then, and refunded since, is reserved again.
	olderCopy bool
}

const (
	lineDown = "sync with redis fails"
	lineUp   = "sync with redis works again"
)

// inject sends requests before, during and after a fault, and checks what must hold: no request
// fails, what Redis counts in the end is what clients saw admitted, each node writes one line down
// and one up, no goroutine is left, and limits hold. How long requests take is compared to the
// control group, and reported.
func (s *scenario) inject(f fault) {
	t := s.t
	t.Helper()
	for _, n := range s.Nodes {
		awaitUp(t, n)
	}
	s.warm()
	goroutines := goroutines(t, s.Nodes[0], true)
	s.sendRequests("before the fault")
	before := s.current()
	s.keeper.begin(true)
	s.awaitPhase(before)
	for _, n := range s.Nodes {
		awaitUp(t, n)
	}
	r := result{fault: s.named(f), test: t.Name(), scenario: s, before: before, circuitsBefore: s.allCircuits()}
	r.goroutinesBefore = goroutines
	r.during = s.beginPhase("during the fault")
	s.keeper.faultBegins()
	f.begin()
	s.keeper.during()
	s.awaitDown(f)
	s.awaitPhase(r.during)
	f.end()
	s.checkRecovery(f, &r)
}

// named is a fault with the distance in its name.
func (s *scenario) named(f fault) fault {
	if s.away > 0 {
		f.name += fmt.Sprintf(", Redis %d ms away", s.away.Milliseconds())
	}
	return f
}

// injectAtStart is inject for a fault that is there before the nodes. The only phase without it
// comes after it.
func (s *scenario) injectAtStart(f fault) {
	s.t.Helper()
	f.unacquainted = true
	s.warm()
	goroutines := goroutines(s.t, s.Nodes[0], false)
	s.sendRequests("during the fault")
	s.keeper.begin(false)
	r := result{fault: s.named(f), test: s.t.Name(), scenario: s, during: s.current()}
	r.goroutinesBefore = goroutines
	s.awaitDown(f)
	s.awaitPhase(r.during)
	f.end()
	s.checkRecovery(f, &r)
}

// checkRecovery is the second half of inject: the fault is over.
func (s *scenario) checkRecovery(f fault, r *result) {
	t := s.t
	t.Helper()
	ended := time.Now()
	r.circuitsDuring = s.allCircuits()
	want := s.admitted("wide") - f.maxLoss("wide")
	r.after = s.beginPhase("after the fault")
	eventually(t, "all is synced again", func() error {
		if got := s.counted("wide"); got < want {
			return fmt.Errorf("redis counts %d of %d", got, want)
		}
		return s.allSynced()
	})
	r.synced = time.Since(ended)
	s.keeper.faultEnds()
	s.awaitPhase(r.after)
	s.keeper.stop()
	s.stop()
	if f.losesGrants {
		s.requestEachKey(r.after)
	}
	s.client.Close()
	r.after.length = time.Since(r.after.began)
	r.circuitsAfter = s.allCircuits()
	s.checkAnswers(r)
	s.checkCounts(f, r)
	s.checkStrict(f, r)
	s.checkStrictOthers(f)
	s.checkLines(f, r)
	s.checkLimits(f, r)
	s.keeper.check(f)
	s.checkGoroutines(r)
	if !t.Failed() {
		results.add(*r)
	}
}

// allCircuits returns the circuits of each node.
func (s *scenario) allCircuits() (all [nodeCount]cluster.Circuits) {
	s.t.Helper()
	for node := range all {
		all[node] = s.circuits(node)
	}
	return all
}

func (f fault) maxLoss(zone string) int {
	if f.mayLose == nil {
		return 0
	}
	return f.mayLose(zone)
}

// affects reports whether a node loses Redis.
func (f fault) affects(node int) bool {
	return f.reason != "" && (f.cutOff == nil || slices.Contains(f.cutOff, node))
}

// awaitDown waits until every node that loses Redis reports it, and why: in its log, or in its
// status where it had logged another failure before.
func (s *scenario) awaitDown(f fault) {
	s.t.Helper()
	for i, n := range s.Nodes {
		if !f.affects(i) {
			continue
		}
		eventually(s.t, "a node logs that syncs fail", func() error {
			down := n.Log.With(lineDown)
			if has(down, f.reason) {
				return nil
			}
			status, err := n.Status(s.t.Context())
			if err != nil {
				return err
			}
			s.reasonInStatus[i] = has(slices.Collect(maps.Values(status.Redis.Failing)), f.reason)
			if len(down) == 0 || !s.reasonInStatus[i] {
				return fmt.Errorf("node %d wrote %q, and its status has %v, want %q", n.Number, down, status.Redis.Failing, f.reason)
			}
			return nil
		})
	}
}

func has(lines []string, text string) bool {
	return slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, text) })
}

// checkAnswers fails unless every request was answered, by the control group as well.
func (s *scenario) checkAnswers(r *result) {
	s.t.Helper()
	for _, p := range s.phases {
		n, err := failed(p.tallies)
		if r.failed += n; n > 0 {
			s.t.Errorf("%s, %d requests failed, the first with: %v", p.name, n, err)
		}
		if n, err := failed(p.control); n > 0 {
			s.t.Errorf("%s, %d requests to the control group failed, the first with: %v", p.name, n, err)
		}
		r.sent += p.sent()
	}
}

// checkCounts compares what Redis counts to what clients saw admitted, once nothing is under way.
func (s *scenario) checkCounts(f fault, r *result) {
	t := s.t
	t.Helper()
	for _, zone := range []string{"wide", "bucket"} {
		seen, most := s.admitted(zone), f.maxLoss(zone)
		eventually(t, "redis counts what clients saw admitted in zone "+zone, func() error {
			r.counted = s.counted(zone)
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
// by themselves, together. What a Redis that loses its counts had granted is nowhere else; then it
// must not count more than was admitted.
//
// Requests wait in vain now and then, not each time.
func (s *scenario) checkStrict(f fault, r *result) {
	t := s.t
	t.Helper()
	seen, most, more := s.strictBounds(f, "strict")
	eventually(t, "redis counts what clients saw admitted in the strict zone", func() error {
		r.strict, r.alone = s.counted("strict"), s.countedAlone("strict")
		if missing := seen - r.strict; missing > most || missing < -more {
			return fmt.Errorf("redis counts %d, %d of them decided by nodes; clients saw %d admitted, up to %d may be lost", r.strict, r.alone, seen, most)
		}
		return nil
	})
	r.strictLost = seen - r.strict
	asked, vain := 0, 0 // in all strict zones: a node's status has no other figure
	for _, zone := range append([]string{"strict"}, strictOthers...) {
		r.during.each(zone, func(t *cluster.Tally) { asked += t.Sent() })
	}
	for node := range nodeCount {
		vain += int(r.circuitsDuring[node].Timeouts - r.circuitsBefore[node].Timeouts)
	}
	most = asked / 4
	if s.away > 0 { // the timeout is three times as long, and as many more wait until it tells
		most = asked / 2
	}
	if vain > most {
		t.Errorf("%d of %d requests to strict zones waited for Redis in vain %s", vain, asked, r.during.name)
	}
}

// strictBounds returns what clients saw admitted in a strict zone, and how much less and more Redis
// may count.
func (s *scenario) strictBounds(f fault, zone string) (seen, less, more int) {
	seen, less = s.admitted(zone), f.maxLoss(zone)
	if f.losesGrants {
		less = seen
	}
	// Of a call that a killed node had given up nobody knows whether it counted, and nobody is left
	// to roll it back.
	if f.mayLose != nil {
		for _, was := range s.ended {
			more += int(was.circuits.Timeouts)
		}
	}
	return seen, less, more
}

// checkStrictOthers does the same for the strict zones of other algorithms. What nodes decided by
// themselves was charged there.
func (s *scenario) checkStrictOthers(f fault) {
	t := s.t
	t.Helper()
	for _, zone := range exactOthers {
		seen, most, more := s.strictBounds(f, zone)
		eventually(t, "redis counts what clients saw admitted in the strict zone "+zone, func() error {
			counts := s.counted
			if slices.Contains(strictBuckets, zone) {
				counts = s.countedStrict
			}
			got := counts(zone)
			if missing := seen - got; missing > most || missing < -more {
				return fmt.Errorf("redis counts %d, clients saw %d admitted, up to %d may be lost", got, seen, most)
			}
			return nil
		})
	}
}

// checkLines counts the lines of each node, once all is well. A strict zone's requests that wait in
// vain without a fault, as on a busy machine, are one reason more for a line. Then the status must
// have named the fault.
func (s *scenario) checkLines(f fault, r *result) {
	t := s.t
	t.Helper()
	for i, n := range s.Nodes {
		var down, up []string
		eventually(t, "a node logs that all works again", func() error {
			status, err := n.Status(t.Context())
			down, up = n.Log.With(lineDown), n.Log.With(lineUp)
			if err == nil && (!status.Redis.Up || len(down) != len(up)+s.ended[i].lines) {
				err = fmt.Errorf("node %d: %v; it wrote %d lines down and %d up: %q %q", n.Number, status.Redis.Failing, len(down), len(up), down, up)
			}
			return err
		})
		least := 0
		if f.affects(i) {
			least = 1
		}
		others := r.withoutCause(f, i)
		if f.mayLog != "" {
			others += len(n.Log.With(f.mayLog))
		}
		most := least + others
		if len(down) < least || len(down) > most {
			t.Errorf("node %d wrote %d lines down and as many up, want %d to %d: %q", n.Number, len(down), least, most, down)
		}
		if least > 0 && !has(down, f.reason) && !(s.reasonInStatus[i] && others > 0) {
			t.Errorf("node %d wrote %q, want a reason with %q", n.Number, down, f.reason)
		}
		r.alsoLogged += s.countLines(f, n)
	}
	if f.alsoLogs != "" && r.alsoLogged == 0 {
		t.Errorf("no node wrote %q", f.alsoLogs)
	}
}

// withoutCause returns how often requests of a node's strict zone waited in vain, or opened a
// circuit, while nothing kept Redis from it.
func (r *result) withoutCause(f fault, node int) (n int) {
	add := func(from, to cluster.Circuits) { n += int(max(to.Trips-from.Trips, to.Timeouts-from.Timeouts)) }
	if !f.affects(node) {
		add(cluster.Circuits{}, r.circuitsAfter[node])
		return n
	}
	if r.before != nil {
		add(cluster.Circuits{}, r.circuitsBefore[node])
	}
	add(r.circuitsDuring[node], r.circuitsAfter[node])
	return n
}

// countLines counts another line that a node may write once.
func (s *scenario) countLines(f fault, n *cluster.Node) int {
	if f.alsoLogs == "" {
		return 0
	}
	lines := n.Log.With(f.alsoLogs)
	if len(lines) > 1 {
		s.t.Errorf("node %d wrote %d lines, want at most one: %q", n.Number, len(lines), lines)
	}
	return len(lines)
}

// checkLimits holds the zone with on_redis_loss divide to its limit in all phases, and the other
// one to one limit for each node while Redis is lost. The bounds are wide: they are for a limit
// that is no longer there.
func (s *scenario) checkLimits(f fault, r *result) {
	t := s.t
	t.Helper()
	for _, p := range s.phases {
		most := 1.3 * float64(s.load.limit()) * (p.length.Seconds() + 1 + f.extraLimits)
		if f.unacquainted && p == r.during {
			most *= nodeCount
		}
		if got := p.admitted("divide"); float64(got) > most {
			t.Errorf("%s, in %s, zone divide admitted %d at limit %d/1s", p.name, p.length, got, s.load.limit())
		}
		if p == r.during && f.reason != "" && !f.unacquainted {
			most *= nodeCount
		}
		// Each node has a queue of its own while it is alone, or always.
		drains := 1.3 * nodeCount * (float64(s.load.narrow())*(p.length.Seconds()+1+f.extraLimits) + 5)
		for _, zone := range []string{"squeue", "beside"} {
			if got := p.admitted(zone); float64(got) > drains {
				t.Errorf("%s, in %s, the queue of %s admitted %d at limit %d/1s", p.name, p.length, zone, got, s.load.narrow())
			}
		}
		if got := p.admitted("local"); float64(got) > most {
			t.Errorf("%s, in %s, zone local admitted %d at limit %d/1s", p.name, p.length, got, s.load.limit())
		}
	}
}

// checkGoroutines waits until there are no more than before.
func (s *scenario) checkGoroutines(r *result) {
	s.t.Helper()
	eventually(s.t, "there are no more goroutines than before", func() error {
		n, profile, err := s.Nodes[0].Goroutines(s.t.Context())
		if r.goroutines = n; err == nil && n > r.goroutinesBefore {
			err = fmt.Errorf("%d, before %d:\n%s", n, r.goroutinesBefore, profile)
		}
		return err
	})
}

// goroutines returns the number of a node's goroutines once it stays the same. Where a fault has it
// try to connect all the time, those that do so come and go, and it is the least number in a while.
func goroutines(t *testing.T, n *cluster.Node, settle bool) int {
	t.Helper()
	last, asked := math.MaxInt, 0
	eventually(t, "the number of goroutines is asked for forty times", func() error {
		now, _, err := n.Goroutines(t.Context())
		if err != nil {
			return err
		}
		if settle && now != last {
			last, asked = now, 0
		}
		if last, asked = min(last, now), asked+1; asked < 40 {
			return fmt.Errorf("%d, %d times", last, asked)
		}
		return nil
	})
	return last
}
