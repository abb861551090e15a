//go:build !unix

package harness

import "time"

var start = time.Now()

// CPUTime is the time itself, where there is no other.
func CPUTime() time.Duration { return time.Since(start) }
