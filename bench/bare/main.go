// Command bare is Caddy without a rate limiter.
package main

import (
	"github.com/caddy-tide/ratelimit/bench/harness"
)

func main() { harness.Main("bare") }
