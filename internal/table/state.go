package table

import (
	"math"
	"slices"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// FewSaved are counts of a few keys: what is read under one hold of a lock. It is used over and
// over, so that nothing is allocated meanwhile.
type FewSaved struct {
	ids     [][16]byte
	ends    []int // of each key's reports
	reports []algorithms.Report
}

// Into moves them to counts.
func (f *FewSaved) Into(counts SavedCounts) {
	begin := 0
	for i, end := range f.ends {
		if begin < end {
			counts[f.ids[i]] = slices.Clone(f.reports[begin:end])
		}
		begin = end
	}
	f.ids, f.ends, f.reports = f.ids[:0], f.ends[:0], f.reports[:0]
}

// appendReports appends what a key has spent that a decision can still use. m is the machine of its
// state.
func appendReports[S any](dst []algorithms.Report, m algorithms.Machine[S], l algorithms.Limit, s *S, at int64) []algorithms.Report {
	if m.Idle(s, l, at) {
		return dst
	}
	if _, ok := m.(algorithms.Bucketed[S]); ok {
		if level, rate := m.Level(s, l, at); level > 0 {
			level = math.Nextafter(level, math.Inf(1)) // whoever reads it rounds down
			dst = append(dst, algorithms.Report{Level: level, LevelAt: at, Rate: rate})
		}
		return dst
	}
	m.Take(s, l, at, 0, 0)
	c := *s // at that instant, and so what Advance makes room for is not kept
	m.Advance(&c, l, at)
	ledger := m.Ledger(&c)
	for age := range int64(l.History + 1) {
		if c, ok := ledger.At(ledger.Epoch - age); ok && c.Total() > 0 {
			dst = append(dst, algorithms.Report{Epoch: ledger.Epoch - age, Remote: c.Total(), Own: c.Own})
		}
	}
	return dst
}

// restoreSaved brings what was saved of a key back into its state. What this node had admitted
// itself is its own again, so that it is sent: the other nodes send theirs.
func restoreSaved[S any](m algorithms.Machine[S], l algorithms.Limit, s *S, at int64, reports []algorithms.Report) {
	m.Merge(s, l, at, reports)
	ledger := m.Ledger(s)
	for _, r := range reports {
		if c, ok := ledger.At(r.Epoch); ok && r.Own > 0 {
			c.Remote = max(0, c.Remote-r.Own)
			ledger.Put(r.Epoch, c)
			m.Adopt(s, l, r.Epoch, r.Own)
		}
	}
	ledger.ResetAcks() // no store knows of it as this node's
}
