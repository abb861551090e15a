package sitetest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

// Ask makes a request to the admin endpoint.
func Ask(method, path, body string) (status int, text string) {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
	if err := Admin().Handler.ServeHTTP(w, r); err != nil {
		failed, ok := err.(caddy.APIError) // as Caddy does, which looks into no error
		if !ok {
			return http.StatusInternalServerError, err.Error()
		}
		return failed.HTTPStatus, failed.Err.Error()
	}
	return w.Code, w.Body.String()
}

// Admin is the admin endpoint.
func Admin() caddy.AdminRoute {
	module, err := caddy.GetModule("admin.api.rate_limit")
	if err != nil {
		panic(err)
	}
	return module.New().(caddy.AdminRouter).Routes()[0]
}

// Changed makes a change, which must succeed.
func Changed(t *testing.T, method, path, body string) operate.Changed {
	t.Helper()
	return AnswerOf[operate.Changed](t, method, path, body)
}

const (
	Overrides   = "/rate_limit/overrides"
	Enforcement = "/rate_limit/enforcement"
)

// AnswerOf asks the admin endpoint, which must answer.
func AnswerOf[T any](t *testing.T, method, path, body string) (answer T) {
	t.Helper()
	status, text := Ask(method, path, body)
	if err := json.Unmarshal([]byte(text), &answer); status != http.StatusOK || err != nil {
		t.Fatalf("%s %s %s = %d %s", method, path, body, status, text)
	}
	return answer
}

// Explained asks the running configuration.
func Explained(t *testing.T, q operate.ExplainRequest) (operate.ExplainedSite, error) {
	t.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		t.Fatal(err)
	}
	return operate.Explain(app.(*caddyhttp.App), q)
}
