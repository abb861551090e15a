package sitetest

import (
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-tide/ratelimit/internal/operate"
)

// Explained asks the running configuration.
func Explained(t *testing.T, q operate.ExplainRequest) (operate.ExplainedSite, error) {
	t.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		t.Fatal(err)
	}
	return operate.Explain(app.(*caddyhttp.App), q)
}
