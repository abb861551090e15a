package operate

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/internal/lifecycle"
)

// serves asks a path by a method, and returns the status, the methods that the answer says there
// are, and the error.
func serves(t *testing.T, method, path string) (status int, allow, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	err := Serve(w, httptest.NewRequest(method, path, strings.NewReader("{}")))
	if err == nil {
		return w.Code, w.Header().Get("Allow"), ""
	}
	var withStatus caddy.APIError
	if !errors.As(err, &withStatus) {
		t.Errorf("%s %s: the error %q has no status", method, path, err)
	}
	return withStatus.HTTPStatus, w.Header().Get("Allow"), err.Error()
}

// Each path has its methods and no others: a browser that is led to one changes nothing by GET, and
// nothing is changed by a method that is spelled wrong.
func TestEachPathHasItsMethods(t *testing.T) {
	const get, post, deletes = http.MethodGet, http.MethodPost, http.MethodDelete
	methods := map[string][]string{
		OverridesPath: {get, post, deletes}, EnforcementPath: {get, post, deletes}, BulkPath: {post, deletes}, ResetPath: {post},
		ExplainPath: {post}, TopPath: {get}, BansPath: {get}, NodesPath: {get},
	}
	if had, want := slices.Sorted(maps.Keys(endpoints)), slices.Sorted(maps.Keys(methods)); !slices.Equal(had, want) {
		t.Errorf("the paths are %v, want %v", had, want)
	}
	c := &lifecycle.Config{Logger: zap.NewNop(), Namespace: t.Name()}
	c.Start()
	stop := c.Stop
	defer func() { stop() }()
	for path, has := range methods {
		for _, method := range []string{get, http.MethodHead, post, http.MethodPut, http.MethodPatch, deletes, http.MethodOptions, "post"} {
			status, allow, text := serves(t, method, path)
			switch list := strings.Join(has, ", "); {
			case slices.Contains(has, method):
				if status == http.StatusMethodNotAllowed || allow != "" {
					t.Errorf("%s %s = %d with Allow %q, want an answer", method, path, status, allow)
				}
			case status != http.StatusMethodNotAllowed || allow != list || !strings.Contains(text, "use "+has[0]):
				t.Errorf("%s %s = %d with Allow %q and %q, want 405 with %q", method, path, status, allow, text, list)
			}
		}
	}
	if status, _, _ := serves(t, get, Root+"nothing"); status != http.StatusNotFound {
		t.Errorf("GET of a path that there is not = %d, want 404", status)
	}
	c.Stop()
	stop = func() {}
	for path, has := range methods {
		if status, _, text := serves(t, has[0], path); status != http.StatusServiceUnavailable {
			t.Errorf("%s %s = %d %s where no configuration runs, want 503", has[0], path, status, text)
		}
	}
}
