//go:build race

package ratelimit

// raced is set where the detector of races runs.
const raced = true
