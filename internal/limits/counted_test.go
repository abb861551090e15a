package limits

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// What a handler has left behind may read the request's variables: a proxy that was still dialing
// does. Run with -race.
func TestMarkBesideAReaderOfVariables(t *testing.T) {
	r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/", nil), caddy.NewReplacer(), httptest.NewRecorder(), new(caddyhttp.Server))
	started, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		close(started)
		for range 1000 {
			_ = caddyhttp.GetVar(r.Context(), "left behind")
		}
	}()
	<-started
	for range 1000 {
		markCounted(r, []string{"a"})
	}
	<-done
	markCounted(r, []string{"b", "a"})

	if got := countedBefore(r); got != nil {
		t.Errorf("before an error: %q", got)
	}
	failed := r.WithContext(context.WithValue(r.Context(), caddyhttp.ErrorCtxKey, errors.New("failed")))
	if got := countedBefore(failed); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("on the error route: %q", got)
	}
}
