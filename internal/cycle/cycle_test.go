package cycle

import (
	"math/rand/v2"
	"testing"
	"time"
)

const s, ms = time.Second, time.Millisecond

// Everything is synced at the rate, however late the loop is.
func TestBegin(t *testing.T) {
	for _, c := range []struct {
		name   string
		due    time.Duration
		kind   Kind
		action Action
		next   time.Duration
	}{
		{"in time", 0, Tick, SyncAll, s},
		{"a little late", -s / 4, Tick, SyncAll, 3 * s / 4},
		{"an interval late", -s, Tick, SyncAll, 0},
		{"later than that", -5 * s, Tick, SyncAll, s},
		{"early", s / 4, Wake, SyncUrgent, s / 4},
		{"early, as urgent keys were left", s / 4, Tick, SyncUrgent, s / 4},
		{"the interval has become shorter", 5 * s, Wake, SyncUrgent, s},
		{"forced early", s / 4, Force, SyncAll, s},
		{"forced late", -s / 4, Force, SyncAll, 3 * s / 4},
	} {
		const now = 100 * s
		state, action, _ := State{Due: now + c.due}.Next(Event{Kind: c.kind}, now, s)
		if action != c.action || state.Due-now != c.next {
			t.Errorf("%s: Next() = action %d, due in %v, want %d, %v", c.name, action, state.Due-now, c.action, c.next)
		}
	}
}

// One that has just begun to fail is tried again soon.
func TestRetry(t *testing.T) {
	for _, c := range []struct {
		rate        time.Duration
		first, then time.Duration
	}{
		{20 * ms, 20 * ms, MinWait},
		{s, MinWait, s},
		{time.Hour, MinWait, time.Hour},
	} {
		failed := Event{Kind: Failed, Missed: AllShards}
		one, _, _ := State{}.Next(failed, 0, c.rate)
		two, _, _ := one.Next(failed, 0, c.rate)
		if one.Due != c.first || two.Due != c.then {
			t.Errorf("a rate of %v: tried again after %v and then %v, want %v and %v", c.rate, one.Due, two.Due, c.first, c.then)
		}
	}
}

// A call to a server near by may take an interval, and one to a server far away four round trips.
func TestCallTime(t *testing.T) {
	for _, c := range []struct{ rate, trip, want time.Duration }{
		{20 * ms, ms, MinWait},
		{250 * ms, ms, 250 * ms},
		{20 * ms, 20 * ms, MinWait},
		{100 * ms, 150 * ms, 600 * ms},
		{500 * ms, 100 * ms, 500 * ms},
		{100 * ms, 300 * ms, s},
		{time.Hour, ms, s},
		{100 * ms, 0, s}, // nobody knows how far away it is
	} {
		if got := CallTime(s, c.rate, c.trip); got != c.want {
			t.Errorf("a rate of %v and a round trip of %v: %v, want %v", c.rate, c.trip, got, c.want)
		}
	}
}

// Few keys on few nodes are sent again at once, and many in ten seconds at most.
func TestResendTime(t *testing.T) {
	for _, c := range []struct {
		nodes int64
		keys  int
		want  time.Duration
	}{
		{1, 0, 0}, {3, 100, 6 * ms}, {100, 2000, 4 * s}, {100, 5000, 10 * s}, {100, 5001, 10 * s},
		{1000, 1_000_000, 10 * s}, {1 << 60, 1 << 60, 10 * s}, {0, 10, 0},
	} {
		if got := ResendTime(c.nodes, c.keys); got != c.want {
			t.Errorf("%d nodes with %d keys: %v, want %v", c.nodes, c.keys, got, c.want)
		}
	}
}

