// no clock: the script gets each instant from the test.

package cell

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// began is the beginning of an hour.
const began = int64(1_795_000_000_000_000) - 1_795_000_000_000_000%3_600_000_000

const second = int64(1_000_000)

var (
	fixed   = Rule{Kind: Windows, Window: time.Minute, Parts: 1, Kept: 1, Size: 100, TTL: time.Minute}
	sliding = Rule{Kind: Fades, Window: time.Minute, Parts: 1, Kept: 2, Size: 100, TTL: 2 * time.Minute}
	logs    = Rule{Kind: Windows, Window: time.Minute, Parts: 16, Kept: 17, Size: 100, TTL: time.Minute}
	tokens  = Rule{Kind: Bucket, Window: time.Minute, Parts: 1, Decided: true, Size: 100, Rate: 100, TTL: time.Minute}
)

// between wants a number in a range.
func between(t *testing.T, what string, x, least, most float64) {
	t.Helper()
	if x < least || x > most {
		t.Errorf("%s: %.3f, want %.3f to %.3f", what, x, least, most)
	}
}

// onBoth runs a test on the stand-in and on a real server, both at the instants that it says.
func onBoth(t *testing.T, f func(t *testing.T, on runner)) {
	t.Run("stand-in", func(t *testing.T) { f(t, newVirtual(t)) })
	t.Run("server", func(t *testing.T) { f(t, newReal(t)) })
}

// A bucket that was swept, and comes back with little, takes nothing from the others.
func TestASweptBucketErasesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", tokens, began), newNode(t, on, "b", tokens, began)
		a.spend(began, 100)
		a.sync("k", began, 0)
		now := began + 61*second
		b.spend(now, 100)
		b.sync("k", now, 0)
		again := newNode(t, on, "a", tokens, now+second)
		again.seq = a.seq
		again.spend(now+second, 1)
		again.sync("k", now+second, 0)
		between(t, "the level", a.counts("k", now+second), 99.3, 99.4)
	})
}

// A node that was alone for an hour brings what stands in its bucket, and not all that it has
// spent. The same holds for a Redis that has nothing.
func TestAnOutageOfAnHour(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a := newNode(t, on, "a", tokens, began)
		a.spend(began, 1)
		a.sync("k", began, 0)
		for k := range 2 * 3600 * second / (second / 2) / 2 {
			a.take(began + k*second/2) // 120 a minute, 100 of which get it
		}
		now := began + 3600*second
		a.sync("k", now, 0)
		between(t, "after an hour alone", a.counts("k", now), 97, 100)
		on.do("FLUSHALL")
		a.got = 0
		a.sync("k", now+30*second, 0)
		between(t, "in another Redis", a.counts("k", now+30*second), 47, 51)
	})
}

// A reset holds whoever speaks first: a node that has not heard of it writes nothing back.
func TestAResetHoldsWhoeverSpeaksFirst(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", tokens, began), newNode(t, on, "b", tokens, began)
		a.spend(began, 45)
		a.sync("bucket", began, 0)
		b.spend(began, 45)
		b.sync("bucket", began+1000, 0)
		a.reset(7, began+2000)
		a.sync("bucket", began+2000, 0)
		b.spend(began+500_000, 1)
		b.sync("bucket", began+500_000, 0) // which tells it of the reset
		between(t, "after a reset", a.counts("bucket", began+500_000), 0, 0)
		b.spend(began+second, 1)
		b.sync("bucket", began+second, 0)
		between(t, "what came since", a.counts("bucket", began+second), 1, 1)

		a, b = newNode(t, on, "a", fixed, began), newNode(t, on, "b", fixed, began)
		a.sync("window", began+second, 60)
		b.sync("window", began+second, 40)
		b.reset(9, began+2*second)
		granted := b.sync("window", began+2*second, 70)
		granted += a.sync("window", began+3*second, 70)
		granted += a.sync("window", began+3*second, 70)
		between(t, "granted after a reset", float64(granted), 100, 100)
	})
}

// Of two nodes that say again what a bucket had, the second adds only what it alone knows.
func TestTwoSayAgainWhatABucketHad(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", tokens, began), newNode(t, on, "b", tokens, began)
		a.total, a.got, a.whole = 10, 10, 90 // of which b has spent 80
		b.total, b.got, b.whole = 80, 80, 90
		a.sync("k", began+100_000, 0)
		b.sync("k", began+200_000, 0)
		between(t, "the level", a.counts("k", began+200_000), 89, 90)
	})
}

