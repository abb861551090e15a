package strict

import (
	"errors"
	"maps"

	"github.com/caddy-tide/ratelimit/internal/ban"
)

// In a zone with bans a call looks at the ban of its key, too. Where there is one, it grants
// nothing.

// ErrBanned is the error of a call for a key that is banned.
var ErrBanned = errors.New("the key is banned")

// CheckBans has the calls for a zone look at its bans from now on, nil for none.
func (s *Limiter) CheckBans(zone string, r *ban.Register) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]*ban.Register)
	if had := s.bans.Load(); had != nil {
		maps.Copy(all, *had)
	}
	if all[zone] = r; r == nil {
		delete(all, zone)
	}
	s.bans.Store(&all)
}

// bansOf returns the bans of a zone, nil for none.
func (s *Limiter) bansOf(zone string) *ban.Register {
	if all := s.bans.Load(); all != nil {
		return (*all)[zone]
	}
	return nil
}
