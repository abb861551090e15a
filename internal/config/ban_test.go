package config

import (
	"testing"
	"time"
)

// Denied requests are synced early as the zone's requests are, and not where that is off.
func TestDenialsAreSyncedEarlyAsTheZoneSays(t *testing.T) {
	for _, early := range []bool{true, false} {
		z := Settings{EarlySync: early, SyncRate: SyncRate(time.Second), Ban: Ban{For: time.Hour, After: Rate{Limit: 3, Window: time.Hour}}}
		if d := z.DenialsOf(time.Second); d.EarlySync != early {
			t.Errorf("early_sync %t: denied requests are synced early %t", early, d.EarlySync)
		}
	}
}
