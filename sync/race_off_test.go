//go:build !race

package ratesync

// raced is set where the detector of races runs.
const raced = false
