package table

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Saved is what keys had spent, by their IDs: what outlives a process. To the process that takes
// it up it is spent elsewhere.
type Saved map[ID][]algorithms.Report

// resume holds what an earlier process saved until the keys come back: only their IDs were kept,
// and where a key belongs in this process is known when a request brings it. It is in parts with a
// lock each, so that no request waits for a walk over all of it.
type resume struct {
	saved atomic.Pointer[savedParts] // nil where nothing is left
}

const resumeParts = 1024

// savedParts are what was saved, and the length of the epochs that it counts in.
type savedParts struct {
	epoch int64
	parts [resumeParts]resumePart
}

type resumePart struct {
	mu    sync.Mutex
	saved Saved
}

func partOf(id ID) uint { return (uint(id[0])<<8 | uint(id[1])) % resumeParts }

// replace puts what was saved in place of what is held.
func (r *resume) replace(saved Saved, epoch time.Duration) {
	if len(saved) == 0 {
		r.saved.Store(nil)
		return
	}
	all := &savedParts{epoch: int64(epoch)}
	for id, reports := range saved {
		p := &all.parts[partOf(id)]
		if p.saved == nil {
			p.saved = make(Saved, len(saved)/resumeParts)
		}
		p.saved[id] = reports
	}
	r.saved.Store(all)
}

// take takes out what was saved of a key, nil if nothing was.
func (r *resume) take(id ID) (reports []algorithms.Report, epoch int64) {
	all := r.saved.Load()
	if all == nil {
		return nil, 0
	}
	p := &all.parts[partOf(id)]
	p.mu.Lock()
	defer p.mu.Unlock()
	reports = p.saved[id]
	delete(p.saved, id)
	return reports, all.epoch
}

// Save returns what all keys have spent that a decision can still use. A log keeps no more of its
// hits than their number per window.
func (t *Table[S]) Save(now int64) Saved {
	b := t.config.Load()
	if b == nil {
		return nil
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock().in(now)
	t.prune(b.limit, now)
	saved := t.resume.left()
	var few fewSaved
	t.eachFew(func(_ *shard[S], _ uint32, e entry[S]) {
		few.reports = t.appendReports(few.reports, b.limit, &e.state, now)
		few.ids, few.ends = append(few.ids, e.id), append(few.ends, len(few.reports))
	}, func() { few.into(saved) })
	return saved
}

// fewSaved is what is read under one hold of a lock. It is used over and over, so that nothing is
// allocated meanwhile.
type fewSaved struct {
	ids     []ID
	ends    []int // of each key's reports
	reports []algorithms.Report
}

func (f *fewSaved) into(saved Saved) {
	begin := 0
	for i, end := range f.ends {
		if begin < end {
			saved[f.ids[i]] = slices.Clone(f.reports[begin:end])
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

// Resume takes up what an earlier process saved of a limit. It replaces what was not taken up of an
// earlier Resume. Keys that are in the table already, because requests came first, take up theirs
// at once. It returns of how many keys a decision can still use what was saved.
func (t *Table[S]) Resume(p algorithms.Params, now int64, saved Saved) int {
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock().in(now)
	l := p.Compile()
	t.resume.replace(saved, p.Epoch())
	left := t.prune(l, now)
	t.each(func(_ *shard[S], _ uint32, e entry[S]) { t.restore(&e.state, l, now, e.id) })
	return left
}

// restore brings saved counts of a key back, if there are any. What this node had admitted itself
// is its own again, so that it is sent: the other nodes send theirs.
func (t *Table[S]) restore(s *S, l algorithms.Limit, now int64, id ID) bool {
	reports, epoch := t.resume.take(id)
	if reports == nil {
		return false
	}
	reports = scaleOf(l, epoch, now).renumber(reports)
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

// A scale is how a key that was never seen counts epochs now, and how fast its bucket drains where
// what was saved says nothing of that.
type scale struct {
	epoch, now int64
	history    int64
	span       int64
	limit      algorithms.Limit
}

func scaleOf(l algorithms.Limit, span, now int64) scale {
	return scale{epoch: now / span, now: now, history: int64(l.History), span: span, limit: l}
}

// hasDrained reports whether nothing is left of the level of a report.
func (n scale) hasDrained(r algorithms.Report) bool {
	rate := float64(cmp.Or(r.Rate, n.limit.N)) / float64(n.limit.Window)
	return r.Level <= rate*float64(n.now-r.LevelAt)
}

// renumber brings what was saved to the epochs of now. The clock may have been set back since: then
// all that is held moves there, as in a ledger, and nobody waits for a time that may never come.
// And what is in a bucket may take longer to drain than its epochs count: then its level, which is
// all that decides, stands for itself.
func (n scale) renumber(reports []algorithms.Report) []algorithms.Report {
	newest := int64(math.MinInt64)
	for _, r := range reports {
		newest = max(newest, r.Epoch)
		if r.Level == 0 || r.LevelAt <= 0 || n.matters(r) || n.hasDrained(r) {
			continue
		}
		r.Epoch = min(max(r.LevelAt/n.span, n.epoch-1), n.epoch)
		r.Remote, r.Own = 0, 0
		return []algorithms.Report{r}
	}
	if newest <= n.epoch {
		return reports
	}
	moved := slices.Clone(reports)
	for i := range moved {
		moved[i].Epoch += n.epoch - newest
	}
	return moved
}

// matters says that a decision can still use a report.
func (n scale) matters(r algorithms.Report) bool {
	return r.Epoch >= n.epoch-n.history && r.Epoch <= n.epoch
}

// prune drops the keys of an earlier Resume that have not come back in time: nothing they had spent
// counts any more. It returns how many are left.
func (t *Table[S]) prune(l algorithms.Limit, now int64) (left int) {
	all := t.resume.saved.Load()
	if all == nil {
		return 0
	}
	scale := scaleOf(l, all.epoch, now)
	for i := range all.parts {
		p := &all.parts[i]
		p.mu.Lock()
		maps.DeleteFunc(p.saved, func(_ ID, reports []algorithms.Report) bool {
			return !slices.ContainsFunc(scale.renumber(reports), scale.matters)
		})
		left += len(p.saved)
		p.mu.Unlock()
	}
	if left == 0 {
		t.resume.saved.CompareAndSwap(all, nil)
	}
	return left
}

// left copies what has not come back.
func (r *resume) left() Saved {
	saved := make(Saved)
	all := r.saved.Load()
	if all == nil {
		return saved
	}
	for i := range all.parts {
		p := &all.parts[i]
		p.mu.Lock()
		maps.Copy(saved, p.saved)
		p.mu.Unlock()
	}
	return saved
}
