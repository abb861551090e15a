//go:build race

package redistest

// Raced is set where the race detector runs.
const Raced = true