// A grant that nobody heard of is taken back as far as it still stands.
func TestAGrantThatNobodyHeardOf(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", tokens, began), newNode(t, on, "b", tokens, began)
		lost := a.call("late", began, 100)
		a.send(&lost, began)
		now := began + 60*second
		if granted := b.sync("late", now, 100); granted != 100 {
			t.Errorf("b gets %d", granted)
		}
		between(t, "a gets", float64(a.sync("late", now+second, 100)), 1, 2)

		a = newNode(t, on, "a", tokens, began)
		lost = a.call("soon", began, 40)
		a.send(&lost, began)
		a.spend(began+second, 5)
		a.sync("soon", began+2*second, 0)
		between(t, "what it decided alone", a.counts("soon", began+2*second), 3.3, 5)

		for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}} {
			key := fmt.Sprint("several", order)
			all := []*node{newNode(t, on, "a", tokens, began), newNode(t, on, "b", tokens, began), newNode(t, on, "c", tokens, began)}
			for i, n := range all {
				lost = n.call(key, began+int64(i)*1000, int64(10*(i+1)))
				n.send(&lost, began+int64(i)*1000)
			}
			d := newNode(t, on, "d", tokens, began)
			granted := d.sync(key, began+4000, 40)
			for _, i := range order {
				all[i].sync(key, began+10_000, 0)
			}
			granted += d.sync(key, began+10_000, 100)
			between(t, key, float64(granted), 100, 100)
		}

		for _, f := range []Rule{fixed, sliding, logs} {
			key := fmt.Sprint("windows", f.Kind, f.Parts)
			a, b = newNode(t, on, "a", f, began), newNode(t, on, "b", f, began)
			lost = a.call(key, began, 60)
			a.send(&lost, began)
			granted := a.sync(key, began+second, 100) + b.sync(key, began+second, 100)
			between(t, key, float64(granted), 100, 100)
		}
	})
}

// A cell stays until nothing in it counts any more.
func TestACellStaysAsLongAsItCounts(t *testing.T) {
	day := began - began%(86400*second)
	for name, x := range map[string]struct {
		f         Rule
		last      int64 // when the last units are spent, after the first
		first     int64
		units     int64
		countsFor int64
	}{
		"log":     {Rule{Kind: Windows, Window: time.Hour, Parts: 16, Kept: 17, Size: 20, TTL: 3825 * time.Second}, 1800, 1, 19, 5400},
		"sliding": {Rule{Kind: Fades, Window: 24 * time.Hour, Parts: 1, Kept: 2, Size: 20, TTL: 48 * time.Hour}, 80000, 1, 19, 172800},
		"bucket":  {Rule{Kind: Bucket, Window: time.Hour, Parts: 1, Decided: true, Size: 100, Rate: 100, TTL: time.Hour}, 10, 1, 99, 3600},
	} {
		a := newNode(t, newVirtual(t), "a", x.f, day)
		a.spend(day, x.first)
		a.sync("k", day, 0)
		at := day + x.last*second
		a.spend(at, x.units)
		a.sync("k", at, 0)
		if end := a.sum("k", at).End * 1000; end < day+x.countsFor*second {
			t.Errorf("%s ends %d s too early", name, (day+x.countsFor*second-end)/second)
		}
		if c := a.counts("k", day+(x.countsFor-1)*second); name != "bucket" && c == 0 {
			t.Errorf("%s is gone while it counts", name)
		}
	}
}

// What a node counts that is a little ahead at the end of a window is lost neither here nor there.
func TestANodeAheadAtABoundary(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		end := (fixed.Epoch(began) + 1) * 60 * second
		a, b := newNode(t, on, "a", fixed, began), newNode(t, on, "b", fixed, began)
		a.spend(end-2*second, 70)
		a.sync("k", end-2*second, 0)
		a.spend(end+1000, 30)
		ahead := a.call("k", end+1000, 0) // which comes before the end
		a.hear(&ahead, a.send(&ahead, end-1000))
		between(t, "just before the end", float64(b.sync("k", end-500, 100)), 30, 30)
		b.own = map[int64]int64{}
		b.spend(end+2000, 10)
		b.sync("k", end+2000, 0)
		a.sync("k", end+second, 0)
		between(t, "in the new window", a.counts("k", end+second), 40, 40)
	})
}

