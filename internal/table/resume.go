package table

import (
	"github.com/caddy-tide/ratelimit/algorithms"
)

// Save returns what all keys have spent that a decision can still use. A log keeps no more of its
// hits than their number in each sixteenth of the window.
func (t *Table[S]) Save(now int64) SavedCounts {
	b := t.config.Load()
	if b == nil {
		return nil
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	at := t.in(now)
	t.saved.Prune(b.Limit, at)
	left := t.saved.Left()
	var few FewSaved
	t.eachFew(func(_ *stripe[S], _ uint32, e entry[S]) {
		few.reports = appendReports(few.reports, t.machine, b.Limit, &e.state, at)
		few.ids, few.ends = append(few.ids, e.id), append(few.ends, len(few.reports))
	}, func() { few.Into(left) })
	return left
}

// Resume restores what an earlier process saved of a limit. It replaces what was not restored of an
// earlier Resume. Keys that are in the table already, because requests came first, restore theirs
// at once. It returns of how many keys a decision can still use what was saved.
func (t *Table[S]) Resume(p algorithms.Params, now int64, counts SavedCounts) int {
	t.walking.Lock()
	defer t.walking.Unlock()
	at, l := t.in(now), p.Compile()
	t.saved.Replace(counts, p.Epochs())
	left := t.saved.Prune(l, at)
	t.each(func(_ *stripe[S], _ uint32, e entry[S]) { t.restore(&e.state, l, at, t.saved.Take(e.id, l, at)) })
	return left
}

// restore brings saved counts of a key back, if there are any.
func (t *Table[S]) restore(s *S, l algorithms.Limit, at int64, reports []algorithms.Report) {
	if reports != nil {
		restoreSaved(t.machine, l, s, at, reports)
	}
}
