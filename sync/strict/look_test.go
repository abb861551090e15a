package strict

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// dump is all that a Redis holds of a zone, byte for byte.
func dump(t testing.TB, server *redistest.Server, zone string) map[string]string {
	t.Helper()
	c, all := server.Client(), map[string]string{}
	defer c.Close()
	keys, err := c.Keys(t.Context(), "*:"+zone+":*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if all[k], err = c.Dump(t.Context(), k).Result(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// fewRules draws one or two limits of a zone.
func fewRules(rt *rapid.T) (rules []Rule) {
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(kinds))).Draw(rt, "kind")
	counts := rapid.Bool().Draw(rt, "count_denied")
	for i := range rapid.IntRange(1, 2).Draw(rt, "limits") {
		r := kinds[name]
		r.Limit, r.Window = rapid.Int64Range(0, 6).Draw(rt, "limit"), r.Window*time.Duration(i+1)
		r.Burst, r.Queue, r.CountsDenied = min(r.Burst, 4), min(r.Queue, 3), counts
		rules = append(rules, r)
	}
	return rules
}

// isAbout reports whether two decisions are the same, except for the time between them.
func isAbout(a, b algorithms.Decision) bool {
	return a.Result == withDelay(b.Result, a.Delay) &&
		about(a.Delay, b.Delay) && about(a.Retry, b.Retry) && about(a.Next, b.Next) && about(a.Reset, b.Reset)
}

// The law of a look: it says what Take says next, but for the time between the two, and Redis holds
// the same before and after.
func TestALookSaysWhatTakeSaysNext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	denied, admitted, run := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		rules, zone := fewRules(rt), fmt.Sprint("look", run)
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			key := id(rapid.IntRange(0, 1).Draw(rt, "key"))
			// A look also has to wait for what is just being corrected.
			calm := rapid.Bool().Draw(rt, "calm")
			before := map[string]string{}
			if calm {
				// That goes for what the runs before this one corrected last, too. What they left
				// in Redis may end meanwhile.
				redistest.Eventually(t, "nothing is under way", s.isIdle)
				before = dump(t, server, zone)
			}
			stand, said, would, err := s.Look(t.Context(), zone, rules, key, 1)
			if err != nil {
				rt.Fatal(err)
			}
			if calm {
				if after := dump(t, server, zone); !maps.Equal(before, after) {
					rt.Fatalf("a look at %s has changed what redis holds from\n%q to\n%q", zone, before, after)
				}
			}
			is, g, err := s.Take(t.Context(), zone, rules, key, 1, nil)
			if err != nil {
				rt.Fatal(err)
			}
			for i := range is {
				if left := stand[i].Decision.Remaining; would && left != said[i].Decision.Remaining+1 || !would && left < said[i].Decision.Remaining {
					rt.Fatalf("%+v: %d are left, and after it %+v", rules[i], left, said[i].Decision)
				}
				if a, b := said[i].Decision, is[i].Decision; would != g.Admitted() || !isAbout(a, b) {
					rt.Fatalf("%+v: the look says\n%+v, %t, and then it is\n%+v, %t", rules[i], a, would, b, g.Admitted())
				}
			}
			switch rapid.IntRange(0, 3).Draw(rt, "then") {
			case 0:
				s.Refund(g, nil)
			case 1:
				if !g.Admitted() {
					s.Penalize(g)
				}
			}
			if g.Admitted() {
				admitted++
			} else {
				denied++
			}
		}
	})
	if admitted == 0 || denied == 0 {
		t.Errorf("%d admitted, %d denied: not all was compared", admitted, denied)
	}
}

// isIdle reports whether nothing is under way or left to be sent for any zone.
func (s *Limiter) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.zones {
		for _, rs := range all {
			if !rs.isIdle() {
				return false
			}
		}
	}
	return true
}

func withDelay(r algorithms.Result, delay time.Duration) algorithms.Result {
	r.Delay = delay
	return r
}

// about reports whether two waits are the same but for the time that the test took.
func about(a, b time.Duration) bool { return (a - b).Abs() < 10*time.Minute }

// A look remembers nothing on this node, and takes no part in its calls.
func TestALookLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := limiter(t, server.URL)
	seq := s.seq.Load()
	if _, _, _, err := s.Look(t.Context(), "look", []Rule{kinds["token bucket"]}, id(1), 1); err != nil {
		t.Fatal(err)
	}
	if len(s.zones) != 0 || s.made != 0 || s.seq.Load() != seq {
		t.Errorf("%d zones, %d rulesets, %d calls", len(s.zones), s.made, s.seq.Load()-seq)
	}
}
