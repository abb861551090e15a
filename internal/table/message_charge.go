package table

import (
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/reset"
)

// A Charge is what this node decided of one key while a store that decides by itself could not be
// asked, on its way to that store. Until it comes back through AckCharge or FailCharge its key has
// no other, and isn't changed by what the store reports.
type Charge struct {
	Key keys.Key
	ID  keys.ID
	algorithms.Debt
	// Reset is the one that the key counted under when it was taken out, and Offset that of the
	// table then.
	Reset  reset.Reset
	Offset Offset
}

// HoldAt returns the instant that the store's reports hold for, 0 if they don't say.
func HoldAt(reports []algorithms.Report) (at int64) {
	for _, r := range reports {
		at = max(at, r.LevelAt)
	}
	return at
}

// overtaken is by how much a report of the store may be older than the one before it. It is then a
// late reply, and ignored. One that is older still shows that the store's clock was set back, and
// counts.
const overtaken = int64(time.Second)

// IsOvertaken reports whether what holds at an instant is a late reply, after one for last.
func IsOvertaken(at, last int64) bool { return at != 0 && at < last && last-at < overtaken }
