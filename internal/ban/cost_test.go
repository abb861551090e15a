package ban

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// What a banned key costs in memory is what docs/internals/costs.md says: between two of the sizes
// that a map takes, and with what is to be sent.
func TestBytesPerBan(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	least, most := int64(1<<40), int64(0)
	for _, shared := range []bool{false, true} {
		for _, bans := range []int{60_000, 100_000, 150_000} {
			r := register(bans)
			if shared {
				r.Share(cycle.NewWaker())
			}
			before := heap()
			for i := range bans {
				var id ID
				binary.BigEndian.PutUint64(id[8:], uint64(i))
				id[0] = byte(i) // spreads them over the stripes, as digests are
				r.Begin(id, start, time.Hour)
			}
			each := (heap() - before) / int64(bans)
			least, most = min(least, each), max(most, each)
			t.Logf("%d bans, to be sent: %t: %d bytes each", bans, shared, each)
			runtime.KeepAlive(r)
		}
	}
	if least < 50 || most > 160 {
		t.Errorf("%d to %d bytes a ban, want what docs/internals/costs.md says", least, most)
	}
}
