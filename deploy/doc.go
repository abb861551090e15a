// Package deploy runs rate_limit in containers: compose.yaml, kubernetes/ and the Caddyfiles of
// both. It has tests only, and is a module of its own, so that nobody who uses the other one
// downloads what reads these files.
package deploy
