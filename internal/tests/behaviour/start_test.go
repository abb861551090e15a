package behaviour_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// With a Redis that doesn't answer a node starts, says so, and admits. A reload with the same Redis
// doesn't wait for it again.
func TestAStartWithoutRedis(t *testing.T) {
	proxy, gone := faultproxy.Start(t, redistest.Start(t).Addr), redistest.Start(t)
	for name, c := range map[string]struct {
		address string
		ends    func()
		back    func() // else the end waits for Redis
	}{
		"hangs":   {proxy.Addr, func() { proxy.Set(faultproxy.Blackhole) }, func() { proxy.Set(faultproxy.None) }},
		"refuses": {gone.Addr, gone.Kill, gone.Restart},
	} {
		c.ends()
		s := sitetest.StartCaddy(t, "rate_limit {\nredis redis://"+c.address+"?timeout=30s\nnamespace away-"+name+"\n}",
			"rate_limit {\n"+sitetest.ZoneBlock("away-"+name, "limit 3/30d\nalgorithm fixed_window")+"}\nrespond ok")
		s.Answers("HTTP/1.1", 5, http.StatusOK, 3)
		for _, when := range []string{"a start", "a start and a reload"} {
			if n := loggedMessages(s, notAnswered); n != 1 {
				t.Errorf("%s: after %s %d lines say that Redis was waited for, want 1", name, when, n)
			}
			reload(s)
		}
		s.Answers("HTTP/1.1", 1, http.StatusTooManyRequests, 1)
		c.back()
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	}
}

const notAnswered = "redis has not answered at the start; until it does, zones decide as their on_redis_loss says, by default with this node's counts alone"

// A configuration that fails to start after it has told a Redis of this node leaves no lease there.
func TestALoadThatFailsGivesItsLeaseBack(t *testing.T) {
	r := &reloads{redis: [2]*redistest.Server{redistest.Start(t), redistest.Start(t)}, tight: 50}
	taken, free := takenPort(t)
	defer free()
	r.taken, r.Lifetime = taken, sitetest.NewLifetime(t)
	r.Load(r.written(""))
	defer func() { _ = caddy.Stop() }()
	other := r.redis[1]
	beats := func() int { return other.Calls("hset") }
	for i := 0; beats() == 0; i++ { // Caddy starts apps in any order
		if i == 100 {
			t.Fatal("in 100 loads the app was never the first to start")
		}
		r.reload(4)
		if left := fmt.Sprint(other.Do("KEYS", "*nodes")); left != "[]" {
			t.Fatalf("load %d failed and has left %s", i, left)
		}
	}
	if lifecycle.Current() == nil {
		t.Error("the configuration before it has gone")
	}
}

// Two regions with one Redis are an error when their addresses are known.
func TestTwoRegionsWithOneRedis(t *testing.T) {
	t.Setenv("REDIS_EU", "redis://127.0.0.1:1")
	for us, want := range map[string]string{"redis://127.0.0.1:1/0": "regions eu and us have the same Redis, redis://127.0.0.1:1/0", "redis://127.0.0.1:2": ""} {
		t.Setenv("REDIS_US", us)
		config, err := sitetest.Adapt("{\nadmin off\nrate_limit {\nregions {\nhere eu\nregion eu {$REDIS_EU}\nregion us {env.REDIS_US}\n}\n}\n}\nhttp://a.example {\nrate_limit 5/30d\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		var c caddy.Config
		if err := json.Unmarshal(config, &c); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&c); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("the second region at %s: %v, want an error of %q", us, err, want)
		}
	}
}
