package simulate

import (
	"maps"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/sim"
)

// A banStore has the bans of a zone that nodes share, as Redis has them.
type banStore struct {
	net  *sim.Network
	bans map[ban.ID]ban.State
}

// carry returns what goes along with the sync of a node: it tells of the bans that began there, and
// asks for those of keys.
func (s *banStore) carry(bans *ban.Register) func(ids []keys.ID) (exchange func()) {
	return func(ids []keys.ID) func() {
		asks := bans.Drain(s.net.Now(), 1<<20, nil)
		for _, id := range ids {
			asks = append(asks, bans.Ask(id, s.net.Now()))
		}
		if len(asks) == 0 {
			return nil
		}
		return func() {
			for _, m := range asks {
				bans.Ack(s.net.Now(), s.net.Now()/1000, m, s.answer(m))
			}
		}
	}
}

// answer is what the script does. Nobody resets a key here.
func (s *banStore) answer(m ban.Message) ban.State {
	if had, ok := s.bans[m.ID]; m.Length > 0 && (!ok || m.End() > had.End()) {
		s.bans[m.ID] = m.State
	}
	if s.isOver(m.ID, s.bans[m.ID]) {
		delete(s.bans, m.ID)
	}
	return s.bans[m.ID]
}

// isOver reports whether a ban is over and not remembered.
func (s *banStore) isOver(_ ban.ID, b ban.State) bool { return !b.IsRemembered(s.net.Now() / 1000) }

// expire drops the bans that are over.
func (s *banStore) expire() { maps.DeleteFunc(s.bans, s.isOver) }
