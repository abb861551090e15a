// Command caddy is the Caddy web server with rate_limit in it: the same program that xcaddy builds
// with the arguments in xcaddy.txt.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-tide/ratelimit"
)

func main() { caddycmd.Main() }
