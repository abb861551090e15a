// What an earlier process had counted of a limit is kept until its keys come back. Only hashes of
// keys were kept, and where a key belongs in this process is known when a request brings it.

package table

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddy-tide/ratelimit/algorithms"
)

// SavedCounts are what keys had spent, by their IDs: what outlives a process.
type SavedCounts map[[16]byte][]algorithms.Report

// A savedStore holds SavedCounts in parts with a lock each, so that no request waits for a walk
// over all of it. The zero value is empty. It is safe for concurrent use.
type savedStore struct {
	counts atomic.Pointer[savedParts] // nil where nothing is left
}

const savedPartCount = 1024

// savedParts are the counts, and the epochs that they are in.
type savedParts struct {
	epochs algorithms.Epochs
	parts  [savedPartCount]savedPart
}

type savedPart struct {
	mu     sync.Mutex
	counts SavedCounts
}

func (h *savedParts) partOf(id [16]byte) *savedPart {
	return &h.parts[(uint(id[0])<<8|uint(id[1]))%savedPartCount]
}

// Replace puts counts in place of what is there.
func (s *savedStore) Replace(counts SavedCounts, epochs algorithms.Epochs) {
	if len(counts) == 0 {
		s.counts.Store(nil)
		return
	}
	all := &savedParts{epochs: epochs}
	for id, reports := range counts {
		p := all.partOf(id)
		if p.counts == nil {
			p.counts = make(SavedCounts, len(counts)/savedPartCount)
		}
		p.counts[id] = reports
	}
	s.counts.Store(all)
}

// IsEmpty reports whether nothing is left of any key.
func (s *savedStore) IsEmpty() bool { return s.counts.Load() == nil }

// Look returns what a key had spent, in the epochs of at; nil if that is nothing.
func (s *savedStore) Look(id [16]byte, l algorithms.Limit, at int64) []algorithms.Report {
	return s.look(id, l, at, false)
}

// Take is Look, and takes it out.
func (s *savedStore) Take(id [16]byte, l algorithms.Limit, at int64) []algorithms.Report {
	return s.look(id, l, at, true)
}

func (s *savedStore) look(id [16]byte, l algorithms.Limit, at int64, takes bool) []algorithms.Report {
	all := s.counts.Load()
	if all == nil {
		return nil
	}
	p := all.partOf(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	reports := p.counts[id]
	if takes {
		delete(p.counts, id)
	}
	return numberingOf(l, all.epochs, at).renumber(reports)
}

// Prune drops the keys that have not come back in time: nothing they had spent counts any more. It
// returns how many are left.
func (s *savedStore) Prune(l algorithms.Limit, at int64) (left int) {
	all := s.counts.Load()
	if all == nil {
		return 0
	}
	numbering := numberingOf(l, all.epochs, at)
	all.each(func(counts SavedCounts) {
		maps.DeleteFunc(counts, func(_ [16]byte, reports []algorithms.Report) bool {
			return !slices.ContainsFunc(numbering.renumber(reports), numbering.matters)
		})
		left += len(counts)
	})
	if left == 0 {
		s.counts.CompareAndSwap(all, nil)
	}
	return left
}

// Drop calls f with each key and what it had spent, in the epochs of at, and drops those of which
// it returns true. A part's lock is held meanwhile.
func (s *savedStore) Drop(l algorithms.Limit, at int64, f func(id [16]byte, reports []algorithms.Report) bool) {
	if all := s.counts.Load(); all != nil {
		numbering := numberingOf(l, all.epochs, at)
		all.each(func(counts SavedCounts) {
			maps.DeleteFunc(counts, func(id [16]byte, reports []algorithms.Report) bool { return f(id, numbering.renumber(reports)) })
		})
	}
}

// Left copies what has not come back.
func (s *savedStore) Left() SavedCounts {
	left := make(SavedCounts)
	if all := s.counts.Load(); all != nil {
		all.each(func(counts SavedCounts) { maps.Copy(left, counts) })
	}
	return left
}

// each calls f with the counts of each part, under its lock.
func (h *savedParts) each(f func(SavedCounts)) {
	for i := range h.parts {
		p := &h.parts[i]
		p.mu.Lock()
		f(p.counts)
		p.mu.Unlock()
	}
}

// A numbering is how a key that was never seen counts epochs now, and how fast its bucket drains
// where what was saved says nothing of that.
type numbering struct {
	epoch, now int64
	limit      algorithms.Limit
}

func numberingOf(l algorithms.Limit, epochs algorithms.Epochs, at int64) numbering {
	return numbering{epoch: epochs.At(at), now: at, limit: l}
}

// renumber brings what was saved to the epochs of at. The clock may have been set back since: then
// all that is saved moves there, as in a ledger, and nobody waits for a time that may never come.
func (n numbering) renumber(reports []algorithms.Report) []algorithms.Report {
	newest := int64(math.MinInt64)
	for _, r := range reports {
		newest = max(newest, r.Epoch)
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
func (n numbering) matters(r algorithms.Report) bool {
	if r.LevelAt > 0 {
		rate := float64(cmp.Or(r.Rate, n.limit.N)) / float64(n.limit.Window)
		return r.Level > rate*float64(n.now-r.LevelAt)
	}
	return r.Epoch >= n.epoch-int64(n.limit.History) && r.Epoch <= n.epoch
}
