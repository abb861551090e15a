package strict

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const allWaits = algorithms.WantNext | algorithms.WantReset

// tableOf is a table for limits of p's kind.
func tableOf[S any](p algorithms.Params, maxKeys int) *table.Table[S] {
	return table.New[S](p.Kind, maxKeys)
}
