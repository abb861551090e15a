package strict

import (
	"context"
	"errors"
	"time"
)

// lookTime is how long a look waits for corrections of its key that are on their way.
const lookTime = time.Second

// Look returns how the rules stand, and what Take would get now for n units. It spends nothing:
// Redis writes nothing for it. What this node is about to correct for the key is waited for a
// moment. admitted reports whether each limit would grant them. An error means that Redis does not
// decide.
func (s *Limiter) Look(ctx context.Context, zone string, rules []Rule, id [16]byte, n int64) (stand, all []Verdict, admitted bool, err error) {
	if err := s.unavailable(id); err != nil {
		return nil, nil, false, err
	}
	rs := s.find(zone, rules)
	if rs == nil { // nobody has asked yet, and nothing is remembered of a look
		if rs, err = newRuleset(s.keys, zone, rules, s.node); err != nil {
			return nil, nil, false, err
		}
	}
	for end := time.Now().Add(lookTime); rs.corrects(id) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return nil, nil, false, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	c := call{id: id, rules: rules, batches: []batch{{rules: rules}, {rules: rules, runs: []run{{1, n}}}}, reset: s.resetOf(zone, id)}
	said, err := s.call(rs, rs.keysOf(id), c)
	var newer *overtaken
	if errors.As(err, &newer) {
		c.reset = newer.by
		said, err = s.call(rs, rs.keysOf(id), c)
	}
	if err != nil {
		return nil, nil, false, err
	}
	admitted = len(said[1].denied) == 0
	return verdicts(rules, said[0], place{}, nil), verdicts(rules, said[1], place{cost: n, admitted: admitted}, nil), admitted, nil
}

// find returns the ruleset of a zone's rules, nil where there is none.
func (s *Limiter) find(zone string, rules []Rule) *ruleset {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range s.zones[zone] {
		if rs.has(rules) {
			return rs
		}
	}
	return nil
}

// corrects reports whether something is still to be sent for a key though no request waits.
func (rs *ruleset) corrects(id [16]byte) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	q := rs.queues[id]
	return q != nil && q.unfinished()
}
