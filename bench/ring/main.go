// Command ring is Caddy with a stand-in for the older plugin, see package handler.
package main

import (
	"github.com/caddy-tide/ratelimit/bench/harness"
	_ "github.com/caddy-tide/ratelimit/bench/ring/handler"
)

func main() { harness.Main("ring") }
