package lifecycle

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// evaluates sends a request through the zones and reports whether it is admitted.
func evaluates(t *testing.T, zones ...*limits.Zone) bool {
	t.Helper()
	r := caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, "/", nil), caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	e, err := limits.Evaluate(zones, r, clock.Now())
	if err != nil {
		t.Error(err)
		return false
	}
	defer e.Free()
	return !e.Denied
}

// Caddy may start to serve before it starts this app. A request to a zone that syncs waits for that
// then, and knows soon what is spent; others don't wait.
func TestARequestBeforeTheStart(t *testing.T) {
	server := redistest.Start(t)
	first := borrowing(t, server)
	first.Start()
	for evaluates(t, first.zones[0]) {
	}
	settle(t, first)
	first.Stop()

	process := limits.Starting
	limits.Starting = limits.NewStartUp()
	defer func() { limits.Starting = process }()
	second := borrowing(t, server)
	defer second.Stop()
	o := second.zones[0].ZoneOptions
	o.Name, o.SyncRate, o.Logger, o.Once = "local", -1, zap.NewNop(), new(warning.Once)
	local, err := limits.NewZone(o)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Release()
	evaluates(t, local)
	if limits.Starting.IsOver() {
		t.Fatal("a request to a zone that doesn't sync has waited for the start")
	}
	answers := make(chan bool, 1)
	go func() { answers <- evaluates(t, second.zones[0]) }()
	redistest.Pause(50 * time.Millisecond)
	if len(answers) > 0 {
		t.Error("a request to a zone that syncs has not waited for the start")
	}
	second.Start()
	more := 0
	if <-answers {
		more++
	}
	client := server.Client()
	for range 10 {
		redistest.Pause(10 * time.Millisecond)
		for range 5 {
			client.Ping(t.Context())
		}
		if evaluates(t, second.zones[0]) {
			more++
		}
	}
	if more > 2 {
		t.Errorf("%d are admitted of a key that is spent, want 2 at most", more)
	}
}
