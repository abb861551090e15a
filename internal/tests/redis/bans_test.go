package redis_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// Redis says that a key is banned, for which this node's register of bans has no room: the node
// decides by its counters then, whatever it does while Redis is lost.
func TestABanForWhichThereIsNoRoomIsNoLossOfRedis(t *testing.T) {
	r := redistest.Start(t)
	block := func(maxKeys string) string {
		return sitetest.ZoneBlock("bans", "sync_rate 0\nlimit 2/30d\nalgorithm fixed_window\nban 1d after 1/30d\non_redis_loss allow\nmax_keys "+maxKeys)
	}
	s := sitetest.NewSite(t, sitetest.AppWith(r), block("1000"))
	redistest.Eventually(t, "the sync begins", func() bool { return !s.Lost("bans") })
	s.Admits("1.0.0.1", 1, 1)
	cells := r.Do("KEYS", "test:*:bans:f-*").([]any)
	for i := range 3 {
		s.Admits(fmt.Sprint("2.0.0.", i), 3, 2)
	}
	s2 := sitetest.NewSite(t, sitetest.AppWith(r), block("2"))
	s.End()
	redistest.Eventually(t, "the sync begins", func() bool { return !s2.Lost("bans") })
	cell := cells[0].(string)
	parts := strings.Split(cell, ":")
	ban := strings.Join(append(slices.Clone(parts[:len(parts)-2]), "ban", parts[len(parts)-1]), ":")
	seconds := r.Do("TIME").([]any)[0]
	r.Do("SET", ban, fmt.Sprint(seconds, "000000 86400000000 0"))
	s2.Admits("1.0.0.1", 5, 1)
}