// What makes no sense in a cell is added up again.
func TestNonsenseInACell(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", fixed, began), newNode(t, on, "b", fixed, began)
		a.spend(began, 30)
		b.spend(began, 20)
		a.sync("k", began, 0)
		b.sync("k", began, 0)
		for _, own := range []string{"nonsense", "x", "1 2", "1 99999999999999999999 1", "-1 -2 -3"} {
			on.do("HSET", "k", "a", own)
			a.sync("k", began+1, 0)
			between(t, "the field "+own, a.counts("k", began+1), 50, 50)
		}
		on.do("HDEL", "k", "sum")
		a.sync("k", began+1, 0)
		between(t, "no sum", a.counts("k", began+1), 50, 50)
		for _, sum := range []string{
			"nonsense", "3", "0 0", "3 0", "", "-5 3", "nan nan", "99999999999999999999 3", "1e300 1", "7 8 nan inf", "-5 0 1 2 3",
			"7 0 1795000000000 9999999999 0", fmt.Sprint("5 0 1795000000000 ", fixed.Epoch(began), " 0"),
		} {
			on.do("HSET", "k", "sum", sum)
			b.sync("k", began+2, 0)
			between(t, "the sum "+sum, a.counts("k", began+2), 50, 50)
		}
		on.do("HSET", "k", "a", fmt.Sprint(began+366*86400*second, " 99 ", fixed.Epoch(began), " 0"))
		a.spend(began+3, 1)
		a.sync("k", began+3, 0)
		between(t, "a field of next year", a.counts("k", began+3), 51, 51)
	})
}

// A failover to a copy that is behind is noticed, and put right.
func TestACopyThatIsBehind(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a, b := newNode(t, on, "a", fixed, began), newNode(t, on, "b", fixed, began)
		a.spend(began, 50)
		a.sync("k", began, 0)
		fields, _ := on.do("HGETALL", "k").([]any)
		if pairs, ok := on.do("HGETALL", "k").(map[any]any); ok {
			for name, value := range pairs {
				fields = append(fields, name, value)
			}
		}
		a.spend(began+second, 20)
		a.sync("k", began+second, 0)
		on.do(append([]any{"HSET", "k"}, fields...)...)
		b.sync("k", began+1_500_000, 1)
		a.sync("k", began+2*second, 0)
		between(t, "the sum", a.counts("k", began+2*second), 71, 71)
		if a.kept == 0 {
			t.Error("a has not noticed")
		}
	})
}

// A step back of Redis' clock frees nobody and locks nobody out for longer than a window.
func TestRedisClockStepsBack(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		for i, back := range []int64{30 * second, 120 * second} {
			key := fmt.Sprint("back", i)
			c := newNode(t, on, "c", logs, began)
			c.spend(began+20*second, 7)
			c.sync(key, began+20*second, 0) // and then it ends
			a, b := newNode(t, on, "a", logs, began), newNode(t, on, "b", logs, began)
			for k := range int64(5) {
				a.spend(began+k*4*second, 10)
				b.spend(began+k*4*second, 5)
			}
			a.sync(key, began+20*second, 0)
			b.sync(key, began+20*second, 0)
			now := began + 20*second - back
			d := newNode(t, on, "d", logs, began) // it has not heard of it, and then ends as well
			d.spend(began+20*second, 3)
			unheard := d.call(key, began+20*second, 0)
			d.send(&unheard, now)
			asks := d.call(key, began+20*second, 100)
			between(t, key+" gets", float64(d.send(&asks, now).Grants[0]), 15, 15)
			again := d.call(key, began+20*second, 0)
			d.send(&again, now)
			between(t, key+" at first", a.counts(key, now), 85, 85)
			for _, n := range []*node{a, b} {
				n.fold(now)
				n.sync(key, now, 0)
				n.sync(key, now+second, 0)
			}
			between(t, key, a.counts(key, now+second), 85, 85)
			now += logs.Window.Microseconds() * 17 / 16
			a.sync(key, now, 0)
			between(t, key+" a window later", a.counts(key, now), 0, 0)
			if now = began + 20*second; back > 60*second {
				on.do("HSET", key, "sum", "nonsense")
				a.spend(now, 1)
				a.sync(key, now, 0)
				between(t, key+" when its time comes again", a.counts(key, now), 1, 1)
			}
		}
	})
}

