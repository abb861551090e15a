package strict

import (
	_ "embed"
	"fmt"
	"maps"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-tide/ratelimit/internal/ban"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// In a zone with bans a call looks at the ban of its key first. Where there is one, it decides
// nothing.

//go:embed ban.lua
var banLua string

// unbanned is the script of cells that looks at a ban first.
var unbanned = ratesync.ScriptOfCells(ratesync.BanLua + banLua)

// Carry has the calls for a zone look at its bans first from now on, nil for none.
func (s *Limiter) Carry(zone string, r *ban.Register) {
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

// A Banned is the error of a call for a key that is banned.
type Banned struct {
	// Message is what was asked, and Answer what Redis has.
	ban.Message
	ban.Answer
}

func (*Banned) Error() string { return "the key is banned" }

// RedisError makes it an error like those that the client returns.
func (*Banned) RedisError() {}

// bannedBy returns what an error says of a ban, the error itself where it is another one.
func bannedBy(m ban.Message, err error) error {
	if !redis.HasErrorPrefix(err, "BANNED") {
		return err
	}
	a, ok := ratesync.ParseBan(strings.TrimPrefix(fmt.Sprint(err), "BANNED "))
	if !ok {
		return ratesync.ErrReply
	}
	return &Banned{m, a}
}
