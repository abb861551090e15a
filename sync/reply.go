package ratesync

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// MaxExact is how far the numbers of Redis' Lua, which are doubles, can count.
const MaxExact = 1 << 53

// noSense is the reason for rejecting an answer.
const noSense = cell.NoSense

// count reads a number of requests: none is below 0, and none is more than Redis' Lua can count.
func count(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n < MaxExact
}

// ParseReset reads a reset that a script tells of: "stamp until", in microseconds and milliseconds.
func ParseReset(text string) (r reset.Reset, ok bool) {
	stamp, until, _ := strings.Cut(text, " ")
	var ok2 bool
	r.Stamp, ok = count(stamp)
	r.Until, ok2 = count(until)
	if !ok || !ok2 || r.Until > math.MaxInt64/int64(time.Millisecond) || r.Stamp > math.MaxInt64/int64(time.Microsecond) {
		return reset.Reset{}, false
	}
	r.Until *= int64(time.Millisecond)
	r.At = r.Stamp * int64(time.Microsecond)
	return r, true
}

// ErrReply is the error of a reply that makes no sense as a whole.
var ErrReply = errors.New("the reply of redis has another form than its script gives")
