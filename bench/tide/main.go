// Command tide is Caddy with this module.
package main

import (
	"github.com/caddy-tide/ratelimit/bench/harness"

	_ "github.com/caddy-tide/ratelimit"
)

func main() { harness.Main("tide") }
