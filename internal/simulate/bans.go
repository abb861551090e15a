package simulate

import (
	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/sim"
)

// A banStore has the bans of a zone that nodes share, as Redis has them.
type banStore struct {
	net  *sim.Network
	held map[ban.ID]ban.Said
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
		answers := make([]ban.Said, len(asks))
		for i, m := range asks {
			answers[i] = l.answer(m)
		}
		return func() {
			for i, a := range answers {
				l.bans.Ack(l.net.Now(), l.net.Now()/1000, asks[i], a)
			}
		}
	}
}

// answer is what the script does. Nobody resets a key here.
func (s *banStore) answer(m ban.Message) ban.Said {
	if had, ok := s.held[m.ID]; m.Length > 0 && (!ok || m.Begun > had.Begun) {
		s.held[m.ID] = m.Said
	}
	s.drop(m.ID)
	return s.held[m.ID]
}

// drop drops a ban that is over and not remembered.
func (s *banStore) drop(id ban.ID) {
	if !s.held[id].IsRemembered(s.net.Now() / 1000) {
		delete(s.held, id)
	}
}

// expire drops the bans that are over.
func (s *banStore) expire() {
	for id := range s.held {
		s.drop(id)
	}
}
