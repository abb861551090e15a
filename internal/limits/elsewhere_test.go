package limits

import (
	"testing"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cycle"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// spendElsewhere has another node spend n units of a key in all limits of a strict zone.
func spendElsewhere(t *testing.T, z *Zone, by *Redis, raw []byte, n int64) {
	t.Helper()
	ask := &strict.Request{Key: keys.KeyOf(raw), Raw: raw, N: n}
	for i := range z.AllLimits {
		l := &z.AllLimits[i]
		p := l.Params()
		other := algorithms.ByState(p.Kind, tableElsewhere[algorithms.WindowState], tableElsewhere[algorithms.BucketState], tableElsewhere[algorithms.LogState])(p)
		ask.Counters = append(ask.Counters, strict.Counter{Table: other, Syncer: ratesync.NewTableSyncer(other, SpecOf(&z.Settings, l.Rate))})
		ask.Limits = append(ask.Limits, p.Compile())
	}
	took, err := by.Strict.Ask(t.Context(), z.Name, ask, nil)
	if err != nil {
		t.Fatalf("Ask for another node: %v", err)
	}
	for i := range took {
		if !took[i].Allowed {
			t.Fatalf("limit %d doesn't admit %d units of another node: %+v", i, n, took[i])
		}
	}
}

// tableElsewhere is a table of another node.
func tableElsewhere[S any](p algorithms.Params) Table {
	tab := table.New[S](p.Kind, 100)
	tab.Configure(table.SyncConfig{Params: p, Interval: strictInterval, StoreDecides: true, Waker: cycle.NewWaker()}, 100)
	return tab
}
