package ban

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

var a, b = ID{1}, ID{2}

const start = int64(1_700_000_000_000_000_000)

func anyBan(rt *rapid.T, name string) Ban {
	return Ban{rapid.Int64Range(0, 5).Draw(rt, name+" began"), time.Duration(rapid.Int64Range(0, 5).Draw(rt, name+" length"))}
}

// Two nodes that have heard the same of a key hold the same, in whatever order and however often.
func TestBansMergeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x, y, z := anyBan(rt, "x"), anyBan(rt, "y"), anyBan(rt, "z")
		if Later(x, y) != Later(y, x) {
			rt.Errorf("%v and %v don't commute", x, y)
		}
		if Later(x, Later(y, z)) != Later(Later(x, y), z) {
			rt.Errorf("%v, %v and %v don't associate", x, y, z)
		}
		if Later(x, x) != x {
			rt.Errorf("%v twice is %v", x, Later(x, x))
		}
	})
}

func register(maxKeys int) *Register {
	r := new(Register)
	r.Configure(maxKeys, 0)
	return r
}

// A ban holds until its last nanosecond and no longer, and nothing prolongs it.
func TestABanLastsFromItsBeginning(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := register(10)
		length := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(rt, "length"))
		if r.Begin(a, start, length) != length {
			rt.Fatal("it does not begin")
		}
		during := start + rapid.Int64Range(0, int64(length)-1).Draw(rt, "during")
		if r.Begin(a, during, length) > 0 {
			rt.Error("it begins again while it lasts")
		}
		for at, want := range map[int64]time.Duration{
			start: length, start + int64(length) - 1: 1, start + int64(length): 0, start + 2*int64(length): 0,
			start - int64(time.Hour): length,
		} {
			if got := r.Rest(a, at); got != want {
				rt.Errorf("%v of %v after its beginning: %v is left, want %v", time.Duration(at-start), length, got, want)
			}
		}
		if r.Rest(b, start) != 0 {
			rt.Error("another key is banned")
		}
		if r.Begin(a, start+int64(length), length) != length {
			rt.Error("it does not begin again when it is over")
		}
	})
}

// Where bans grow, one within the memory of the last one's end lasts twice as long, up to the
// memory. A later one lasts as long as the first.
func TestBansGrow(t *testing.T) {
	const length, memory = 15 * time.Minute, 100 * time.Minute
	r, now := register(10), start
	r.Configure(10, memory)
	for i, want := range []time.Duration{length, 2 * length, 4 * length, memory, memory} {
		if would := r.WouldBegin(a, now, length); would != want {
			t.Errorf("ban %d would last %v, want %v", i, would, want)
		}
		if got := r.Begin(a, now, length); got != want || r.Rest(a, now) != want {
			t.Errorf("ban %d lasts %v, and %v are left, want %v", i, got, r.Rest(a, now), want)
		}
		if again := r.Begin(a, now, length); again != 0 {
			t.Errorf("ban %d begins again while it lasts, for %v", i, again)
		}
		now += int64(want + memory - 1)
		if r.Sweep(now); r.Rest(a, now) != 0 || r.Count(now) != 0 {
			t.Errorf("ban %d has no end", i)
		}
	}
	if got := r.Begin(a, now+1, length); got != length {
		t.Errorf("after the memory of the last one's end a ban lasts %v, want %v", got, length)
	}
	if got := r.Begin(b, now, 2*memory); got != 2*memory {
		t.Errorf("a ban that is longer than the memory lasts %v, want %v", got, 2*memory)
	}
}

// A node that hears of a ban after its end lets the next one grow: from the store, from what was
// saved, and where the store has forgotten.
func TestAnEndedBanIsKnownOnOtherNodes(t *testing.T) {
	const length, memory = 15 * time.Minute, time.Hour
	w := newWorld(3)
	for _, r := range w.nodes {
		r.Configure(100, memory)
	}
	w.nodes[0].Begin(a, w.now, length)
	w.sync(0)
	w.pass(length + time.Minute)
	w.sync(1)
	if got := w.nodes[1].WouldBegin(a, w.now, length); got != 2*length {
		t.Errorf("by the store the next ban would last %v, want %v", got, 2*length)
	}
	w.store.bans = map[ID]State{}
	w.nodes[0].Resend()
	w.sync(0)
	w.sync(2)
	if got := w.nodes[2].WouldBegin(a, w.now, length); got != 2*length {
		t.Errorf("after a loss the next ban would last %v, want %v", got, 2*length)
	}
	later := register(100)
	later.Configure(100, memory)
	later.Resume(w.now, w.nodes[1].Save(w.now))
	if got := later.WouldBegin(a, w.now, length); got != 2*length {
		t.Errorf("by what was saved the next ban would last %v, want %v", got, 2*length)
	}
	set := &reset.Set{Keys: map[ID]reset.Reset{a: {Stamp: w.now / 1000, At: w.now, Until: w.now + int64(2*time.Hour)}}}
	later.Reset(w.now, set)
	if got := later.WouldBegin(a, w.now, length); got != length {
		t.Errorf("after a reset the next ban would last %v, want %v", got, length)
	}
}

