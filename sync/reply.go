package ratesync

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/reset"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// parseAnswer reads what the script says of one key: what this node's field held, "" where there
// was none, and "total attempts[ settled]" of all nodes, for buckets with their fill, which has a
// decimal point. What makes no sense counts as failed, and
// nothing of it is believed: whoever else writes to these keys could lock clients out otherwise.
func parseAnswer(m table.Message, held, sum string) table.Answer {
	a := table.Answer{Message: m, Failed: true}
	if held == "@" {
		a.NewerReset, _ = ParseReset(sum)
		return a
	}
	sum, a.Regions = strings.CutSuffix(sum, " ~")
	var ok, ok2 bool
	if held != "" {
		if a.Held, ok = count(held); !ok {
			return a
		}
	}
	total, rest, _ := strings.Cut(sum, " ")
	attempts, rest, more := strings.Cut(rest, " ")
	a.Sum, ok = count(total)
	a.SumAttempts, ok2 = count(attempts)
	a.SumSettled = a.Sum
	fill, filled := rest, more
	if settled, after, both := strings.Cut(rest, " "); more && !strings.Contains(settled, ".") {
		n, is := count(settled)
		a.SumSettled, ok2 = n, ok2 && is
		fill, filled = after, both
	}
	mine := a.Held
	if m.Push {
		mine = m.Total
	}
	a.Failed = !ok || !ok2 || a.Sum < mine || filled && !readFill(&a, fill)
	return a
}

// MaxExact is how far the numbers of Redis' Lua, which are doubles, can count.
const MaxExact = 1 << 53

// noSense is the reason for rejecting an answer.
const noSense = cell.NoSense

// readFill reads the fill of a bucket.
func readFill(a *table.Answer, text string) bool {
	fill, err := strconv.ParseFloat(text, 64)
	if err != nil || !(fill >= 0 && fill < MaxExact) || !a.Bucket {
		return false
	}
	a.Seen, a.Known = fill, true
	return true
}

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
