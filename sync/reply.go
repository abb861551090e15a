package ratesync

import (
	"errors"
	"strconv"

	"github.com/caddy-tide/ratelimit/internal/cell"
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

// ErrReply is the error of a reply that makes no sense as a whole.
var ErrReply = errors.New("the reply of redis has another form than its script gives")