// A ban of which the store has another memory, as after a reload, is known there: it is not sent
// again and again.
func TestAMemoryThatHasChanged(t *testing.T) {
	w := newWorld(1)
	r := w.nodes[0]
	r.Configure(100, time.Hour)
	r.Begin(a, w.now, 15*time.Minute)
	w.sync(0)
	r.Configure(100, 2*time.Hour)
	r.Resend()
	w.store.now++ // its clock is a microsecond ahead of what was measured
	if w.sync(0); r.HasUnsent() {
		t.Error("the ban is to be sent once more")
	}
}

// A full register bans nobody else, and takes in others when bans are over, swept or not.
func TestAFullRegister(t *testing.T) {
	const most = 1000
	r := register(most)
	began := 0
	for i := range 10 * most {
		id := ID{byte(i), byte(i >> 8)}
		would := r.WouldBegin(id, start, time.Minute)
		begins := r.Begin(id, start, time.Minute)
		if begins > 0 {
			began++
		}
		if would != begins {
			t.Errorf("ban %d begins for %v, and before that WouldBegin said %v", i, begins, would)
		}
	}
	if n := r.Count(start); began != most || n != most {
		t.Fatalf("%d bans began, and %d hold, want %d", began, n, most)
	}
	over := start + int64(time.Minute)
	if n := r.Count(over); n != 0 || r.IsEmpty() {
		t.Errorf("%d hold when they are over; empty is %t before a sweep", n, r.IsEmpty())
	}
	if r.WouldBegin(ID{0, 0xff}, over, time.Minute) == 0 || r.Begin(ID{0, 0xff}, over, time.Minute) == 0 {
		t.Error("there is no room although all are over")
	}
	r.Sweep(over)
	if n := r.Count(over); n != 1 {
		t.Errorf("%d hold after a sweep, want 1", n)
	}
	if r.Sweep(over + int64(time.Minute)); !r.IsEmpty() {
		t.Error("it is not empty after all were swept")
	}
	for i := range r.stripes {
		if r.stripes[i].bans != nil {
			t.Fatal("a sweep keeps the memory of a flood")
		}
	}
}

// Bans that were not sent before they were over are not sent later, and don't count as unsent.
func TestBansThatEndUnsent(t *testing.T) {
	r := register(1000)
	r.Share(cycle.NewWaker())
	for i := range 100 {
		r.Begin(ID{byte(i)}, start, time.Minute)
	}
	if r.Sweep(start + int64(time.Minute)); r.HasUnsent() {
		t.Error("there is something to send after all bans were swept")
	}
	if due := r.Drain(start, 1000, nil); len(due) != 0 {
		t.Errorf("%d bans are sent that are over", len(due))
	}
}

// A store is one register for each key, as the script keeps it, with a clock of its own.
type store struct {
	now  int64 // microseconds
	bans map[ID]State
}

func (s *store) tell(m Message) (a State) {
	had, held := s.bans[m.ID]
	switch {
	case !held, m.Reset > had.Reset:
		had = m.State
	case m.Reset == had.Reset && m.Begun <= s.now && (m.End() > had.End() || m.End() == had.End() && m.Begun > had.Begun):
		had = m.State
	}
	had.Begun = min(had.Begun, s.now)
	if delete(s.bans, m.ID); !had.IsRemembered(s.now) {
		return a
	}
	s.bans[m.ID] = had
	return had
}

// world is some nodes and a store.
type world struct {
	now   int64 // of the nodes' clocks, in nanoseconds
	nodes []*Register
	store store
}

func newWorld(nodes int) *world {
	w := &world{now: start, store: store{start / 1000, map[ID]State{}}}
	for range nodes {
		r := register(100)
		r.Share(cycle.NewWaker())
		w.nodes = append(w.nodes, r)
	}
	return w
}

