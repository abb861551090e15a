package strict

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/reset"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// The place of one who has left goes to the next of its run. What nobody uses then is refunded from
// where it begins among the units of the call, and only that.
func TestALeaversPlaceGoesToTheNextOfItsRun(t *testing.T) {
	rules := []Rule{{Kind: algorithms.TokenBucket, Limit: 20, Window: long}}
	b := like(rules, run{3, 4}, run{1, 50}, run{2, 3}, run{2, 0}, run{1, 1})
	b.waiters[0].gone = true // of the first run, of which two of three fit
	b.waiters[4].gone = true // of the second one, of which one of two fits
	b.waiters[8].gone = true // of the last one, which fits
	o := &outcome{budget: 12, granted: 12}
	asked, unused := b.tell(o, reset.Reset{})
	for i, want := range map[int]place{1: {0, 4, true}, 2: {4, 4, true}, 3: {12, 50, false}, 5: {12, 3, false}, 6: {12, 0, true}} {
		if got := b.waiters[i].place; got != want {
			t.Errorf("request %d is at %+v, want %+v", i, got, want)
		}
	}
	if want := []place{{before: 8, cost: 4}}; asked != 6 || !slices.Equal(unused, want) {
		t.Errorf("tell() = %d, %+v, want 6 and %+v", asked, unused, want)
	}
	for _, w := range b.waiters {
		if !w.gone {
			<-w.done
		}
	}
}

// In the record of one process calls of plain requests, of costs and of several batches follow each
// other: each that is sent again gets what it got, and the next one rolls back what it spent, not
// the budget that it was cut from, whatever the room has become meanwhile.
func TestRecordsOfCostsAndOfPlainRequestsFollowEachOther(t *testing.T) {
	v := newVirtual(t)
	for name, rule := range kinds {
		v.use(name, rule)
		m := mixedCalls{virtual: v, zones: [2]string{name}}
		plain, costs := like([]Rule{rule}, run{7, 1}), like([]Rule{rule}, run{1, 60}, run{1, 70}, run{2, 3}, run{1, 0})
		for i, batches := range [][]batch{{plain}, {costs}, {plain}, {plain, costs}, {costs, costs}, {costs}, {plain, plain}} {
			spent := int64(0)
			seq, got := m.ask(name, 0, true, batches...)
			for _, o := range got {
				spent += o.granted
			}
			if before := held(t, v.Limiter, name, id(1), rule); before != spent {
				t.Errorf("%s, call %d: %d are spent, want %d", name, i, before, spent)
			}
			m.ask(name, seq, false)
			if left := held(t, v.Limiter, name, id(1), rule); left != 0 {
				t.Errorf("%s, call %d: %d are left of %d that were rolled back", name, i, left, spent)
			}
		}
	}
}

// A replay that sees another room: a call that comes twice gets the same budget, though others have
// spent it meanwhile, and every request hears the same. A request is admitted by what those before
// it have left of the budget, not by its number, as costs differ, and a large one denies nobody.
func TestAReplayThatSeesAnotherRoomAdmitsTheSame(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, rule := range kinds {
		a, b := limiter(t, server.URL), limiter(t, server.URL)
		asked := like([]Rule{rule}, run{1, 60}, run{1, 70}, run{2, 10}, run{1, 30}, run{1, 0})
		rs, err := a.ruleset(name, asked.rules)
		if err != nil {
			t.Fatal(err)
		}
		c := call{id: id(1), seq: a.seq.Add(1), rules: asked.rules, batches: []batch{asked}}
		first, err := a.call(rs, rs.keysOf(c.id), c)
		if err != nil {
			t.Fatal(err)
		}
		if g, _ := pay(t, b, name, id(1), 20, rule); !g.Admitted() {
			t.Fatalf("%s: 80 of 100 are spent, and 20 are denied", name)
		}
		again, err := a.call(rs, rs.keysOf(c.id), c)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := placesOf(asked, again[0]), placesOf(asked, first[0]); !slices.Equal(got, want) || first[0].granted != 80 {
			t.Errorf("%s: %+v, want %+v of 80", name, got, want)
		}
		for n, at := range placesOf(asked, again[0]) {
			if said := verdicts(asked.rules, again[0], at, nil)[0].Decision; said.Allowed != at.admitted {
				t.Errorf("%s, request %d: admitted %t, and the limit says %+v", name, n, at.admitted, said)
			}
		}
		if n := held(t, a, name, id(1), rule); n != 100 {
			t.Errorf("%s: %d are spent, want 100", name, n)
		}
	}
}

// What costs nothing is admitted, however the limit stands, in debt or spent exactly, and Redis
// writes nothing for it.
func TestWhatCostsNothingIsAdmittedAndWritesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	for name, rule := range kinds {
		if g, all := pay(t, s, name, id(1), 0, rule); !g.Admitted() || all[0].Decision.Remaining != 100 || len(dump(t, server, name)) != 0 {
			t.Errorf("%s: a first look is admitted %t, with %+v; Redis has %v", name, g.Admitted(), all[0].Decision, dump(t, server, name))
		}
		spent, _ := pay(t, s, name, id(1), 100, rule)
		for _, stands := range []string{"at the limit", "in debt"} {
			if stands == "in debt" {
				(&settling{by: s, grant: spent, n: 100, cost: 150}).settle()
				redistest.Eventually(t, "the charge has arrived", s.isIdle)
			}
			before := dump(t, server, name)
			g, all := pay(t, s, name, id(1), 0, rule)
			if d := all[0].Decision; !g.Admitted() || !d.Allowed || d.Retry != 0 || d.Delay != 0 || d.Remaining != 0 {
				t.Errorf("%s: %s %+v", name, stands, d)
			}
			s.Refund(g, nil)
			if after := dump(t, server, name); !reflect.DeepEqual(before, after) {
				t.Errorf("%s, %s: what costs nothing changes %v into %v", name, stands, before, after)
			}
		}
		server.Do("FLUSHALL")
	}
}

