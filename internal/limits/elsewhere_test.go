package limits

import (
	"testing"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/cell"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// spendElsewhere has another node spend n units of a key in all limits of a strict zone.
func spendElsewhere(t *testing.T, z *Zone, by *Redis, id keys.ID, n int64) {
	t.Helper()
	if !z.asksCells() {
		if _, g, err := by.Strict.Take(t.Context(), z.Name, z.Rules, id, n, nil); err != nil || !g.Admitted() {
			t.Fatalf("Take for another node: admitted %t, %v", g.Admitted(), err)
		}
		return
	}
	for i := range z.AllLimits {
		p := z.AllLimits[i].Params()
		other := ratesync.NewSource(table.New[algorithms.WindowState](p.Kind, 1), SpecOf(&z.Settings, z.AllLimits[i].Rate))
		c := ratesync.NewSayCall(ratesync.NextSeq(new(ratesync.Source)))
		m := table.Said{ID: id, State: cell.State{Seq: c.Seq, Epoch: clock.Now() / int64(p.Epoch()), Totals: []int64{n}}}
		c.Say(other, other.Cells(ratesync.NewKeyspace(by.namespace)), &m, false)
		if err := c.Send(t.Context(), by.client); err != nil {
			t.Fatal(err)
		}
	}
}