func (w *world) pass(d time.Duration) {
	w.now += int64(d)
	w.store.now += int64(d / time.Microsecond)
}

// sync has a node send what it has to send, and ask for a key.
func (w *world) sync(node int) {
	r := w.nodes[node]
	for _, m := range append(r.Drain(w.now, 100, nil), r.Ask(a, w.now)) {
		r.Ack(w.now, w.store.now, m, w.store.tell(m))
	}
}

// fail is a sync without answers, of which the store hears or not.
func (w *world) fail(node int, heard bool) {
	messages := w.nodes[node].Drain(w.now, 100, nil)
	for _, m := range messages {
		if heard {
			w.store.tell(m)
		}
	}
	w.nodes[node].Fail(messages)
}

// Whatever is lost, forgotten, repeated or late: no node lets a key go that it knows of before its
// ban is over, no ban lasts longer than its length on any node, and all agree once they have
// synced.
func TestNodesAgreeOnBans(t *testing.T) {
	const length = 15 * time.Minute
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(3)
		for _, r := range w.nodes { // nodes may have configurations that differ
			r.Configure(100, time.Duration(rapid.SampledFrom([]int64{0, int64(time.Hour), int64(2 * time.Hour)}).Draw(rt, "memory")))
		}
		var last int64 // when the last ban ends
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			node := rapid.IntRange(0, 2).Draw(rt, "node")
			known := w.nodes[node].Rest(a, w.now)
			switch step := rapid.SampledFrom([]string{"ban", "sync", "unheard", "unanswered", "pass", "forget"}).Draw(rt, "step"); step {
			case "ban":
				if lasts := w.nodes[node].Begin(a, w.now, length); lasts > 0 {
					last = max(last, w.now+int64(lasts))
				}
			case "sync":
				w.sync(node)
			case "unheard", "unanswered":
				w.fail(node, step == "unanswered")
			case "forget":
				w.store.bans = map[ID]State{}
				for _, r := range w.nodes {
					r.Resend()
				}
			case "pass":
				d := time.Duration(rapid.Int64Range(0, int64(length)).Draw(rt, "time")).Truncate(time.Microsecond)
				w.pass(d)
				known -= d
			}
			for i, r := range w.nodes {
				rest := r.Rest(a, w.now)
				if i == node && rest < known {
					rt.Errorf("node %d lets the key go %v early", i, known-rest)
				}
				if end := time.Duration(last - w.now); rest > max(0, end) {
					rt.Errorf("node %d holds the key %v longer than the last ban", i, rest-end)
				}
			}
		}
		for range 3 {
			for i := range w.nodes {
				w.sync(i)
			}
		}
		for i, r := range w.nodes {
			if got, want := r.Rest(a, w.now), w.nodes[0].Rest(a, w.now); got != want {
				rt.Errorf("node %d: %v is left, on the first %v", i, got, want)
			}
			if r.HasUnsent() {
				rt.Errorf("node %d has something to send for ever", i)
			}
		}
	})
}

// A store whose clock is set an hour back or on prolongs a ban by no more than its length, and ends
// it nowhere where it is known.
func TestAStepOfTheStoresClock(t *testing.T) {
	const length = 15 * time.Minute
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		for _, after := range []time.Duration{0, time.Second, 10 * time.Minute, length - time.Second} {
			t.Run(fmt.Sprint(step, " after ", after), func(t *testing.T) {
				w := newWorld(2)
				w.nodes[0].Begin(a, w.now, length)
				w.sync(0)
				w.pass(after)
				w.store.now += int64(step / time.Microsecond)
				for w.now < start+int64(2*length) {
					w.sync(0)
					w.sync(1)
					if w.now < start+int64(length) && w.nodes[0].Rest(a, w.now) == 0 {
						t.Fatalf("the node that banned the key lets it go %v after the beginning", time.Duration(w.now-start))
					}
					w.pass(time.Minute)
				}
				for i, r := range w.nodes {
					if rest := r.Rest(a, w.now); rest > 0 {
						t.Errorf("node %d holds the key for another %v, twice the length after it was banned", i, rest)
					}
				}
			})
		}
	}
}

