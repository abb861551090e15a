package validate

import (
	"testing"

	"github.com/caddy-tide/ratelimit/internal/sim/scenario"
)

// A measurement within what is allowed says something only if no weaker model is allowed it.
func TestWeakerModelsAreFarFromWhatIsAllowed(t *testing.T) {
	for _, s := range Scenarios() {
		allowed, exact := s.Allowed(), s.Exact()
		if exact.Least < allowed.Least || exact.Most > allowed.Most {
			t.Errorf("%s: %v are allowed, which leaves out the %v of one exact counter", s.Name, allowed, exact)
		}
		for name, m := range map[string]scenario.Model{"Kong's model": scenario.Kong, "early_sync off": scenario.Scaled} {
			if weaker := s.Predict(m); weaker.Least <= allowed.Most {
				t.Errorf("%s: %v are allowed, and %s admits %v", s.Name, allowed, name, weaker)
			}
		}
	}
}
