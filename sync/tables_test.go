package ratesync

import (
	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/table"
)

const allWaits = algorithms.WantNext | algorithms.WantReset

// tableOf is a table for limits of p's kind.
func tableOf[S any](p algorithms.Params, maxKeys int) *table.Table[S] {
	return table.NewOf(p.Kind, algorithms.MachineBy[S](p.Kind, p.Calendar), maxKeys)
}

// ledgerOf is the ledger of a key under a limit of p's kind.
func ledgerOf[S any](p algorithms.Params, s *S) *algorithms.Ledger {
	return algorithms.MachineOf[S](p.Kind).Ledger(s)
}

// levelAt is how full a bucket is.
func levelAt[S any](p algorithms.Params, s *S, now int64) float64 {
	level, _ := algorithms.MachineOf[S](p.Kind).Level(s, p.Compile(), now)
	return level
}