// Reset is what began up to the reset, on a node that hears of the reset late, too. A later ban
// holds, also a shorter one.
func TestAResetEndsBans(t *testing.T) {
	w := newWorld(3)
	w.nodes[0].Begin(a, w.now, time.Hour)
	w.nodes[0].Begin(b, w.now, time.Hour)
	w.sync(0)
	w.sync(1)
	w.pass(time.Minute)
	set := &reset.Set{Keys: map[ID]reset.Reset{a: {Stamp: w.now / 1000, At: w.now, Until: w.now + int64(2*time.Hour)}}}
	for _, r := range w.nodes[:2] {
		r.Reset(w.now, set)
	}
	if w.nodes[0].Rest(a, w.now) != 0 || w.nodes[0].Rest(b, w.now) == 0 {
		t.Fatal("want the one key reset, and not the other")
	}
	w.nodes[1].Resend()
	w.sync(1)
	w.sync(2)
	if rest := w.nodes[2].Rest(a, w.now); rest != 0 {
		t.Errorf("a newcomer learns of what was reset: %v", rest)
	}
	w.pass(time.Minute)
	w.nodes[1].Begin(a, w.now, time.Minute)
	w.sync(1)
	for i, r := range w.nodes {
		w.sync(i)
		r.Reset(w.now+int64(time.Second), set) // the last one hears of it only now
		w.sync(i)
		if rest := r.Rest(a, w.now); rest != time.Minute {
			t.Errorf("node %d: %v is left of the ban after the reset, want a minute", i, rest)
		}
	}
}

// Who has applied a reset does not forgive more by it when the store's clock is set back, and what
// was asked before is answered in vain.
func TestAResetIsAppliedOnce(t *testing.T) {
	w := newWorld(2)
	w.nodes[0].Begin(a, w.now, time.Hour)
	w.sync(0)
	ask := w.nodes[1].Ask(a, w.now)
	said := w.store.tell(ask)
	set := &reset.Set{All: reset.Reset{Stamp: 1, At: w.now, Until: w.now + int64(2*time.Hour)}}
	for _, r := range w.nodes {
		r.Reset(w.now, set)
	}
	if w.nodes[1].Ack(w.now, w.store.now, ask, said); w.nodes[1].Rest(a, w.now) != 0 {
		t.Error("an answer to what was asked before the reset bans the key again")
	}
	w.pass(time.Minute)
	w.nodes[0].Begin(a, w.now, time.Hour)
	w.pass(time.Minute)
	w.nodes[0].SetClock(-time.Hour)
	w.nodes[0].Reset(w.now, set)
	if rest := w.nodes[0].Rest(a, w.now); rest != 59*time.Minute {
		t.Errorf("%v are left of a ban after the reset, want 59 minutes", rest)
	}
}

// A store that has gone back to an earlier ban, as after a failover, is told of the later one.
func TestAStoreThatGoesBack(t *testing.T) {
	w := newWorld(1)
	w.nodes[0].Begin(a, w.now, time.Minute)
	w.sync(0)
	before := w.store.bans[a]
	before.Length = 150 * time.Second // set elsewhere
	w.pass(2 * time.Minute)
	w.nodes[0].Begin(a, w.now, time.Minute)
	w.sync(0)
	later := w.store.bans[a]
	w.store.bans[a] = before
	w.sync(0)
	w.sync(0)
	if w.store.bans[a] != later {
		t.Errorf("the store has %v, want %v", w.store.bans[a], later)
	}
}

// What was saved holds for the rest of its time, and no longer than its length where the clock was
// set back.
func TestBansOutliveAProcess(t *testing.T) {
	r := register(10)
	r.Begin(a, start, time.Hour)
	r.Begin(b, start, time.Minute)
	now := start + int64(30*time.Minute)
	next := register(10)
	if n := next.Resume(now, r.Save(now)); n != 1 || next.Rest(a, now) != 30*time.Minute || next.Rest(b, now) != 0 {
		t.Errorf("%d are left, %v of the first and %v of the second, want half an hour of the first", n, next.Rest(a, now), next.Rest(b, now))
	}
	earlier, back := register(10), start-int64(time.Hour)
	earlier.Resume(back, r.Save(now))
	if rest := earlier.Rest(a, back); rest != time.Hour {
		t.Errorf("%v are left for a clock that was set back, want an hour", rest)
	}
	if rest := earlier.Rest(a, back+int64(time.Hour)); rest != 0 {
		t.Errorf("an hour later %v are left", rest)
	}
}

