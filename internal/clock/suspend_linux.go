package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended returns how far CLOCK_BOOTTIME, which goes on while the machine sleeps, is ahead of
// CLOCK_MONOTONIC, which doesn't. Where the process has lost the CPU between the readings, it is
// not known: the time until the process got it back would look like a suspend.
func suspended() (time.Duration, bool) {
	for range 10 {
		var before, boot, after unix.Timespec
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &before) != nil ||
			unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil ||
			unix.ClockGettime(unix.CLOCK_MONOTONIC, &after) != nil {
			return 0, false
		}
		if after.Nano()-before.Nano() < int64(suspendNoise/10) {
			return time.Duration(boot.Nano() - before.Nano()), true
		}
	}
	return 0, false
}
