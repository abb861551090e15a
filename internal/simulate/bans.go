package simulate

import (
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/sim"
)

// A banStore has the bans of a zone that nodes share, as Redis has them.
type banStore struct {
	net  *sim.Network
	held map[ban.ID]ban.Ban
}

// banLink takes the bans of a node along with its sync. It fulfills sim.Companion.
type banLink struct {
	*banStore
	bans *ban.Register
}

// Ask tells of the bans that began here, and asks for those of keys.
func (l banLink) Ask(ids []keys.ID) (ask func() (ack func())) {
	asks := l.bans.Drain(l.net.Now(), 1<<20, nil)
	for _, id := range ids {
		asks = append(asks, l.bans.Ask(id, l.net.Now()))
	}
	if len(asks) == 0 {
		return nil
	}
	return func() func() {
		answers := make([]ban.Answer, len(asks))
		for i, m := range asks {
			answers[i] = l.answer(m)
		}
		return func() {
			for i, a := range answers {
				l.bans.Ack(l.net.Now(), asks[i], a)
			}
		}
	}
}

// answer is what ban.lua does.
func (s *banStore) answer(m ban.Message) ban.Answer {
	now := s.net.Now()
	b := s.held[m.ID]
	if m.Length > 0 {
		b = ban.Later(b, ban.Ban{Begun: now - int64(m.Length-m.Rest), Length: m.Length})
		s.held[m.ID] = b
	}
	if b.Rest(now) == 0 {
		return ban.Answer{}
	}
	return ban.Answer{Rest: b.Rest(now), Length: b.Length, Stamp: b.Begun / 1000}
}

// expire drops the bans that are over.
func (s *banStore) expire() {
	for id, b := range s.held {
		if b.Rest(s.net.Now()) == 0 {
			delete(s.held, id)
		}
	}
}
