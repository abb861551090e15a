package simulate

import (
	"fmt"
	"net/http"

	"github.com/caddy-tide/ratelimit/internal/accesslog"
	"github.com/caddy-tide/ratelimit/internal/config"
	"github.com/caddy-tide/ratelimit/internal/limits"
)

// Trials are what candidates are, for zones in which a request is denied or counts by more than its
// units: each other limit is a zone, which is asked as the one is that it stands for.

// addTrials has a zone of which candidates would not tell what other limits do have trials in their
// place.
func (r *replay) addTrials(s *zoneStats) error {
	if !s.of.Settles() && s.of.ClassMatchers == nil {
		return nil
	}
	for _, w := range s.windows {
		w.candidates = nil
		for _, n := range w.numbers {
			o := s.of.ZoneOptions
			o.Namespace = fmt.Sprintf("%s, %d in %s", o.Namespace, n, w.limit.Rate.Window)
			o.Limits, o.Ban = []config.Rate{w.limit.Rate}, config.Ban{}
			o.Matchers, o.Except = nil, nil // it is asked when the other one was
			z, err := limits.NewZone(o)
			if err != nil {
				return err
			}
			z.AllLimits[0] = z.AllLimits[0].Overridden(n)
			trial := &zoneStats{of: z, report: Zone{Answered: Answers{}}}
			r.copies, r.stats[z] = append(r.copies, z), trial
			s.trials, w.trials = append(s.trials, z), append(w.trials, trial)
		}
	}
	return nil
}

// try asks the trials of a zone. None is asked together with another one, which would refund what
// it gave.
func (r *replay) try(s *zoneStats, rec *accesslog.Record, q *http.Request) error {
	for i := range s.trials {
		if _, err := r.ask(s.trials[i:i+1], rec, q); err != nil {
			return err
		}
	}
	return nil
}
