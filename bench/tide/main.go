// Command tide is Caddy with this module.
package main

import (
	"github.com/caddy-tide/ratelimit/bench/harness"

	_ "github.com/caddy-tide/ratelimit"
	_ "github.com/caddy-tide/ratelimit/bench/touch"
)

func main() { harness.Main("tide") }
