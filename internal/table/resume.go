package table

import (
	"sync"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Saved is what keys had spent, by their IDs: what outlives a process. To the process that takes it up it is spent elsewhere.
type Saved map[ID][]algorithms.Report

// resume holds what an earlier process saved until the keys come back: only their IDs were kept, and where a key belongs in this process
// is known when a request brings it.
type resume struct {
	mu    sync.Mutex
	saved Saved
}

func (r *resume) take(id ID) []algorithms.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	reports := r.saved[id]
	delete(r.saved, id)
	return reports
}

// Save returns what all keys have spent that a decision can still use. A log keeps no more of its hits than their number per window.
func (t *Table[S]) Save(now int64) Saved {
	b := t.background.Load()
	if b == nil {
		return nil
	}
	now += t.offset.Load()
	saved := make(Saved)
	t.walking.Lock()
	defer t.walking.Unlock()
	t.each(func(_ *shard[S], _ uint32, e *entry[S]) {
		alg, s := b.Algorithm, &e.state
		if alg.Idle(s, now) {
			return
		}
		alg.Roll(s, now)
		l := alg.Ledger(s)
		var reports []algorithms.Report
		for age := range int64(alg.Live() + 1) {
			if c := l.At(l.Epoch - age); c != nil && c.Total() > 0 {
				reports = append(reports, algorithms.Report{Epoch: l.Epoch - age, Elsewhere: c.Total()})
			}
		}
		if level := alg.Level(s, now); level > 0 {
			if len(reports) == 0 {
				reports = []algorithms.Report{{Epoch: l.Epoch}}
			}
			reports[0].Level, reports[0].LevelAt = level, now
		}
		if reports != nil {
			saved[e.id] = reports
		}
	})
	return saved
}

// Resume takes up what an earlier process saved. It replaces what was not taken up of an earlier Resume.
func (t *Table[S]) Resume(saved Saved) {
	t.resume.mu.Lock()
	defer t.resume.mu.Unlock()
	t.resume.saved = saved
}
