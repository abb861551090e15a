package table

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// A Saved is what keys had spent, by their IDs: what outlives a process. To the process that takes it up it is spent elsewhere.
type Saved map[ID][]algorithms.Report

// resume holds what an earlier process saved until the keys come back: only their IDs were kept, and where a key belongs in this process
// is known when a request brings it. It is in parts with a lock each, so that no request waits for a walk over all of it.
type resume struct {
	parts atomic.Pointer[[resumeParts]resumePart] // nil where nothing is left
}

const resumeParts = 1024

type resumePart struct {
	mu    sync.Mutex
	saved Saved
}

func partOf(id ID) uint { return (uint(id[0])<<8 | uint(id[1])) % resumeParts }

// replace puts what was saved in place of what is held.
func (r *resume) replace(saved Saved) {
	if len(saved) == 0 {
		r.parts.Store(nil)
		return
	}
	parts := new([resumeParts]resumePart)
	for id, reports := range saved {
		p := &parts[partOf(id)]
		if p.saved == nil {
			p.saved = make(Saved, len(saved)/resumeParts)
		}
		p.saved[id] = reports
	}
	r.parts.Store(parts)
}

func (r *resume) take(id ID) []algorithms.Report {
	parts := r.parts.Load()
	if parts == nil {
		return nil
	}
	p := &parts[partOf(id)]
	p.mu.Lock()
	defer p.mu.Unlock()
	reports := p.saved[id]
	delete(p.saved, id)
	return reports
}

// Save returns what all keys have spent that a decision can still use. A log keeps no more of its hits than their number per window.
func (t *Table[S]) Save(now int64) Saved {
	b := t.background.Load()
	if b == nil {
		return nil
	}
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock(now)
	t.prune(b.Algorithm, now)
	saved := t.resume.left()
	var few fewSaved
	t.eachFew(func(_ *shard[S], _ uint32, e entry[S]) {
		few.add(e.id, len(few.reports))
		few.reports = appendReports(few.reports, b.Algorithm, &e.state, now)
	}, func() { few.into(saved) })
	return saved
}

// fewSaved is what is read under one hold of a lock. It is used over and over, so that nothing is allocated meanwhile.
type fewSaved struct {
	ids     []ID
	begins  []int
	reports []algorithms.Report
}

func (f *fewSaved) add(id ID, begin int) {
	f.ids, f.begins = append(f.ids, id), append(f.begins, begin)
}

func (f *fewSaved) into(saved Saved) {
	end := len(f.reports)
	for i, begin := range slices.Backward(f.begins) {
		if begin < end {
			saved[f.ids[i]] = slices.Clone(f.reports[begin:end])
		}
		end = begin
	}
	f.ids, f.begins, f.reports = f.ids[:0], f.begins[:0], f.reports[:0]
}

// appendReports appends what a key has spent that a decision can still use.
func appendReports[S any](dst []algorithms.Report, alg algorithms.Algorithm[S], s *S, now int64) []algorithms.Report {
	if alg.Idle(s, now) {
		return dst
	}
	alg.Roll(s, now)
	l, first := alg.Ledger(s), len(dst)
	for age := range int64(alg.Live() + 1) {
		if c, ok := l.At(l.Epoch - age); ok && c.Total() > 0 {
			dst = append(dst, algorithms.Report{Epoch: l.Epoch - age, Elsewhere: c.Total(), Own: c.Own})
		}
	}
	level := alg.Level(s, now)
	if level > 0 {
		level = math.Nextafter(level, math.Inf(1)) // whoever reads it rounds down
		if len(dst) == first {
			dst = append(dst, algorithms.Report{Epoch: l.Epoch})
		}
	}
	if len(dst) > first {
		dst[first].Level, dst[first].LevelAt = level, now // 0 says something too: what a bucket has counted has drained
	}
	return dst
}

// Resume takes up what an earlier process saved. It replaces what was not taken up of an earlier Resume. Keys that are in the table already, because
// requests came first, take up theirs at once. It returns of how many keys a decision can still use what was saved.
func (t *Table[S]) Resume(alg algorithms.Algorithm[S], now int64, saved Saved) int {
	t.walking.Lock()
	defer t.walking.Unlock()
	now = t.clock(now)
	t.resume.replace(saved)
	left := t.prune(alg, now)
	t.each(func(_ *shard[S], _ uint32, e entry[S]) {
		if reports := t.resume.take(e.id); reports != nil {
			restore(alg, &e.state, now, reports)
		}
	})
	return left
}

// restore brings saved counts back. What this node had admitted itself is its own again, so that it is sent: the other nodes send theirs.
func restore[S any](alg algorithms.Algorithm[S], s *S, now int64, reports []algorithms.Report) {
	reports = scaleOf(alg, now).renumber(reports)
	alg.Absorb(s, now, reports)
	l := alg.Ledger(s)
	for _, r := range reports {
		if c, ok := l.At(r.Epoch); ok {
			c.Own, c.Elsewhere = c.Own+r.Own, max(0, c.Elsewhere-r.Own)
			l.Put(r.Epoch, c)
		}
	}
	l.Forget() // no store knows of it under this name
}

// A scale is how a key that was never seen counts epochs now, and how fast its bucket drains.
type scale struct {
	epoch, now int64
	live       int64
	span       int64
	drains     float64 // requests per nanosecond
}

func scaleOf[S any](alg algorithms.Algorithm[S], now int64) scale {
	var none S
	alg.Roll(&none, now)
	limit, window := alg.Rule()
	return scale{
		epoch: alg.Ledger(&none).Epoch, now: now, live: int64(alg.Live()), span: int64(alg.Span(&none)),
		drains: float64(max(0, limit)) / float64(max(1, window)),
	}
}

// renumber brings what was saved to the epochs of now. The clock may have been set back since: then all that is held moves there, as in a ledger, and
// nobody waits for a time that may never come. And what is in a bucket may take longer to drain than its epochs count: then its level, which is all that
// decides, stands for itself.
func (n scale) renumber(reports []algorithms.Report) []algorithms.Report {
	newest := int64(math.MinInt64)
	for _, r := range reports {
		newest = max(newest, r.Epoch)
		if r.Level == 0 || r.LevelAt <= 0 || n.matters(r) || r.Level <= n.drains*float64(n.now-r.LevelAt) {
			continue
		}
		r.Epoch = min(max(r.LevelAt/n.span, n.epoch-1), n.epoch)
		r.Elsewhere, r.Own = 0, 0
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
	return r.Epoch >= n.epoch-n.live && r.Epoch <= n.epoch
}

// prune drops the keys of an earlier Resume that have not come back in time: nothing they had spent counts any more. It returns how many are left.
func (t *Table[S]) prune(alg algorithms.Algorithm[S], now int64) (left int) {
	scale := scaleOf(alg, now)
	parts := t.resume.parts.Load()
	if parts == nil {
		return 0
	}
	for i := range parts {
		p := &parts[i]
		p.mu.Lock()
		maps.DeleteFunc(p.saved, func(_ ID, reports []algorithms.Report) bool {
			return !slices.ContainsFunc(scale.renumber(reports), scale.matters)
		})
		left += len(p.saved)
		p.mu.Unlock()
	}
	if left == 0 {
		t.resume.parts.CompareAndSwap(parts, nil)
	}
	return left
}

// left copies what has not come back.
func (r *resume) left() Saved {
	saved := make(Saved)
	parts := r.parts.Load()
	if parts == nil {
		return saved
	}
	for i := range parts {
		p := &parts[i]
		p.mu.Lock()
		maps.Copy(saved, p.saved)
		p.mu.Unlock()
	}
	return saved
}
