package control

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// An Entry is one thing that an operator said, under a name of its own: a later one of the same
// name takes its place.
type Entry struct {
	ID string
	// Stamp orders the entries of a name, in microseconds. It is Redis' time, or more where that
	// has stepped back.
	Stamp int64
	// Until is when it ends by Redis' clock, in milliseconds since the Unix epoch, and Length how
	// long that was to be when it was written, in milliseconds.
	Until, Length int64
	// Keep is until when it is kept: until it ends, and as long as what it replaces would have
	// been. Or a node that was away could bring that back.
	Keep int64
	// Body is what was said, in JSON. It is empty where the entry deletes what was there before.
	Body string
}

const (
	// MaxEntries is how many entries a record takes. A kill switch is taken beyond it.
	MaxEntries = 10_000
	// keepMost is the longest that an entry is kept beyond its end. Copies that are older are
	// dropped, see awayFor.
	keepMost = 30 * 24 * time.Hour
	// maxStamp is the greatest number that Lua counts with.
	maxStamp = 1 << 52
)

// IsDeletion reports whether the entry deletes what was there before.
func (e Entry) IsDeletion() bool { return e.Body == "" }

// value is the entry as a field of the record, after the clock when it was written there: "stamp
// until keep length body".
func (e Entry) value() string {
	return fmt.Sprintf("%d %d %d %d %s", e.Stamp, e.Until, e.Keep, e.Length, e.Body)
}

// parseEntry reads an entry's value.
func parseEntry(id, value string) (e Entry, ok bool) {
	e.ID, ok = id, true
	rest := value
	for _, n := range []*int64{&e.Stamp, &e.Until, &e.Keep, &e.Length} {
		var word string
		var found bool
		word, rest, found = strings.Cut(rest, " ")
		v, err := strconv.ParseInt(word, 10, 64)
		ok = ok && found && err == nil && v >= 0 && v <= maxStamp
		*n = v
	}
	e.Body = rest
	return e, ok
}

// wins reports whether an entry takes the place of another one of its name. It is a total order, so
// nodes agree whatever comes first.
func (e Entry) wins(over Entry) bool {
	if e.Stamp != over.Stamp {
		return e.Stamp > over.Stamp
	}
	return e.value() > over.value()
}
