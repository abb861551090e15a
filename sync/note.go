package ratesync

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/cycle"
)

// noteLoss notes that the server has lost something that it had confirmed, or may have.
func (r *Replicator) noteLoss(sure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health.NoteLoss(sure)
}

// foundLoss is noteLoss for what a sync has found. All is sent again after a heartbeat, which
// begins now. It finds the same loss; after all was sent, it would take that for a second one.
func (r *Replicator) foundLoss() {
	r.noteLoss(true)
	if r.resendDue() {
		r.Beat()
	}
}

func (r *Replicator) resendDue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.health.ResendDue(time.Now())
}

// resend has every table send all live totals again if that is due. Keys that get a request go with
// the next sync. The rest waits, and goes in a sync of its own: all nodes send theirs within a time
// in which the server can serve others as well, each at its own point of it, as the syncs of nodes
// that began together fall together.
func (r *Replicator) resend(nodes int64) {
	again, sure := false, false
	r.log(func(h *Health, now time.Time) (e *LogEntry) {
		again, sure, e = h.Resend(now)
		return e
	})
	if !again {
		return
	}
	all, keys := r.attached(), 0
	for _, s := range all {
		keys += s.table.Forgotten(r.now(), sure)
		if bans := s.bans.Load(); bans != nil {
			bans.Resend()
		}
	}
	within := cycle.ResendTime(nodes, keys)
	for _, s := range all {
		if a := s.current.Load(); a != nil {
			a.resendRestAt.Store(r.now() + int64(NodeOffset(s.node, within)))
			s.Wake() // its loop waits until then
		}
	}
}

// resendRest makes the rest dirty if it is time for that, or no time is left.
func (s *TableSyncer) resendRest(a *attachment, now int64) {
	when := a.resendRestAt.Load()
	if when == 0 || now < when && !a.flushing || !a.resendRestAt.CompareAndSwap(when, 0) {
		return
	}
	s.table.ResendRest()
}

// attached are the tables that are synced.
func (r *Replicator) attached() (all []*TableSyncer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.counts.links {
		all = append(all, l.syncer.(*TableSyncer))
	}
	return all
}

// note records how the sync of a table or, where l is nil, something else went.
func (r *Replicator) note(l *link, name string, err error) {
	r.log(func(h *Health, now time.Time) *LogEntry {
		if _, attached := r.counts.links[l]; l != nil && !attached {
			return nil // it has left, and nobody would record that it works again
		}
		return h.Note(name, err, now)
	})
}

// noteForeign logs that a key of a table can't be synced.
func (r *Replicator) noteForeign(s *TableSyncer, why string) {
	r.log(func(h *Health, now time.Time) *LogEntry { return h.ForeignKey(s.spec.Zone, why, now) })
}

// Report notes that something else that uses this Redis fails, by a name, or works again. It is
// over when a heartbeat is answered and nothing was reported for a while: who reports may be gone
// by then.
func (r *Replicator) Report(name string, err error) {
	r.log(func(h *Health, now time.Time) *LogEntry { return h.Report(name, err, now) })
}

// log logs what the health says. f is called under the lock, which is not held while it is logged.
func (r *Replicator) log(f func(h *Health, now time.Time) *LogEntry) {
	r.mu.Lock()
	e := f(&r.health, time.Now())
	r.mu.Unlock()
	if e != nil {
		r.logger.Log(e.Level, e.Message, e.Fields...)
	}
}