// Of several goroutines that ban one key at once one begins its ban, and it is sent once.
func TestOneBanOfManyAtOnce(t *testing.T) {
	const keys, goroutines = 5000, 4
	id := func(i int) ID { return ID{byte(i), byte(i >> 8)} }
	r := register(keys)
	r.Share(cycle.NewWaker())
	var began, sent atomic.Int64
	var begin, all sync.WaitGroup
	begin.Add(goroutines)
	for range goroutines {
		all.Go(func() {
			begin.Done()
			begin.Wait()
			for i := range keys {
				if r.Begin(id(i), start, time.Hour) > 0 {
					began.Add(1)
				}
				if i%100 == 0 {
					sent.Add(int64(len(r.Drain(start, 10, nil))))
				}
			}
		})
	}
	all.Wait()
	sent.Add(int64(len(r.Drain(start, keys, nil))))
	if began.Load() != keys || sent.Load() != keys {
		t.Errorf("of %d keys that %d goroutines ban: %d bans begin and %d are sent, want %[1]d and %[1]d", keys, goroutines, began.Load(), sent.Load())
	}
	checkCounts(t, r, "after all")
}

// checkCounts holds what a register counts to what is there.
func checkCounts(t *testing.T, r *Register, when string) {
	t.Helper()
	held, listed, marked := 0, 0, 0
	for i := range r.stripes {
		st := &r.stripes[i]
		held, listed = held+len(st.bans), listed+len(st.unsent)
		for _, e := range st.bans {
			if e.listed {
				marked++
			}
		}
	}
	if int64(held) != r.count.Load() || int64(listed) != r.listed.Load() || marked > listed {
		t.Errorf("%s: held = %d and listed = %d, want %d and %d; %d bans are marked as listed", when, r.count.Load(), r.listed.Load(), held, listed, marked)
	}
}

// A deed is one of the things that may be done with the key a at any time.
type deed struct {
	name string
	do   func(r *Register)
}

// deeds are all that take the lock of the key's stripe.
func deeds() []deed {
	bans := map[ID]Ban{a: {start, 2 * time.Hour}}
	one := &reset.Set{Keys: map[ID]reset.Reset{a: {Stamp: start / 1000, At: start, Until: start + int64(time.Hour)}}}
	told := Message{a, State{Begun: start / 1000, Length: time.Hour}, start}
	return []deed{
		{"Begin", func(r *Register) { r.Begin(a, start, time.Hour) }},
		{"Rest", func(r *Register) { r.Rest(a, start) }},
		{"Count", func(r *Register) { r.Count(start) }},
		{"Sweep", func(r *Register) { r.Sweep(start + int64(time.Hour)) }},
		{"Save", func(r *Register) { r.Save(start) }},
		{"Resume", func(r *Register) { r.Resume(start, bans) }},
		{"Name", func(r *Register) { r.Name(a, func() string { return "a" }) }},
		{"Each", func(r *Register) { r.Each(start, func(ID, Ban, string) {}) }},
		{"Resend", func(r *Register) { r.Resend() }},
		{"Drain", func(r *Register) { r.Drain(start, 10, nil) }},
		{"Fail", func(r *Register) { r.Fail([]Message{told}) }},
		{"Ack", func(r *Register) { r.Ack(start, start/1000, told, State{Begun: start/1000 - 1, Length: time.Hour}) }},
		{"Reset", func(r *Register) { r.Reset(start, one) }},
	}
}

// bannedOne is a register that has a ban of the key a to send.
func bannedOne() *Register {
	r := register(1)
	r.Share(cycle.NewWaker())
	r.Begin(a, start, time.Hour)
	return r
}

// Nothing is done with a key as long as somebody else has its lock.
func TestEachDeedTakesTheLock(t *testing.T) {
	for _, one := range deeds() {
		r := bannedOne()
		var done atomic.Bool
		var all sync.WaitGroup
		lock := &r.stripeOf(a).mu
		lock.Lock()
		all.Go(func() {
			one.do(r)
			done.Store(true)
		})
		for range 5000 { // it would be done by then
			runtime.Gosched()
		}
		if done.Load() {
			t.Errorf("%s returns while another goroutine has the lock of the key's stripe, want it to wait", one.name)
		}
		lock.Unlock()
		all.Wait()
	}
}

// Any two deeds may be done at once. What one of them does without the lock is seen with -race.
func TestTwoGoroutinesOnOneKey(t *testing.T) {
	all := deeds()
	for i, one := range all {
		for _, other := range all[i:] {
			r := bannedOne()
			var begin, both sync.WaitGroup
			begin.Add(2)
			for _, do := range []func(*Register){one.do, other.do} {
				both.Go(func() {
					begin.Done()
					begin.Wait()
					for range 100 {
						r.Begin(a, start, time.Hour)
						do(r)
					}
				})
			}
			both.Wait()
			checkCounts(t, r, one.name+" beside "+other.name)
		}
	}
}

