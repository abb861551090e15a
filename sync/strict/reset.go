package strict

import (
	"fmt"
	"maps"
	"time"

	"github.com/caddy-tide/ratelimit/internal/reset"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Reset has the calls to come of a zone go by its resets.
func (s *Limiter) Reset(zone string, set *reset.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]*reset.Set)
	if all := s.resets.Load(); all != nil {
		maps.Copy(next, *all)
	}
	if next[zone] = set; set == nil {
		delete(next, zone)
	}
	if len(next) == 0 {
		s.resets.Store(nil)
		return
	}
	s.resets.Store(&next)
}

// resetOf is the reset that a key is under.
func (s *Limiter) resetOf(zone string, id [16]byte) (r reset.Reset) {
	if all := s.resets.Load(); all != nil {
		r = (*all)[zone].Of(id)
	}
	return r
}

// Reset is the one that the key was under when Redis decided.
func (g Grant) Reset() reset.Reset { return g.reset }

// IsUpToDate reports whether a key has had no later reset in its zone since Redis decided.
func (s *Limiter) IsUpToDate(g Grant) bool {
	return s.resets.Load() == nil || s.resetOf(g.ruleset.zone, g.id).Stamp <= g.reset.Stamp
}

// under brings the queue under a reset, if that is a later one: what is to be corrected of what
// came before is forgiven.
func (q *queue) under(r reset.Reset) {
	if r.Stamp > q.reset.Stamp {
		q.reset = r
		q.pending, q.sent, q.rollBack, q.denied = nil, nil, 0, nil
	}
}

// An overtaken is the answer to a call under a reset that is not the latest: nothing was done.
type overtaken struct{ by reset.Reset }

func (o *overtaken) Error() string { return "the key was reset" }

// parseOvertaken reads {-2, at, stamp, end}, the answer to a call under an earlier reset. It
// returns nil for another answer.
func parseOvertaken(v any, under reset.Reset) *overtaken {
	all, _ := v.([]any)
	if len(all) != 4 || all[0] != int64(-2) {
		return nil
	}
	n, ok := parseNumbers(all)
	if !ok || n[2] <= under.Stamp || n[3] <= 0 {
		return nil
	}
	us := int64(time.Microsecond)
	return &overtaken{reset.Reset{Stamp: n[2], At: n[2] * us, Until: min(n[3], ratesync.MaxExact/4) * us}}
}

// resetInLua is the argument that tells a script of a reset, behind another number.
func resetInLua(first int64, r reset.Reset) any {
	if r.Stamp == 0 {
		return first
	}
	us := int64(time.Microsecond)
	return fmt.Sprintf("%d %d %d %d", first, r.Stamp, r.Until/us, r.At/us)
}