// Whoever asks first after a step back gets no more than was left, even where nothing of it has
// changed.
func TestTheFirstCallAfterAStepBack(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a := newNode(t, on, "a", logs, began)
		a.sync("k", began, 80)
		asks := a.call("k", began, 100)
		between(t, "it gets", float64(a.send(&asks, began-120*second).Grants[0]), 20, 20)
	})
}

// fold takes what lies ahead for now's.
func (n *node) fold(now int64) {
	e, to := n.f.Epoch(now), map[int64]int64{}
	for k, units := range n.own {
		to[min(e, k)] += units
	}
	n.own, n.acked, n.others = to, map[int64]int64{}, map[int64]int64{}
}

// However much a response says that it has cost, its key waits for a window beyond a full bucket.
func TestAHugeCostIsBounded(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a := newNode(t, on, "a", tokens, began)
		a.spend(began, 1<<40)
		a.sync("k", began, 0)
		between(t, "the level", a.counts("k", began), 200, 200)
	})
}

// A bucket drains at the rate of who asked for something last. At an interval a node that denies
// does not lower it.
func TestTwoRatesOfOneBucket(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		fast, slow := tokens, tokens
		fast.Size, fast.Rate, slow.Size, slow.Rate = 1000, 1000, 10, 10
		a, b := newNode(t, on, "a", fast, began), newNode(t, on, "b", slow, began)
		a.sync("k", began, 500)
		b.sync("k", began, 0)
		if rate := a.sum("k", began).Rate; rate != 1000 {
			t.Errorf("it drains at %d after who asked for nothing", rate)
		}
		b.sync("k", began, 1)
		if rate := a.sum("k", began).Rate; rate != 10 {
			t.Errorf("it drains at %d after a strict request with 10", rate)
		}
	})
}

// A message that comes late, behind one that was sent later, changes nothing. In another window it
// gets what is free there.
func TestALateCall(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		a := newNode(t, on, "a", fixed, began)
		a.spend(began, 30)
		late := a.call("k", began, 5)
		a.spend(began+second, 10)
		a.sync("k", began+second, 0)
		if x := a.send(&late, began+2*second); x.Status != "old" {
			t.Errorf("it got %v", x.Grants)
		}
		between(t, "the sum", a.counts("k", began+2*second), 40, 40)
		late = a.call("k", began+3*second, 5)
		if x := a.send(&late, began+200*second); x.Grants[0] != 5 {
			t.Errorf("in another window it got %v (%q)", x.Grants, x.Status)
		}
		between(t, "the sum of another window", a.counts("k", began+200*second), 5, 5)
		call := a.call("k", began+201*second, 1)
		call.Cells = append(call.Cells, Update{"k2", sliding.String(), call.Cells[0].Node, State{Epoch: sliding.Epoch(began)}})
		call.Asks[0].Limits = append(call.Asks[0].Limits, Limit{Size: 100})
		a.sync("k", began+201*second, 0)
		if x := a.send(&call, began+201*second); x.Status != "old" {
			t.Errorf("with one cell that has heard more it got %v", x.Grants)
		}
	})
}

// Nodes that are long gone don't fill a cell: it is looked through as it doubles, not at each
// message.
func TestACellOfManyNodes(t *testing.T) {
	on := newVirtual(t)
	hour := Rule{Kind: Fades, Window: time.Hour, Parts: 1, Kept: 2, Size: 1e6, TTL: 2 * time.Hour}
	var last *node
	now := began
	for deploy := range int64(redistest.Times(15, 30)) { // ten a day of 50 nodes
		now = began + deploy*8640*second
		for k := range 50 {
			last = newNode(t, on, fmt.Sprint("n", deploy, ".", k), hour, began)
			last.spend(now, 1)
			last.sync("k", now, 0)
			last.spend(now, 1)
			last.sync("k", now+second, 0)
		}
	}
	if fields := on.do("HLEN", "k").(int64); fields > 300 {
		t.Errorf("%d fields", fields)
	}
	between(t, "what counts", last.counts("k", now+second), 100, 100)
}

