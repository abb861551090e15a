package lifecycle

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/answer"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/control"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/metrics"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// zoneWith is a zone with some limits a minute and a Redis, as if it were compiled.
func zoneWith(t *testing.T, s config.Settings, all []int64) *limits.Zone {
	s.MaxKeys, s.IPv4Prefix, s.IPv6Prefix, s.SubWindows = 10, 32, 64, 1
	for i, n := range all {
		s.Limits = append(s.Limits, config.Rate{Limit: n, Window: time.Duration(i+1) * time.Minute})
	}
	z, err := limits.NewZone(limits.ZoneOptions{Settings: s, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(z.Release)
	z.Redis = new(limits.Redis)
	return z
}

// A zone that has skipped a thousand requests since its configuration started, and met no other, is
// told of once. That nothing came is not.
func TestAZoneThatSkipsEverything(t *testing.T) {
	except := caddyhttp.MatcherSets{{caddyhttp.MatchPath{"/*"}}}
	var emptied, loss config.Settings
	emptied.EmptyKey, loss.OnRedisLoss = config.EmptySkip, config.LossAllow
	for name, c := range map[string]struct {
		settings config.Settings
		except   caddyhttp.MatcherSets
		before   answer.Reason
		skipped  int
		other    []answer.Reason
		want     string
	}{
		"excepted":           {except: except, before: answer.Skipped, skipped: 1000, want: "were in its except"},
		"empty":              {settings: emptied, before: answer.Skipped, skipped: 1000, want: "had an empty key; write"},
		"either":             {settings: emptied, except: except, before: answer.Skipped, skipped: 1000, want: "had an empty key or were"},
		"admitted before":    {except: except, before: answer.Admitted, skipped: 1000, want: "were in its except"},
		"fewer":              {except: except, before: answer.Skipped, skipped: 999},
		"none":               {except: except, before: answer.Skipped},
		"admitted":           {except: except, before: answer.Skipped, skipped: 1000, other: []answer.Reason{answer.Admitted}},
		"denied":             {except: except, before: answer.Skipped, skipped: 1000, other: []answer.Reason{answer.Denied}},
		"banned":             {except: except, before: answer.Skipped, skipped: 1000, other: []answer.Reason{answer.Banned}},
		"would deny":         {except: except, before: answer.Skipped, skipped: 1000, other: []answer.Reason{answer.WouldDeny}},
		"neither":            {before: answer.Skipped, skipped: 1000},
		"allowed by a loss":  {settings: loss, except: except, before: answer.Skipped, skipped: 1000},
		"without any metric": {except: except, skipped: -1},
	} {
		core, logs := observer.New(zap.WarnLevel)
		c.settings.Name = "skips " + name
		z := zoneWith(t, c.settings, []int64{5})
		z.Except = c.except
		config := &Config{Logger: zap.New(core), zones: []*limits.Zone{z, z}, Once: new(warning.Once)}
		var counts *metrics.ZoneCounters
		if c.skipped >= 0 {
			counts = metrics.NewZoneCounters(z.Name)
			t.Cleanup(counts.Release)
		}
		for range 2000 {
			counts.Count(c.before)
		}
		config.before, _ = metrics.ByZone()
		for range c.skipped {
			counts.Count(answer.Skipped)
		}
		for _, r := range c.other {
			counts.Count(r)
		}
		config.checkSkipped()
		config.checkSkipped()
		lines := logs.All()
		if c.want == "" && len(lines) > 0 || c.want != "" && (len(lines) != 1 || !strings.Contains(lines[0].Message, c.want)) {
			t.Errorf("%s: logged %v, want %q", name, lines, c.want)
		}
	}
}

// A configuration looks for zones that skip everything once a minute, and what was counted before
// it started is not its own.
//
// bubble: it runs in one.
func TestSkippedRequestsAreLookedFor(t *testing.T) {
	counts := metrics.NewZoneCounters("looked for")
	defer counts.Release()
	synctest.Test(t, func(t *testing.T) {
		z := zoneWith(t, config.Settings{Name: "looked for"}, []int64{5})
		z.Except, z.Redis, z.Sweep = caddyhttp.MatcherSets{{caddyhttp.MatchPath{"/*"}}}, nil, time.Minute
		counts.Count(answer.Admitted)
		core, logs := observer.New(zap.WarnLevel)
		config := &Config{Logger: zap.New(core), Once: new(warning.Once), Namespace: t.Name(), zones: []*limits.Zone{z}}
		config.Start()
		for range limits.UncountedRequests {
			counts.Count(answer.Skipped)
		}
		time.Sleep(3 * time.Minute)
		if n := logs.Len(); n != 1 {
			t.Errorf("%d warnings, want one", n)
		}
		config.Stop()
	})
}

// What was set at run time before a configuration started, and may surprise, is told when it
// starts: whoever looks why nobody is limited reads the log of the node.
//
// bubble: it runs in one.
func TestWhatWasSetAtRunTimeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := zoneWith(t, config.Settings{Name: "login"}, []int64{5})
		z.Redis, z.Sweep = nil, time.Minute
		core, logs := observer.New(zap.WarnLevel)
		c := &Config{Logger: zap.New(core), Once: new(warning.Once), Namespace: t.Name(), zones: []*limits.Zone{z}}
		c.Start()
		defer c.Stop()
		for _, set := range []struct {
			zone, limit string
			share       float64
		}{{"", "", 0}, {"login", "", 0.25}, {"gone", "", 0}, {"gone", "unlimited", -1}, {"login", "unlimited", -1}} {
			ch := control.Change{Target: control.Target{Zone: set.zone}, Body: control.Body{Limit: set.limit, Note: "ticket"}, For: control.Forever}
			if set.limit == "" {
				ch.Share = &set.share
			} else {
				ch.Key = new(keys.ID)
			}
			if _, err := c.Control().Change(t.Context(), ch); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		got := map[string]int{}
		for _, line := range logs.All() {
			got[line.Message]++
		}
		want := map[string]int{
			`the overrides of zone "gone", 1 in all, have no effect here, as the configuration doesn't have that zone; if other nodes have it, all is well, and if it was renamed, set them for its new name, and then remove these by ` + "`caddy rate-limit override 'gone' --file /dev/null --replace --force`": 1,
			"all zones: enforced for no key, as was set at run time; end that by `caddy rate-limit enforce --all --remove`, with --address where admin listens elsewhere than at localhost:2019":                                                                                                                   1,
			`zone "login": enforced for 25 % of the keys only, as was set at run time; end that by ` + "`caddy rate-limit enforce 'login' --remove`, with --address where admin listens elsewhere than at localhost:2019":                                                                                          1,
		}
		if !maps.Equal(got, want) {
			t.Errorf("logged %v, want %v", got, want)
		}
	})
}