// The history of a loop: what happens when, what it does then, and for how long it waits.
func TestNext(t *testing.T) {
	const one, other = 1, 2
	type step struct {
		at     time.Duration
		event  Event
		action Action
		wait   time.Duration
	}
	tick, wake, force, reply := Event{Kind: Tick}, Event{Kind: Wake}, Event{Kind: Force}, Event{Kind: Reply}
	down, left := Event{Kind: Failed, Missed: AllShards}, Event{Kind: Reply, Urgent: true}
	for name, steps := range map[string][]step{
		"in time": {
			{0, tick, SyncAll, 0}, {5 * ms, reply, Await, Gap}, {7 * ms, tick, Await, s - 7*ms}, {s, tick, SyncAll, 0},
		},
		"a wake": {
			{0, tick, SyncAll, 0}, {0, reply, Await, Gap}, {Gap, tick, Await, s - Gap}, {s / 2, wake, SyncUrgent, 0},
			{s / 2, reply, Await, Gap}, {s/2 + Gap, tick, Await, s/2 - Gap},
		},
		"a wake during a sync": {
			{0, tick, SyncAll, 0}, {0, wake, Continue, 0}, {5 * ms, reply, Await, Gap}, {7 * ms, tick, SyncUrgent, 0},
		},
		"a wake during a rest": {
			{0, tick, SyncAll, 0}, {0, reply, Await, Gap}, {Gap / 2, wake, Await, Gap / 2}, {Gap, tick, SyncUrgent, 0},
			{Gap, reply, Await, Gap}, {2 * Gap, tick, Await, s - 2*Gap},
		},
		"urgent keys are left": {
			{0, tick, SyncAll, 0}, {0, left, Await, Gap}, {Gap, tick, Await, Gap}, {2 * Gap, tick, SyncUrgent, 0},
		},
		"urgent keys are left by a sync that failed": {
			{0, tick, SyncAll, 0}, {0, Event{Kind: Failed, Missed: AllShards, Urgent: true}, Await, Gap}, {Gap, tick, Await, MinWait - Gap},
		},
		"urgent keys are left by a sync that one shard failed": {
			{0, tick, SyncAll, 0}, {0, Event{Kind: Failed, Missed: one, Urgent: true}, Await, Gap}, {Gap, tick, Await, Gap}, {2 * Gap, tick, SyncUrgent, 0},
		},
		"force waits for nothing": {
			{0, tick, SyncAll, 0}, {0, reply, Await, Gap}, {Gap / 2, force, SyncAll, 0}, {Gap / 2, reply, Await, Gap},
			{2 * Gap, tick, Await, s - 3*Gap/2},
		},
		"nothing goes early to a server that is lost": {
			{0, tick, SyncAll, 0}, {0, down, Await, Gap}, {Gap, tick, Await, MinWait - Gap}, {s / 20, wake, Await, s / 20},
			{MinWait, tick, SyncAll, 0}, {MinWait, down, Await, Gap}, {MinWait + Gap, tick, Await, s - Gap},
			{s / 2, force, SyncAll, 0}, {s / 2, reply, Await, Gap}, {s/2 + Gap, wake, Await, 0}, {s/2 + Gap, tick, SyncUrgent, 0},
		},
		"one shard of several is lost": {
			{0, tick, SyncAll, 0}, {0, Event{Kind: Failed, Missed: one}, Await, Gap}, {Gap, tick, Await, MinWait - Gap}, {s / 20, wake, SyncUrgent, 0},
			{s / 20, Event{Kind: Failed, Missed: one | other}, Await, Gap}, {s/20 + Gap, tick, Await, MinWait - Gap},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var state State
			for i, c := range steps {
				var action Action
				var wait time.Duration
				if state, action, wait = state.Next(c.event, c.at, s); action != c.action || wait != c.wait {
					t.Fatalf("step %d, at %v: Next(%+v) = action %d, wait %v, want %d, %v", i, c.at, c.event, action, wait, c.action, c.wait)
				}
			}
		})
	}
}

// A shard counts as unreachable from the second sync in a row that does not reach it.
func TestUnreachable(t *testing.T) {
	var state State
	for i, c := range []struct{ lost, want uint64 }{{0, 0}, {3, 0}, {6, 2}, {4, 4}, {0, 0}, {4, 0}} {
		kind := Reply
		if c.lost != 0 {
			kind = Failed
		}
		if state, _, _ = state.Next(Event{Kind: kind, Missed: c.lost}, 0, s); state.MissedTwice != c.want {
			t.Errorf("sync %d, without shards %b: MissedTwice = %b, want %b", i, c.lost, state.MissedTwice, c.want)
		}
	}
}

// Whatever happens, no early sync begins within a Gap of the last sync, everything is synced at
// least every rate, or as soon as the sync before is over, and a wake is not forgotten.
func TestNextKeepsTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const rate = 50 * ms
	var state State
	var now, ended, begun time.Duration
	tickAt, woken := now, false
	ended = -Gap
	for range 100_000 {
		e, syncs := Event{Kind: Tick}, state.phase == syncing
		switch step := time.Duration(random.IntN(20)) * ms / 4; {
		case syncs:
			now += step
			if e.Kind = Reply; random.IntN(3) == 0 {
				e.Kind = Wake
			}
			e.Urgent = random.IntN(4) == 0
		case now+step < tickAt:
			now += step
			e.Kind = Wake
		default:
			now = tickAt
		}
		woken = woken || e.Kind == Wake
		var action Action
		var wait time.Duration
		state, action, wait = state.Next(e, now, rate)
		if e.Kind == Reply {
			ended = now
		}
		switch {
		case syncs && e.Kind != Reply && action != Continue:
			t.Fatalf("at %v: a sync begins during another one", now)
		case action == SyncUrgent && now-ended < Gap:
			t.Fatalf("at %v: an early sync %v after the last one", now, now-ended)
		case action == SyncAll:
			if now > max(begun+2*rate, ended+2*Gap) {
				t.Fatalf("at %v: everything was synced at %v, and an early sync ended at %v", now, begun, ended)
			}
			begun = now
		}
		if action == SyncUrgent || action == SyncAll {
			woken = false
		}
		if state.phase == waiting && woken {
			t.Fatalf("at %v: a wake was forgotten", now)
		}
		tickAt = now + wait
	}
}