// A sum has no more epochs than count, however long a key is asked for.
func TestASumStaysShort(t *testing.T) {
	on := newVirtual(t)
	young, old := newNode(t, on, "young", logs, began), newNode(t, on, "old", logs, began)
	for i := range int64(200) {
		now := began + i*4*second
		if i%20 == 0 {
			young = newNode(t, on, fmt.Sprint("young", i), logs, began)
		}
		young.spend(now, 1)
		young.sync("k", now, 0)
		old.spend(now, 1)
		old.sync("k", now+second/2, 0)
		if n := len(old.sum("k", now+second/2).Totals); n > logs.Kept+1 {
			t.Fatalf("%d epochs", n)
		}
	}
}

// What another region has is said by a node of its name, and is apart from what the nodes here
// have.
func TestARegion(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		for _, f := range []Rule{fixed, sliding, logs, tokens} {
			on.do("FLUSHALL")
			a, eu, us := newNode(t, on, "a", f, began), newNode(t, on, "~eu", f, began), newNode(t, on, "~us", f, began)
			a.told, a.least = "told", 10
			a.spend(began, 5)
			a.sync("k", began, 0)
			if n := on.do("ZCOUNT", "told", "-inf", "+inf").(int64); n != 0 {
				t.Errorf("%c: %d cells are told of below the threshold", f.Kind, n)
			}
			for i, n := range []*node{eu, us, eu, us} {
				now := began + int64(i)*1000
				n.spend(now, 20)
				n.sync("k", now, 0)
			}
			now := began + 5000
			a.spend(now, 5)
			a.sync("k", now, 0)
			if f.Kind == Bucket {
				between(t, "of the regions", float64(first(on, "k", "~", 3)), 80, 80)
			} else {
				between(t, "of the regions", float64(first(on, "k", "~", 0)), 80, 80)
			}
			between(t, "of all", a.counts("k", now), 89, 90)
			if n := on.do("ZCOUNT", "told", "-inf", "+inf").(int64); n != 1 {
				t.Errorf("%c: %d cells are told of", f.Kind, n)
			}
			if left := on.do("PTTL", "told").(int64); left <= 0 {
				t.Errorf("%c: the list of cells that are told of ends in %d ms", f.Kind, left)
			}
			if f.Kind != Bucket {
				on.do("HDEL", "k", "~")
				eu.spend(now+1000, 1)
				eu.sync("k", now+1000, 0)
				between(t, "of the regions once ~ was lost", float64(first(on, "k", "~", 0)), 81, 81)
			}
		}
	})
}

// first is a number of a field.
func first(on runner, key, field string, i int) int64 {
	text, _ := on.do("HGET", key, field).(string)
	if all, ok := numbers(text, nil); ok && len(all) > i {
		return all[i]
	}
	return -1
}

// Nodes that sync in the same instants deny nobody below a limit.
func TestNodesInStep(t *testing.T) {
	f := Rule{Kind: Bucket, Window: time.Second, Parts: 1, Decided: true, Size: 10, Rate: 100, TTL: time.Second}
	for _, burst := range []int64{10, 100} {
		for _, many := range []int{1, 2, 6, 10} {
			on := newVirtual(t)
			f.Size = burst
			var nodes []*node
			for i := range many {
				nodes = append(nodes, newNode(t, on, fmt.Sprint("n", i), f, began))
			}
			denied, all := 0, 0
			for ms := range int64(10_000) {
				now := began + ms*1000
				if ms%11 == 0 { // 91 a second
					if all++; !nodes[all%many].take(now) {
						denied++
					}
				}
				if ms%1000 == 999 {
					for i, n := range nodes {
						n.sync("k", now+int64(i)*100, 0)
					}
				}
			}
			between(t, fmt.Sprintf("denied of 100, burst %d, %d nodes", burst, many), 100*float64(denied)/float64(all), 0, 1)
		}
	}
}

