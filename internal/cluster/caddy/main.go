// Command caddy is cmd/caddy for tests: it asks the DNS server that TIDE_TEST_DNS names, so that a
// name can begin to resolve.
package main

import (
	"context"
	"net"
	"os"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-tide/ratelimit"
)

func main() {
	if server := os.Getenv("TIDE_TEST_DNS"); server != "" {
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", server)
		}}
	}
	caddycmd.Main()
}