// What bounds requests must bound units: one call of a log grants 1,024 units at most, which are a
// member each, and asks for 256 runs. A want beyond 2^53, which doubles don't count to, is granted
// what there is.
func TestACallIsBoundedInUnitsAndRuns(t *testing.T) {
	t.Parallel()
	narrow := []Rule{{Kind: algorithms.TokenBucket, Limit: 600, Window: long}}
	q := new(queue)
	for n := range int64(300) {
		q.waiters = append(q.waiters, like(narrow, run{2, 1 + n%2}).waiters...)
	}
	if now, later := q.split(); len(now[0].runs) != maxRuns || len(later) != 600-2*maxRuns {
		t.Errorf("%d runs are asked for, and %d requests wait, want %d and %d", len(now[0].runs), len(later), maxRuns, 600-2*maxRuns)
	}
	if n := wantedBy([]run{{1 << 20, 1 << 40}, {1 << 20, 1 << 40}, {1, math.MaxInt64}}); n != exact {
		t.Errorf("a want beyond 2^53 is %d", n)
	}
	s := limiter(t, redistest.Start(t).URL)
	rule := Rule{Kind: algorithms.TokenBucket, Limit: 1 << 60, Window: long}
	m := mixedCalls{virtual: &virtual{Limiter: s, t: t}, zones: [2]string{"beyond"}}
	if _, err := s.ruleset("beyond", []Rule{rule}); err != nil {
		t.Fatal(err)
	}
	_, got := m.ask("beyond", 0, true, like([]Rule{rule}, run{3 << 13, 1 << 40}))
	if got[0].granted != 1<<53-1<<40 {
		t.Errorf("%d units are granted of a want beyond 2^53, want %d", got[0].granted, int64(1)<<53-1<<40)
	}
}

// A denial still holds for what costs as much or more only.
// What costs less asks Redis, and so does what costs nothing.
func TestAMemoryGoesByCost(t *testing.T) {
	for _, kind := range allKinds {
		remember(t, func(t *testing.T, n *remembering) {
			rule := perWindow(kind, 10, time.Hour)
			if kind.Traits().Queues {
				rule.Queue = 9
			}
			take := func(cost int64) bool {
				_, g, err := n.Take(t.Context(), memorized, []Rule{rule}, id(1), cost, nil)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // who asked is answered first, and then it is remembered
				return g.Admitted()
			}
			recalls := func(cost int64) bool {
				all, ok := n.memory.Recall([]Rule{rule}, id(1), cost, clock.Now(), nil)
				if ok && (all[0].Decision.Allowed || all[0].Decision.Retry <= 0) {
					t.Errorf("%s: what costs %d is told %+v", kind, cost, all[0].Decision)
				}
				return ok
			}
			if !take(6) || take(5) {
				t.Fatalf("%s: 6 of 10 and then 5 are not admitted and denied", kind)
			}
			for cost, want := range map[int64]bool{0: false, 1: false, 4: false, 5: true, 6: true, 10: true} {
				if got := recalls(cost); got != want {
					t.Errorf("%s: what costs %d is denied without a call: %t, want %t", kind, cost, got, want)
				}
			}
			if !take(4) || !take(0) || take(1) {
				t.Errorf("%s: what the memory doesn't deny is not what Redis says", kind)
			}
			if !recalls(1) || recalls(0) {
				t.Errorf("%s: the smaller denial is not remembered, or one of nothing is", kind)
			}
		})
	}
}

// Where each request costs one unit, a call is what it was before there were costs: the same
// arguments, and the same record.
func TestACallOfUnitsIsAsBeforeCosts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, rule := range kinds {
		s := limiter(t, server.URL)
		rs, err := s.ruleset(name, []Rule{rule})
		if err != nil {
			t.Fatal(err)
		}
		q := &queue{waiters: like([]Rule{rule}, run{101, 1}).waiters}
		c := call{id: id(1), seq: 7, rules: []Rule{rule}}
		c.batches, _ = q.split()
		if got, want := s.args(rs, c)[:7], []any{rs.field, int64(7), int64(101), int64(0), resetInLua(0, reset.Reset{}), (time.Minute + 2*patience).Milliseconds(), 0}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the arguments begin with %#v, want %#v", name, got, want)
		}
		got, err := s.call(rs, rs.keysOf(c.id), c)
		if err != nil {
			t.Fatal(err)
		}
		record := server.Do("HGET", ratesync.NewKeyspace("test").Zone(name, "strict").Of(id(1)), rs.field)
		if want := fmt.Sprintf("7 100 %d", got[0].at); record != want || got[0].granted != 100 {
			t.Errorf("%s: the record is %q, want %q, of 100 granted: %d", name, record, want, got[0].granted)
		}
	}
}
