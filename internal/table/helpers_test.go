package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// allWaits are those that headers and placeholders can want of an admitted request.
const allWaits = algorithms.WantNext | algorithms.WantReset

// of is a table for limits of p's kind.
func of[S any](p algorithms.Params, maxKeys int) *Table[S] {
	return New[S](p.Kind, maxKeys)
}

func fixed(limit int64, window time.Duration) algorithms.Params {
	return algorithms.Params{Kind: algorithms.FixedWindow, Limit: limit, Window: window}
}

func sliding(limit int64, window time.Duration) algorithms.Params {
	return algorithms.Params{Kind: algorithms.SlidingWindow, Limit: limit, Window: window}
}

// window is the machine of sliding(...) and fixed(...).
var window = algorithms.MachineOf[algorithms.WindowState](algorithms.SlidingWindow)
