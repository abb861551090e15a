package limits

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Driven is a table of a configuration that is never started: who drives it sweeps and syncs it in
// a time of its own.
type Driven interface {
	ratesync.Table
	Configure(b table.SyncConfig, maxKeys int)
	Sweep(now int64)
}

// Drive returns the limit's table for one who drives it, and how it is to be configured if it
// syncs, without a Wake and an After.
func (l *Limit) Drive() (Driven, table.SyncConfig) {
	return l.upkeep.(Driven), l.syncConfig(time.Duration(l.Settings.SyncRate))
}
