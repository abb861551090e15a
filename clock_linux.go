package ratelimit

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended is how far CLOCK_BOOTTIME, which goes on while the machine sleeps, is ahead of CLOCK_MONOTONIC, which doesn't.
func suspended() (time.Duration, bool) {
	var mono, boot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return 0, false
	}
	return time.Duration(boot.Nano() - mono.Nano()), true
}
