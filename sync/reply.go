package ratesync

import (
	"strconv"

	"github.com/caddy-tide/ratelimit/internal/cell"
)

// count reads a number of Redis: none is below 0, and none is more than Redis' Lua can count.
func count(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n < cell.MaxExact
}

// ErrReply is the error of a reply that makes no sense as a whole.
var ErrReply = cell.ErrReply
