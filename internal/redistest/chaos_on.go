//go:build chaos

package redistest

// Chaos is set in `make chaos`: all seeds, long loads, an hour.
const Chaos = true
