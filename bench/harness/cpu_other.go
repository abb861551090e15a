//go:build !unix

package harness

import "time"

var start = time.Now()

// cpuTime is the time itself, where there is no other.
func cpuTime() time.Duration { return time.Since(start) }
