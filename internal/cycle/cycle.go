// Package cycle is the loop of a table's sync as a pure function, what wakes it, and how its calls
// are cut. Timers drive it in the product and a heap of events in the simulator, so that simulated
// figures hold for what is shipped.
package cycle

import "time"

const (
	// BatchSize is how many messages go into one call of the script, which holds up the server for
	// half a millisecond.
	BatchSize = 100
	// Gap is the least time between two early syncs of one table.
	Gap = 2 * time.Millisecond
	// MinWait is the least time between two tries of a sync that fails.
	MinWait = 100 * time.Millisecond
	// Heartbeat is the time between two heartbeats of a node.
	Heartbeat = time.Second
	// AllShards is the set of all shards, a bit each.
	AllShards = ^uint64(0)
)

// State is where the loop of one table stands. With the zero value all is due at once.
//
//	waiting --tick, wake, force--> syncing --reply, failed--> resting --tick--> waiting
//
// An early sync that nobody would answer is left out, and a wake that comes while the loop syncs or
// rests is heeded when it waits again.
type State struct {
	// Due is when everything is to be synced next, on the clock of the loop's driver.
	Due time.Duration
	// Missed are the shards that the last sync did not reach, a bit each. MissedTwice are those
	// that the one before did not reach either: one lost reply is no reason to believe that the
	// other nodes have stopped.
	Missed, MissedTwice uint64

	phase  phase
	until  time.Duration // when the phase ends, unless it is syncing
	woken  bool          // there was a wake that nothing has come of yet
	urgent bool          // the last sync has left urgent keys
}

type phase uint8

const (
	waiting phase = iota
	syncing
	resting // for a Gap, in which no early sync begins
)

// Kind is what has happened.
type Kind uint8

// The kinds of an Event.
const (
	Tick   Kind = iota // the wait that Next returned is over
	Wake               // some keys are urgent
	Force              // everything is to be synced at once; not during a sync
	Reply              // the sync that Next asked for is over
	Failed             // it is over, and some of it has failed
)

// An Event is what the loop's driver tells it.
type Event struct {
	Kind Kind
	// Missed are, after a sync, the shards that can't be reached, a bit each.
	Missed uint64
	// Urgent is set where a sync is over and there are urgent keys.
	Urgent bool
}

// Action is what the loop's driver is to do.
type Action uint8

// The actions. After a sync the driver says with Reply or Failed what came of it.
const (
	Await      Action = iota // wait for an event
	Continue                 // go on with the sync that is under way
	SyncUrgent               // sync the urgent keys
	SyncAll                  // sync everything that has changed
)

// Next is the loop's answer to an event: its new state, what to do, and for Await how long until a
// Tick. now is the time on a clock that takes no steps, and rate the time between two syncs of
// everything.
func (s State) Next(e Event, now, rate time.Duration) (State, Action, time.Duration) {
	switch {
	case e.Kind == Reply || e.Kind == Failed:
		first := e.Missed&^s.Missed != 0
		s.Missed, s.MissedTwice = e.Missed, e.Missed&s.Missed
		s.phase, s.until, s.urgent = resting, now+Gap, e.Urgent && (e.Kind == Reply || e.Missed != AllShards)
		if e.Kind == Failed {
			s.Due = now + retry(rate, first)
		}
	case s.phase == syncing:
		s.woken = s.woken || e.Kind == Wake
		return s, Continue, 0
	case e.Kind == Wake && s.phase == resting:
		s.woken = true
	case e.Kind == Tick && s.phase == resting && !s.woken:
		s.phase, s.until = waiting, s.Due
		if s.urgent {
			s.until = now + Gap
		}
	default:
		return s.begin(e.Kind == Force, now, rate)
	}
	return s, Await, max(0, s.until-now)
}

// begin begins a sync: of everything where that is forced or due, else of urgent keys.
func (s State) begin(force bool, now, rate time.Duration) (State, Action, time.Duration) {
	s.phase, s.woken = syncing, false
	due := s.Due - now
	if force {
		due = min(due, 0)
	}
	early := due > 0
	if !early {
		due += rate
	}
	if due < 0 || due > rate {
		due = rate
	}
	s.Due = now + due
	switch {
	case !early:
		return s, SyncAll, 0
	case s.Missed != AllShards:
		return s, SyncUrgent, 0
	}
	s.phase, s.until = waiting, s.Due
	return s, Await, due
}

// retry is the time from a sync that failed to the next one. One that has just begun to fail is
// tried again soon.
func retry(rate time.Duration, first bool) time.Duration {
	if first {
		return min(rate, MinWait)
	}
	return max(rate, MinWait)
}

// CallTime bounds a call. timeout is the one of the connection, and trip the round trip to the
// server, 0 where it is not known yet. A lost server is to be noticed soon where the interval is
// short, and one that is far away is not lost: a call on a new connection takes a few round trips.
func CallTime(timeout, rate, trip time.Duration) time.Duration {
	if trip == 0 {
		return timeout
	}
	return min(timeout, max(rate, MinWait, 4*trip))
}

// ResendTime is the time over which nodes spread what they send again after a loss, each with so
// many keys: four times what the server takes for it, up to a bound.
func ResendTime(nodes int64, keys int) time.Duration {
	const each, most = 20 * time.Microsecond, 10 * time.Second
	if keys > 0 && nodes > int64(most/each)/int64(keys) {
		return most
	}
	return time.Duration(nodes*int64(keys)) * each
}
