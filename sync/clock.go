package ratesync

import "time"

// keepTime brings the tables to the server's time.
func (r *Replicator) keepTime(server, start, end int64) {
	r.mu.Lock()
	best := r.clock.Read(server, start, end)
	r.trip.Store(int64(r.clock.RoundTrip()))
	r.mu.Unlock()
	for _, s := range r.attached() {
		s.table.SetClock(r.now(), best.Offset, best.Uncertainty)
		if bans := s.bans.Load(); bans != nil {
			bans.SetClock(best.Offset)
		}
	}
}

// Ahead is how far the server's clock is ahead, 0 before the first heartbeat is answered.
func (r *Replicator) Ahead() time.Duration { return r.clockNow().Offset }

// RoundTrip is how long a heartbeat takes there and back, the shortest of the last few; 0 before
// the first is answered.
func (r *Replicator) RoundTrip() time.Duration { return time.Duration(r.trip.Load()) }
