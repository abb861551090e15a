package operate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// logged is a zone of its own configuration, whose keys may be logged or not.
func logged(t *testing.T, redis *limits.Redis, s config.Settings, logKeys bool) (z *limits.Zone, c *lifecycle.Config, stop func()) {
	t.Helper()
	s.Key, s.SubWindows, s.IPv4Prefix, s.IPv6Prefix, s.EarlySync = keyOfRequests, 1, 32, 64, true
	z, err := limits.NewZone(limits.ZoneOptions{Settings: s, Redis: redis, Sweep: time.Minute, Logger: zap.NewNop(), LogKeys: logKeys, Once: new(warning.Once)})
	if err != nil {
		t.Fatal(err)
	}
	c, stop = running(redis, "", []*limits.Zone{z})
	return z, c, stop
}

// send sends so many requests of a key.
func send(t *testing.T, z *limits.Zone, key string, n int) {
	t.Helper()
	for range n {
		e, err := limits.Evaluate([]*limits.Zone{z}, request(key), clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		e.Free()
	}
}

// shown is the keys of the only limit, and what they used.
func shown(t *testing.T, c *lifecycle.Config, by limits.TopBy, n int) string {
	t.Helper()
	all, err := TopOf(t.Context(), c, "", by, false, n)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, k := range all[0].Keys {
		if len(k.ID) != 32 {
			t.Errorf("an ID is %q", k.ID)
		}
		text = append(text, fmt.Sprint(k.Key, " ", k.Used))
	}
	return strings.Join(text, ", ")
}

// The keys that used the most come first. Their texts are there once they have come again, for who
// logs keys.
func TestTopShowsTheKeysThatUsedTheMost(t *testing.T) {
	for _, logKeys := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			z, c, stop := logged(t, nil, config.Settings{Name: "z", SyncRate: config.Local, MaxKeys: 100, Limits: []config.Rate{{Limit: 50, Window: time.Hour}}}, logKeys)
			defer stop()
			for i, key := range []string{"a", "b", "c", "d"} {
				send(t, z, key, 10*(i+1))
			}
			if got := shown(t, c, limits.ByUsed, 3); got != " 40,  30,  20" {
				t.Errorf("at first it shows %q", got)
			}
			send(t, z, "d", 1)
			send(t, z, "b", 1)
			send(t, z, "a", 1)
			want := "d 41,  30, b 21"
			if !logKeys {
				want = " 41,  30,  21"
			}
			if got := shown(t, c, limits.ByUsed, 3); got != want {
				t.Errorf("log_key %t: it shows %q, want %q", logKeys, got, want)
			}
		})
	}
}

// A walk waits for its turn, a second after the last one, unless whoever asks has gone.
func TestWalksFollowEachOtherSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, stop := logged(t, nil, config.Settings{Name: "z", SyncRate: config.Local, MaxKeys: 100, Limits: []config.Rate{{Limit: 50, Window: time.Hour}}}, true)
		defer stop()
		shown(t, c, limits.ByUsed, 1)
		began := time.Now()
		for range 3 {
			shown(t, c, limits.ByUsed, 1)
		}
		if took := time.Since(began); took < 3*walkPause {
			t.Errorf("three walks took %s", took)
		}
		gone, cancel := context.WithTimeout(t.Context(), walkPause/2)
		defer cancel()
		if _, err := TopOf(gone, c, "", limits.ByUsed, false, 1); err == nil {
			t.Error("a walk is made for who has gone")
		}
		shown(t, c, limits.ByUsed, 1) // and the next one has its turn
	})
}