// What makes no sense is none, and what is said is read as it was.
func TestParse(t *testing.T) {
	for text, want := range map[string]bool{
		"1 2 3": true, "1 3 0": true, "0 2 3": false, "1 0 3": false, "1 2": false, "1 2 3 4": true, "1 2 3 4 5": false, "1 2 3 -4": false, "1 2 3 9007199254740991": false, "a 2 3": false, "1 2 -3": false,
		"9223372036854775808 2 3": false, "1 9007199254740991 0": false, "": false,
	} {
		if s := Parse(text); (s != State{}) != want || want && s.String() != text {
			t.Errorf("Parse(%q) = %+v, want something: %t", text, s, want)
		}
	}
}

// While a reset goes over all bans, a message says none of those that it is about to drop, and an
// answer to one that said it brings none back.
func TestAResetUnderWayEndsBans(t *testing.T) {
	w := newWorld(2)
	r := w.nodes[0]
	r.Begin(a, w.now, time.Hour)
	w.sync(0)
	had := w.store.bans[a]
	w.pass(time.Minute)
	one := reset.Reset{Stamp: w.now / 1000, At: w.now, Until: w.now + int64(2*time.Hour)}
	r.resets.Store(r.resets.Load().NextAt(&reset.Set{All: one}, func(reset.Reset) int64 { return w.now }))
	if m := r.Ask(a, w.now); m.Length > 0 || m.Reset != one.Stamp {
		t.Errorf("%+v is said of a ban that is reset", m.State)
	}
	r.Reset(w.now, &reset.Set{All: one})
	had.Reset = one.Stamp
	if r.Ack(w.now, w.store.now, Message{ID: a}, had); r.Rest(a, w.now) > 0 {
		t.Error("an answer brings back a ban that was reset")
	}
}

// A request that came before a reset, and is denied after it, begins no ban.
func TestAResetMeanwhileEndsBans(t *testing.T) {
	w := newWorld(1)
	r := w.nodes[0]
	came := w.now
	w.pass(time.Second)
	r.Reset(w.now, &reset.Set{All: reset.Reset{Stamp: w.now / 1000, At: w.now, Until: w.now + int64(time.Hour)}})
	if length := r.Begin(a, came, time.Hour); length != 0 || r.Rest(a, w.now) > 0 {
		t.Errorf("a ban of %v begins, want none", length)
	}
	w.pass(time.Second)
	if length := r.Begin(a, w.now, time.Hour); length != time.Hour {
		t.Errorf("a ban of %v begins after it, want an hour", length)
	}
}

// A reset that is over ends no ban of a node that has started since.
func TestAResetThatIsOverEndsNothing(t *testing.T) {
	w := newWorld(2)
	w.nodes[0].Reset(w.now, &reset.Set{All: reset.Reset{Stamp: w.now / 1000, At: w.now, Until: w.now + int64(time.Minute)}})
	w.pass(time.Hour)
	w.nodes[1].Begin(a, w.now, time.Hour)
	w.sync(1)
	w.sync(0)
	if rest := w.nodes[0].Rest(a, w.now); rest != time.Hour || w.store.bans[a].Length != time.Hour {
		t.Errorf("%v are left, and the store has %v, want an hour", rest, w.store.bans[a])
	}
}

// A ban that begins before this node has heard of a step of the store's clock is told again: the
// store takes it for over. A node that hears of it has it for its rest, whatever it takes the
// store's clock for.
func TestABanThatTheStoreTakesForOver(t *testing.T) {
	w := newWorld(2)
	w.store.now += time.Hour.Microseconds()
	w.nodes[0].Begin(a, w.now, 15*time.Minute)
	w.sync(0)
	if !w.nodes[0].HasUnsent() {
		t.Fatal("what the store has not taken in is not to be told again")
	}
	w.nodes[0].SetClock(time.Hour)
	w.sync(0)
	w.pass(5 * time.Minute)
	w.sync(1) // it has not heard of the step
	if rest := w.nodes[1].Rest(a, w.now); (rest - 10*time.Minute).Abs() > time.Second {
		t.Errorf("another node has it for %v, want ten minutes", rest)
	}
}
