package lifecycle

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/limits"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/warning"
)

// evaluates sends a request through the zones and reports whether it is admitted.
func evaluates(t *testing.T, zones ...*limits.Zone) bool {
	t.Helper()
	return evaluatesIn(t.Context(), t, zones...)
}

func evaluatesIn(ctx context.Context, t *testing.T, zones ...*limits.Zone) bool {
	t.Helper()
	r := caddyhttp.PrepareRequest(httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{})
	e, err := limits.Evaluate(zones, r, clock.Now())
	if err != nil {
		t.Error(err)
		return false
	}
	defer e.Free()
	return !e.Denied
}

// waited is a context that tells when somebody waits for its end.
type waited struct {
	context.Context
	by func()
}

func (w waited) Done() <-chan struct{} {
	w.by()
	return w.Context.Done()
}

// Caddy may start to serve before it starts this app. A request to a zone that syncs, or that
// begins with what was saved, waits for that then, and knows soon what is spent; others don't wait.
func TestARequestBeforeTheStart(t *testing.T) {
	server := redistest.Start(t)
	first := borrowing(t, server, "login", 50*time.Millisecond)
	first.Start()
	for evaluates(t, first.zones[0]) {
	}
	settle(t, first)
	first.Stop()

	process := limits.Starting
	limits.Starting = limits.NewStartUp()
	defer func() { limits.Starting = process }()
	second := borrowing(t, server, "login", 50*time.Millisecond)
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
	o.Name, o.Restored = "restored", true
	restored, err := limits.NewZone(o)
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Release()
	answers := make(chan bool, 2)
	for _, z := range []*limits.Zone{second.zones[0], restored} {
		waits := make(chan struct{})
		ctx := waited{t.Context(), sync.OnceFunc(func() { close(waits) })}
		go func() { answers <- evaluatesIn(ctx, t, z) }()
		select {
		case <-waits:
		case <-answers:
			t.Fatalf("a request to zone %s has not waited for the start", z.Name)
		}
	}
	second.Start()
	<-answers
	<-answers
	redistest.Eventually(t, "the node knows that the key is spent", func() bool {
		raw, room := []byte("all"), int64(1)
		if k, none := second.zones[0].KeyOf(httptest.NewRequest(http.MethodGet, "/", nil)); !none {
			raw = k.Raw
		}
		for l := range second.Each {
			room, _ = l.Table.Room(l.Effective, keys.KeyOf(raw), raw, clock.Now())
		}
		return room == 0
	})
	for i := range 10 {
		if evaluates(t, second.zones[0]) {
			t.Errorf("request %d is admitted of a key that is spent", i)
		}
	}
}
