package table

import (
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
)

// What one request costs is no number of attempts: a request of 2^20 units, admitted or denied, is
// one.
func TestAttemptsAreRequests(t *testing.T) {
	p := algorithms.Params{Kind: algorithms.FixedWindow, Limit: 1000, Window: time.Minute}
	tab := newTable(100, p)
	tab.Configure(SyncConfig{Params: p, Rate: time.Second}, 100)
	raw := []byte("client")
	key, l := keys.KeyOf(raw), p.Compile()
	taken := tab.Take(l, key, raw, t0, 900, 0)
	if !taken.Allowed || tab.Take(l, key, raw, t0, 1<<20, 0).Allowed || !tab.Take(l, key, raw, t0, 0, 0).Allowed {
		t.Fatal("900 of 1000 are not admitted, or 2^20 are, or nothing can't be read")
	}
	counts := func(units int64, attempts uint32) {
		t.Helper()
		tab.With(key, func(s *algorithms.WindowState) {
			if l := window.Ledger(s); l.Cur.Own != units || l.Attempts != attempts {
				t.Errorf("%+v, want %d units and %d attempts", *l, units, attempts)
			}
		})
	}
	counts(900, 2)
	tab.Refund(l, key, taken, 900)
	counts(0, 1)
}