// What requests ask for is known by key where counts sync, and there is an error elsewhere.
func TestTopByAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := inMemory()
		defer server.Close()
		defer client.Close()
		redis := borrowed(client, "test", time.Second)
		defer redis.Close()
		zone := config.Settings{Name: "login", SyncRate: config.SyncRate(time.Hour), MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: 30 * 24 * time.Hour}}}
		z, c, stop := logged(t, redis, zone, true)
		send(t, z, "a", 7)
		send(t, z, "b", 30)
		send(t, z, "c", 4)
		all, err := TopOf(t.Context(), c, "login", limits.ByAsked, false, 10)
		if err != nil || len(all) != 1 || len(all[0].Keys) != 3 || *all[0].Keys[0].Asked != 30 || all[0].Keys[0].Denied != 25 || all[0].Keys[1].Denied != 2 {
			t.Errorf("%+v, %v; want 30 asked and 25 denied, 7 and 2, 4 and 0", all, err)
		}
		for query, want := range map[[2]string]string{
			{"logins", "used"}: `there is no zone "logins"`,
			{"login", "most"}:  `by: unknown value "most"; use used, asked or denied`,
		} {
			if _, err := TopOf(t.Context(), c, query[0], limits.TopBy(query[1]), false, 10); err == nil || err.Error() != want {
				t.Errorf("%v: %v, want %s", query, err, want)
			}
		}
		if _, err := TopOf(t.Context(), c, "login", limits.ByUsed, false, MaxTopKeys+1); err == nil {
			t.Error("there is no bound on n")
		}
		stop()
		zone.SyncRate = config.Local
		_, c, stop = logged(t, nil, zone, true)
		defer stop()
		if _, err := TopOf(t.Context(), c, "login", limits.ByAsked, false, 10); err == nil || !strings.Contains(err.Error(), "write used or denied") {
			t.Errorf("by asked without a sync: %v", err)
		}
	})
}

// Who is denied is known at once in every mode, with the name for who logs keys, also of keys that
// are denied without being counted; in shadow mode it is told apart.
func TestTopByDenied(t *testing.T) {
	month := 30 * 24 * time.Hour
	for name, test := range map[string]struct {
		settings config.Settings
		want     string
	}{
		"local":       {config.Settings{SyncRate: config.Local, MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: month}}}, "[5: b 25+0 of 5, a 2+0 of 5]"},
		"an interval": {config.Settings{SyncRate: config.SyncRate(time.Hour), MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: month}}}, "[5: b 25+0 of 5, a 2+0 of 5]"},
		"strict":      {config.Settings{SyncRate: config.Strict, MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: month}}}, "[5: b 25+0 of 5, a 2+0 of 5]"},
		"shadow":      {config.Settings{SyncRate: config.Local, Enforce: config.Enforce(0), MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: month}}}, "[5: b 0+25 of 5, a 0+2 of 5]"},
		"two limits":  {config.Settings{SyncRate: config.Local, MaxKeys: 100, Limits: []config.Rate{{Limit: 50, Window: month}, {Limit: 5, Window: 2 * month}}}, "[50:] [5: b 25+0 of 5, a 2+0 of 5]"},
		"no room":     {config.Settings{SyncRate: config.Local, MaxKeys: 1, Limits: []config.Rate{{Limit: 5, Window: month}}}, "[5: b 25+0 of 0, a 2+0 of 5]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			server, client := inMemory()
			defer server.Close()
			defer client.Close()
			redis := borrowed(client, "test", time.Second)
			defer redis.Close()
			test.settings.Name = "denied " + name
			z, c, stop := logged(t, redis, test.settings, true)
			defer stop()
			send(t, z, "a", 7)
			send(t, z, "b", 30)
			send(t, z, "c", 4)
			all, err := TopOf(t.Context(), c, z.Name, limits.ByDenied, false, 10)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, top := range all {
				var rows []string
				for _, k := range top.Keys {
					rows = append(rows, fmt.Sprintf(" %s %d+%d of %d", k.Key, k.Denied, k.WouldDeny, k.Used))
				}
				got = append(got, fmt.Sprintf("[%d:%s]", top.Limit, strings.Join(rows, ",")))
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("it shows %s, want %s", text, test.want)
			}
		})
	}
}

// Who was denied is still known after a reload, while the zone stays.
func TestTopByDeniedAfterAReload(t *testing.T) {
	zone := config.Settings{Name: "denied and reloaded", SyncRate: config.Local, MaxKeys: 100, Limits: []config.Rate{{Limit: 5, Window: 30 * 24 * time.Hour}}}
	z, _, stop := logged(t, nil, zone, true)
	send(t, z, "a", 7)
	next, then, end := logged(t, nil, zone, true)
	defer end()
	stop()
	send(t, next, "a", 1)
	all, err := TopOf(t.Context(), then, zone.Name, limits.ByDenied, false, 10)
	if err != nil || len(all) != 1 || len(all[0].Keys) != 1 || all[0].Keys[0].Denied != 3 {
		t.Errorf("%+v, %v; want 3 denials of a", all, err)
	}
}
