//go:build race

package sim

// raced is set where the detector of races runs.
const raced = true
