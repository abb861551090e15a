package control

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

// tenThousand are the rules of a zone with as many overrides.
func tenThousand() *Rules {
	var all []parsed
	for i := range MaxEntries {
		id := keys.IDOf(fmt.Append(nil, "vip", i))
		all = append(all, parsed{Target: Target{Zone: "zone", Key: &id}, override: &Override{Deny: true}})
	}
	zones, _ := compile(slices.Values(all))
	return zones["zone"]
}

// A key that was found to have no override is remembered, and no other one is taken for it.
func TestMissesAreRemembered(t *testing.T) {
	r := tenThousand()
	for round := range 3 {
		for i := range MaxEntries {
			vip, plain := fmt.Append(nil, "vip", i), fmt.Append(nil, "plain", i)
			if r.Override(keys.KeyOf(vip), vip) == nil || r.Override(keys.KeyOf(plain), plain) != nil {
				t.Fatalf("round %d: key %d is mixed up", round, i)
			}
		}
	}
}
