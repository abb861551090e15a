package lifecycle

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

const (
	// farFor is how many seconds in a row Redis must be too far away before that is said: the first
	// heartbeats also make connections.
	farFor = 10
	// strictTrips and syncTrips are how many round trips strict_timeout and sync_rate should have.
	strictTrips, syncTrips = 3, 10
)

// distance is what is known of how far away Redis is. Only the goroutine that keeps house uses it.
type distance struct {
	seconds int // in a row that it was too far
	told    bool
}

// roundTrip is how long Redis takes to answer, by heartbeats or by a circuit that is open: in a
// Cluster they ask different servers. It is 0 where it is not known.
func roundTrip(r *limits.Redis) time.Duration {
	return max(r.Replicator.RoundTrip(), r.Strict.RoundTrip())
}

// checkDistance warns once where the way to Redis and back takes too long for strict_timeout or for
// the sync_rate of a zone. trip is 0 where it is not known. It is to be called every second.
func (c *Config) checkDistance(trip time.Duration) {
	fields := c.tooShort(trip)
	if len(fields) == 0 || c.distance.told || c.Once.IsQuiet(warning.FarRedis) {
		c.distance.seconds = 0
		return
	}
	if c.distance.seconds++; c.distance.seconds == farFor {
		c.distance.told = true
		c.Logger.Warn("redis is too far away for these settings, so nodes hear of each other late or decide alone; write what is named here, or use a redis that is nearer",
			append([]zap.Field{warning.Field(warning.FarRedis), zap.String("round_trip", trip.Round(time.Millisecond).String())}, fields...)...)
	}
}

// tooShort returns the settings that are too short for a round trip, and what to write.
func (c *Config) tooShort(trip time.Duration) (fields []zap.Field) {
	var zones []string
	shortest, strict := time.Duration(0), false
	for _, z := range c.zones {
		every := time.Duration(z.SyncRate)
		switch {
		case z.Redis == nil || z.SyncRate < 0:
		case z.SyncRate == config.Strict:
			strict = strict || trip > c.StrictTimeout/2
		case trip > every/4:
			if !slices.Contains(zones, z.Name) {
				zones = append(zones, z.Name)
			}
			if shortest == 0 || every < shortest {
				shortest = every
			}
		}
	}
	advise := func(trips int) string { return (time.Duration(trips) * trip).Round(10 * time.Millisecond).String() }
	if strict {
		fields = append(fields, zap.String("strict_timeout", c.StrictTimeout.String()), zap.String("write_strict_timeout", advise(strictTrips)))
	}
	if len(zones) > 0 {
		fields = append(fields, zap.Strings("zones", zones), zap.String("sync_rate", shortest.String()), zap.String("write_sync_rate", advise(syncTrips)))
	}
	return fields
}
