// Command tide is Caddy with this module.
package main

import (
	_ "github.com/caddy-tide/ratelimit"
	"github.com/caddy-tide/ratelimit/bench/harness"
	_ "github.com/caddy-tide/ratelimit/bench/touch"
)

func main() { harness.Main("tide") }
