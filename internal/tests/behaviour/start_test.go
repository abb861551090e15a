package behaviour_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/lifecycle"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/tests/sitetest"
)

// A node that starts knows what is spent before it has admitted more than two requests that come 10
// ms apart, and the time of some calls to Redis on this machine. The requests come as soon as the
// app has started.
func TestASpentKeyAtANodesStart(t *testing.T) {
	r := redistest.Start(t)
	client := r.Client()
	defer client.Close()
	for name, options := range map[string]string{
		"fixed": "algorithm fixed_window", "sliding": "algorithm sliding_window", "log": "algorithm sliding_log",
		"token": "algorithm token_bucket", "gcra": "algorithm gcra", "leaky": "algorithm leaky_bucket\nqueue 0",
	} {
		begin := func() *sitetest.Site {
			return sitetest.NewSite(t, sitetest.AppWith(r), sitetest.ZoneBlock("starts-"+name, "limit 10/30d\n"+options))
		}
		s := begin()
		for range 20 {
			s.Get("1.2.3.4")
		}
		s.End()
		for start := range 20 {
			s := begin()
			more := 0
			for range 10 {
				if s.Get("1.2.3.4").Status == http.StatusOK {
					more++
				}
				redistest.Pause(10 * time.Millisecond)
				for range 5 {
					client.Ping(t.Context())
				}
			}
			s.End()
			if more > 2 {
				t.Errorf("%s, start %d: %d of 10 are admitted of a key that is spent, want 2 at most", name, start, more)
			}
		}
	}
}

// With a Redis that doesn't answer a node starts about a second later, says so, and admits.
func TestAStartWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	proxy := faultproxy.Start(t, server.Addr)
	proxy.Set(faultproxy.Blackhole)
	away := *server
	away.Addr = proxy.Addr
	for name, r := range map[string]*redistest.Server{"hangs": &away, "refuses": refusing(t)} {
		app := sitetest.AppWith(r)
		app.Namespace = "away-" + name
		began := time.Now()
		s := sitetest.NewSite(t, app, sitetest.ZoneBlock("away-"+name, "limit 3/1h"))
		took := time.Since(began)
		s.Admits("1.2.3.4", 5, 3)
		if took < time.Second {
			t.Errorf("%s: started after %v, before Redis had a second to answer", name, took)
		}
		began = time.Now()
		second := sitetest.NewSite(t, app, sitetest.ZoneBlock("away-"+name, "limit 4/1h"))
		if reload := time.Since(began); reload > took/2 {
			t.Errorf("%s: a reload with the same Redis took %v, a start %v; want no wait", name, reload, took)
		}
		s.End()
		second.End()
	}
}

// refusing is a server that was there.
func refusing(t *testing.T) *redistest.Server {
	r := redistest.Start(t)
	r.Kill()
	return r
}

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