// A Redis that forgets a spent limit under a flood admits nobody more.
func TestAFloodWhileRedisForgets(t *testing.T) {
	for _, many := range []int{2, 3, 10} {
		for _, f := range []Rule{fixed, logs} {
			on := newVirtual(t)
			var nodes []*node
			for i := range many {
				nodes = append(nodes, newNode(t, on, fmt.Sprint("n", i), f, began))
			}
			admitted, before := 0, 0
			for ms := range int64(20_000) {
				now := began + 5*second + ms*1000
				if ms == 10_000 {
					on.do("FLUSHALL")
					before = admitted
				}
				if nodes[ms%int64(many)].take(now) {
					admitted++
				}
				for i, n := range nodes {
					if (ms+int64(i)*1000/int64(many))%1000 == 999 {
						n.sync("k", now, 0)
					}
				}
			}
			if admitted != before {
				t.Errorf("%d nodes, %d parts: %d more after it forgot", many, f.Parts, admitted-before)
			}
		}
	}
}

// Whatever calls and answers are lost, late or overtaken: a strict limit is never exceeded, and at
// the end a cell has what clients got.
func TestRandomSchedulesInStrict(t *testing.T) {
	onBoth(t, func(t *testing.T, on runner) {
		for seed := range redistest.Seeds(40, 3000) {
			if strictSchedule(t, on, seed); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}

// A grant is what clients got at an instant.
type grant struct{ at, n int64 }

func strictSchedule(t *testing.T, on runner, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	on.do("FLUSHALL")
	f := []Rule{fixed, sliding, logs, tokens, {Kind: Fades, Window: time.Minute, Parts: 7, Kept: 8, TTL: 2 * time.Minute}}[seed%5]
	f.Size = 5 + r.Int64N(30)
	if f.Kind == Bucket {
		f.Rate = f.Size
	}
	now := began + r.Int64N(60*second)
	start := now
	var nodes []*node
	for i := range 3 + r.IntN(3) {
		nodes = append(nodes, newNode(t, on, fmt.Sprint("n", i), f, now))
	}
	var underWay []func(at int64)
	var got []grant
	for range 120 {
		now += r.Int64N(4 * second)
		if len(underWay) > 0 && r.IntN(3) == 0 { // it comes late, and nobody waits for its answer
			k := r.IntN(len(underWay))
			underWay[k](now)
			underWay = slices.Delete(underWay, k, k+1)
			continue
		}
		n, ask := nodes[r.IntN(len(nodes))], 1+r.Int64N(6)
		switch r.IntN(6) {
		case 0:
			c := n.call("k", now, ask)
			n.send(&c, now)
		case 1:
			c := n.call("k", now, ask)
			underWay = append(underWay, func(at int64) { n.send(&c, at) })
		default:
			if units := n.sync("k", now, ask); units > 0 {
				got = append(got, grant{now, units})
			}
		}
	}
	for _, n := range nodes {
		n.sync("k", now, 0)
	}
	checkSum(t, nodes[0], got, now)
	checkLimit(t, f, got, start)
}

// checkSum holds what a cell has to what clients got.
func checkSum(t *testing.T, n *node, got []grant, now int64) {
	sum, want := n.sum("k", now), map[int64]int64{}
	for _, g := range got {
		if n.f.Kind == Bucket {
			want[0] += g.n
		} else {
			want[n.f.Epoch(g.at)] += g.n
		}
	}
	if n.f.Kind == Bucket {
		if sum.Total != want[0] {
			t.Errorf("the sum is %d, clients got %d", sum.Total, want[0])
		}
		return
	}
	have, e := byEpoch(sum.Epoch, sum.Totals), n.f.Epoch(now)
	for k := e - int64(n.f.Kept) + 1; k <= e+1; k++ {
		if have[k] != want[k] {
			t.Errorf("epoch %d: the sum is %d, clients got %d", k, have[k], want[k])
		}
	}
}

// checkLimit holds what clients got to what one counter would have given.
func checkLimit(t *testing.T, f Rule, got []grant, start int64) {
	m := newModel(0)
	m.at, m.flows = start, f.Rate
	m.fields["all"] = modelField{totals: map[int64]int64{}}
	for _, g := range got {
		if f.Kind == Bucket {
			m.level.Sub(m.level, times(m.flows, g.at-m.at))
			if m.level.Sign() < 0 {
				m.level.SetInt64(0)
			}
			m.at = g.at
		}
		m.grant(f, "all", g.n, g.at)
		if room := m.room(f, Limit{Size: f.Size, Rate: f.Rate}, g.at); room < 0 {
			t.Errorf("%d above %d", -room, f.Size)
			return
		}
	}
}
