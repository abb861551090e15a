// What comes by is counted in bounded memory: how many are different, which come most often, and
// when. What is counted goes by hashes.

package simulate

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"github.com/caddy-tide/ratelimit/internal/limits"
)

// seed makes hashes differ from run to run, so that nobody can choose addresses that collide.
var seed = maphash.MakeSeed()

// hashOf returns the hash of a text, which is another one in each process.
func hashOf(s string) uint64 { return maphash.String(seed, s) }

// ExactClients is up to how many clients are counted exactly.
const ExactClients = 1 << 16

// distinct counts different hashes: exactly up to ExactClients, and else by a sample of them.
// It holds those whose lowest bits are 0, of which there are ever more.
type distinct struct {
	set  map[uint64]struct{}
	bits uint
}

// Add counts a hash.
func (d *distinct) Add(hash uint64) {
	if hash&(1<<d.bits-1) != 0 {
		return
	}
	if d.set == nil {
		d.set = map[uint64]struct{}{}
	}
	d.set[hash] = struct{}{}
	for len(d.set) > ExactClients {
		d.bits++
		for h := range d.set {
			if h&(1<<d.bits-1) != 0 {
				delete(d.set, h)
			}
		}
	}
}

// Count returns how many there were.
func (d *distinct) Count() int64 { return int64(len(d.set)) << d.bits }

// maxTop is how many keys are held to find those that come most often: each that has more than that
// part of all is among them, and its count too high by no more than that part.
const maxTop = 1024

// heavyHitters are the keys that come most often, with their texts.
type heavyHitters struct{ limits.Heaviest[string] }

// Add counts one of a key, of which text is called where it is new.
func (h *heavyHitters) Add(hash uint64, text func() string) {
	k, isNew := h.Find(hash, maxTop)
	if k.Count++; isNew {
		k.Value = text()
	}
}

// Top returns the n keys that came most often.
func (h *heavyHitters) Top(n int) []limits.Heavy[string] {
	all := slices.SortedFunc(slices.Values(h.All), func(a, b limits.Heavy[string]) int {
		return cmp.Or(cmp.Compare(b.Count-b.Over, a.Count-a.Over), cmp.Compare(a.Value, b.Value))
	})
	return all[:min(n, len(all))]
}

// bins is how many a Timeline has.
const bins = 240

// A timeline counts requests by when they came, in bins that get wider as it gets longer.
type timeline struct {
	start, width   int64 // of the first bin, in nanoseconds
	requests, over [bins]int64
}

// Add counts a request.
func (t *timeline) Add(at int64, denied bool) {
	if t.width == 0 {
		t.start, t.width = at, int64(time.Second)
	}
	for at-t.start >= t.width*bins {
		t.fold()
	}
	i := max(0, (at-t.start)/t.width)
	t.requests[i]++
	if denied {
		t.over[i]++
	}
}

// fold makes each bin twice as wide.
func (t *timeline) fold() {
	for _, counts := range []*[bins]int64{&t.requests, &t.over} {
		for i := range bins / 2 {
			counts[i] = counts[2*i] + counts[2*i+1]
		}
		clear(counts[bins/2:])
	}
	t.width *= 2
}

// Counts returns how many requests came, and were denied, in each bin from start on.
func (t *timeline) Counts() (start time.Time, width time.Duration, requests, denied []int64) {
	n := bins
	for n > 1 && t.requests[n-1] == 0 {
		n--
	}
	return time.Unix(0, t.start).UTC(), time.Duration(t.width), slices.Clone(t.requests[:n]), slices.Clone(t.over[:n])
}
