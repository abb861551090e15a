package table

import (
	"math"
	"slices"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/saved"
)

// Save returns what all keys have spent that a decision can still use. A log keeps no more of its
// hits than their number per window.
func (t *Table[S]) Save(now int64) saved.Counts {
	b := t.config.Load()
	if b == nil {
		return nil
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock().in(now)
	t.saved.Prune(b.limit, now)
	left := t.saved.Left()
	var few fewSaved
	t.eachFew(func(_ *shard[S], _ uint32, e entry[S]) {
		few.reports = t.appendReports(few.reports, b.limit, &e.state, now)
		few.ids, few.ends = append(few.ids, e.id), append(few.ends, len(few.reports))
	}, func() { few.into(left) })
	return left
}

// fewSaved is what is read under one hold of a lock. It is used over and over, so that nothing is
// allocated meanwhile.
type fewSaved struct {
	ids     []ID
	ends    []int // of each key's reports
	reports []algorithms.Report
}

func (f *fewSaved) into(counts saved.Counts) {
	begin := 0
	for i, end := range f.ends {
		if begin < end {
			counts[f.ids[i]] = slices.Clone(f.reports[begin:end])
		}
		begin = end
	}
	f.ids, f.ends, f.reports = f.ids[:0], f.ends[:0], f.reports[:0]
}

// appendReports appends what a key has spent that a decision can still use.
func (t *Table[S]) appendReports(dst []algorithms.Report, l algorithms.Limit, s *S, now int64) []algorithms.Report {
	if t.machine.Idle(s, l, now) {
		return dst
	}
	t.machine.Advance(s, l, now)
	ledger, first := t.machine.Ledger(s), len(dst)
	for age := range int64(l.History + 1) {
		if c, ok := ledger.At(ledger.Epoch - age); ok && c.Total() > 0 {
			dst = append(dst, algorithms.Report{Epoch: ledger.Epoch - age, Remote: c.Total(), Own: c.Own})
		}
	}
	level, rate := t.machine.Level(s, l, now)
	if level > 0 {
		level = math.Nextafter(level, math.Inf(1)) // whoever reads it rounds down
		if len(dst) == first {
			dst = append(dst, algorithms.Report{Epoch: ledger.Epoch})
		}
	}
	if len(dst) > first {
		// 0 says something too: what a bucket has counted has drained
		dst[first].Level, dst[first].LevelAt, dst[first].Rate = level, now, rate
	}
	return dst
}

// Resume restores what an earlier process saved of a limit. It replaces what was not restored of an
// earlier Resume. Keys that are in the table already, because requests came first, restore theirs
// at once. It returns of how many keys a decision can still use what was saved.
func (t *Table[S]) Resume(p algorithms.Params, now int64, counts saved.Counts) int {
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock().in(now)
	l := p.Compile()
	t.saved.Replace(counts, p.Epoch())
	left := t.saved.Prune(l, now)
	t.each(func(_ *shard[S], _ uint32, e entry[S]) { t.restore(&e.state, l, now, e.id) })
	return left
}

// restore brings saved counts of a key back, if there are any. What this node had admitted itself
// is its own again, so that it is sent: the other nodes send theirs.
func (t *Table[S]) restore(s *S, l algorithms.Limit, now int64, id ID) bool {
	reports := t.saved.Take(id, l, now)
	if reports == nil {
		return false
	}
	t.machine.Merge(s, l, now, reports)
	ledger := t.machine.Ledger(s)
	for _, r := range reports {
		if c, ok := ledger.At(r.Epoch); ok {
			c.Own, c.Remote = c.Own+r.Own, max(0, c.Remote-r.Own)
			ledger.Put(r.Epoch, c)
		}
	}
	ledger.ResetAcks() // no store knows of it under this name
	return true
}
