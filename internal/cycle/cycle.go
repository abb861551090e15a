// Package cycle says when a table syncs and how its calls are cut. The sync of the product and the
// one of the simulator go by it, so that simulated figures hold for what is shipped.
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
	// Heartbeat is how often a node says that it is there.
	Heartbeat = time.Second
)

// Turn reports whether a loop that is awake, with a sync due after some time (below 0: before now),
// is awake early, and after what time the next sync is due.
func Turn(due, rate time.Duration) (early bool, next time.Duration) {
	if early = due > 0; !early {
		due += rate
	}
	if due < 0 || due > rate {
		due = rate
	}
	return early, due
}

// Retry is the time from a sync that failed to the next one. One that has just begun to fail is
// tried again soon.
func Retry(rate time.Duration, first bool) time.Duration {
	if first {
		return min(rate, MinWait)
	}
	return max(rate, MinWait)
}

// CallTime bounds a call. timeout is the one of the connection.
func CallTime(timeout, rate time.Duration) time.Duration {
	return min(timeout, max(rate, MinWait))
}

// Calls is how many calls a number of messages takes.
func Calls(messages int) int { return (messages + BatchSize - 1) / BatchSize }
