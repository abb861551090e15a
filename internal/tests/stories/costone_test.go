// bubble: all of a story runs in one.

package stories

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A cost of 1 is no cost: with `cost 1`, clients, operators, Redis, the log and the metrics see
// what they see without it, in each algorithm and mode.
func TestACostOfOneIsNoCost(t *testing.T) {
	begin(t)
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket\nqueue 2"} {
		for _, rate := range []string{"local", "1s", "strict"} {
			without, with := tell(t, costless(algorithm, rate, "")), tell(t, costless(algorithm, rate, "cost 1"))
			first := slices.IndexFunc(with, isStep)
			if got, want := with[first:], without[slices.IndexFunc(without, isStep):]; !slices.Equal(got, want) {
				t.Errorf("%s %s with `cost 1`, and with - without it:\n%s", algorithm, rate, strings.Join(Diff(want, got), "\n"))
			}
			if lines := strings.Join(with[first:], "\n"); !strings.Contains(lines, ": 200") || !strings.Contains(lines, ": 429") {
				t.Errorf("%s %s: none was admitted, or none denied:\n%s", algorithm, rate, lines)
			}
		}
	}
}

// costless is a story of two zones that deny, one of which has a limit of 1.
func costless(algorithm, rate, option string) []string {
	const config = `{
	rate_limit {
		redis redis://redis:6379
	}
}
:80 {
	rate_limit {
		headers ietf kong
		zone api {
			limit 3/1h
			algorithm %s
			sync_rate %s
			%s
		}
		zone small {
			match header Small *
			limit 1/1h
			sync_rate %[2]s
			%[3]s
		}
	}
}
> load
> get x2
> get Small=yes
> get ip=192.0.2.1 x4
> wait 2s
> get x3
> get Small=yes
> POST /rate_limit/explain {"zone":"api","key":"203.0.113.9"}
> wait 2s
> redis holds
> metrics rate_limit`
	return strings.Split(fmt.Sprintf(config, algorithm, rate, option), "\n")
}
