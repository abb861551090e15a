// Command peer is Caddy with the older plugin, which has the same module ID as this one and so
// needs a program of its own. It is a module of its own, so that the others build where that plugin
// can't be had:
//
//	cd peer && go get github.com/mholt/caddy-ratelimit@latest && go mod tidy
package main

import (
	_ "github.com/mholt/caddy-ratelimit"

	"github.com/caddy-tide/ratelimit/bench/harness"
)

func main() { harness.Main("peer") }
