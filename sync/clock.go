package ratesync

// keepTime brings the tables to the server's time.
func (r *Replicator) keepTime(server, start, end int64) {
	r.mu.Lock()
	best := r.clock.Read(server, start, end)
	r.mu.Unlock()
	for _, s := range r.attached() {
		s.table.SetClock(r.now(), best.Offset, best.Uncertainty)
		s.companion().SetClock(best.Offset)
	}
}
