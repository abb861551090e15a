package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// linesOf returns what a configuration logs of operators' enforce, since it was asked last.
func linesOf(logs *observer.ObservedLogs) (lines []string) {
	for _, entry := range logs.TakeAll() {
		f := entry.ContextMap()
		lines = append(lines, fmt.Sprintf("%v %v %v %v %v: %v", f["zone"], f["all"], f["share"], f["by"], f["note"], f["command"]))
	}
	return lines
}

// enforces makes a change as an operator does, or takes it back where there is no share.
func enforces(t *testing.T, c *Config, zone string, share ...float64) {
	t.Helper()
	change := control.Change{Target: control.Target{Zone: zone}, For: time.Hour}
	for i := range share {
		change.Body = control.Body{Share: &share[i], By: "root@web1", Note: "incident 12"}
	}
	if _, err := c.Control().Change(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

// A reload logs once of each zone, however many handlers have it, that an operator's enforce
// precedes another one of the configuration, or once that it does for all zones.
func TestAnOperatorsEnforceIsLoggedAtAReload(t *testing.T) {
	var running *Config
	reload := func(shares ...float64) []string {
		core, logs := observer.New(zap.InfoLevel)
		next := &Config{Logger: zap.New(core), Namespace: t.Name()}
		for i, share := range shares {
			for range 2 {
				z := zoneWith(t, config.Settings{Name: fmt.Sprint("zone ", i), SyncRate: config.Local, Enforce: config.Enforce(share)}, []int64{5})
				z.Redis = nil
				next.Add(z)
			}
		}
		next.Start()
		if running != nil {
			running.Stop()
		}
		running = next
		return linesOf(logs)
	}
	defer func() { running.Stop() }()
	wants := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: it logs %q, want %q", what, got, want)
		}
	}
	const (
		zone0 = "zone 0 <nil> 0.25 root@web1 incident 12: caddy rate-limit enforce 'zone 0' --remove"
		zone1 = "zone 1 <nil> 0 root@web1 incident 12: caddy rate-limit enforce 'zone 1' --remove"
		all   = "<nil> true 0 root@web1 incident 12: caddy rate-limit enforce --all --remove"
	)
	wants("nothing is changed", reload(1, 0.5))
	enforces(t, running, "zone 0", 0.25)
	enforces(t, running, "zone 1", 0)
	wants("both zones are changed", reload(1, 0.5), zone0, zone1)
	wants("one zone is configured as it was changed", reload(1, 0), zone0)
	enforces(t, running, "", 0)
	wants("all are changed", reload(1, 0.5), all)
	wants("all are configured as they were changed", reload(0, 0))
	enforces(t, running, "")
	wants("what holds for all is taken back", reload(0.5, 0.5), zone0, zone1)
	enforces(t, running, "zone 0")
	enforces(t, running, "zone 1")
	wants("all is taken back", reload(0.5, 0.5))
}

// A process that starts learns from Redis what operators have said, and logs it.
func TestAnOperatorsEnforceIsLoggedAtAStart(t *testing.T) {
	server := redistest.Start(t)
	first := borrowing(t, server)
	first.Start()
	enforces(t, first, "login", 0.25)
	settle(t, first)
	first.Stop()
	// A machine may be so busy that Redis' answer comes after the start.
	redistest.Eventually(t, "the line", func() bool {
		core, logs := observer.New(zap.InfoLevel)
		second := borrowing(t, server)
		second.Logger = zap.New(core)
		second.Start()
		second.Stop()
		logs = logs.FilterField(zap.String("zone", "login"))
		return slices.Equal(linesOf(logs), []string{"login <nil> 0.25 root@web1 incident 12: caddy rate-limit enforce 'login' --remove"})
	})
}
