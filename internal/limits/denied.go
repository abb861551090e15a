// The keys that a zone has denied most lately, in every mode and without Redis.

package limits

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/keys"
)

const (
	// deniedListed is how many keys are counted of a period, and deniedPeriod its length.
	deniedListed = 128
	deniedPeriod = int64(5 * time.Minute)
	// A zone that denies more than deniedFlood requests in a second has one in deniedSample
	// counted, as often.
	deniedFlood  = 1000
	deniedSample = 16
)

// DeniedKeys are the keys that a zone has denied most in the last five to ten minutes: of a period
// those of which it has Heaviest, so a key that has more than a 128th of all denials is there. The
// zero value is ready. It is safe for concurrent use.
type DeniedKeys struct {
	every atomic.Uint32 // which denials are counted: all for 0, else one in so many

	mu     sync.Mutex
	period int64 // number of the current one
	second int64 // number of it, and its denials
	in     int64
	now    Heaviest[DeniedKey]
	before Heaviest[DeniedKey]
}

// Heaviest counts what comes most often, by hashes: a Space-Saving summary (Metwally, Agrawal and
// El Abbadi, 2005). A key that is not in it takes the place of the one with the least. The zero
// value is ready.
type Heaviest[V any] struct {
	All []Heavy[V]
	at  map[uint64]int // finds a key by its hash
}

// A Heavy is a key, and how often it came. Over is what the key had that was there before, which is
// not its own, but counts for who gives way next.
type Heavy[V any] struct {
	Value       V
	Count, Over int64
	hash        uint64
}

// A DeniedKey is a key, and how many of its requests were denied, or would have been in shadow
// mode: at least so many. Text is there with log_key.
type DeniedKey struct {
	ID                keys.ID
	Text              string
	Denied, WouldDeny int64
}

// add counts a denial of a key, given by its hash, at now (nanoseconds since the Unix epoch).
// describe is asked once for a key, for its ID and text.
func (d *DeniedKeys) add(hash uint64, now int64, shadow bool, describe func() (keys.ID, string)) {
	every := d.every.Load()
	if every > 0 && rand.Uint32N(every) > 0 {
		return
	}
	n := int64(max(every, 1))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn(now, n)
	k, isNew := d.now.Find(hash, deniedListed)
	if k.Count += n; isNew {
		k.Value.ID, k.Value.Text = describe()
	}
	if shadow {
		k.Value.WouldDeny += n
	} else {
		k.Value.Denied += n
	}
}

// turn begins another period, and another second, where one is over.
func (d *DeniedKeys) turn(now, n int64) {
	switch period := now / deniedPeriod; {
	case period == d.period+1:
		d.period, d.now, d.before = period, Heaviest[DeniedKey]{}, d.now
	case period != d.period: // the clock may have stepped back
		d.period, d.now, d.before = period, Heaviest[DeniedKey]{}, Heaviest[DeniedKey]{}
	}
	if second := now / int64(time.Second); second != d.second {
		if d.in < deniedFlood || second != d.second+1 {
			d.every.Store(0)
		}
		d.second, d.in = second, 0
	}
	if d.in += n; d.in >= deniedFlood {
		d.every.Store(deniedSample)
	}
}

// Find returns a key's counts: those that it has, or a place among so many, which is new.
func (h *Heaviest[V]) Find(hash uint64, most int) (k *Heavy[V], isNew bool) {
	if i, ok := h.at[hash]; ok {
		return &h.All[i], false
	}
	if h.at == nil {
		h.at = make(map[uint64]int)
	}
	i := len(h.All)
	if i < most {
		h.All = append(h.All, Heavy[V]{})
	} else {
		i = 0
		for j := range h.All {
			if h.All[j].Count < h.All[i].Count {
				i = j
			}
		}
		delete(h.at, h.All[i].hash)
	}
	k = &h.All[i]
	*k = Heavy[V]{hash: hash, Count: k.Count, Over: k.Count}
	h.at[hash] = i
	return k, true
}

// Most returns the keys that were denied most until now, the first of all first.
func (d *DeniedKeys) Most(now int64) (all []DeniedKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn(now, 0)
	sums := map[uint64]int{}
	for _, list := range []*Heaviest[DeniedKey]{&d.now, &d.before} {
		for i := range list.All {
			k := &list.All[i]
			at, ok := sums[k.hash]
			if !ok {
				at = len(all)
				sums[k.hash] = at
				all = append(all, DeniedKey{ID: k.Value.ID, Text: k.Value.Text})
			}
			all[at].Denied += k.Value.Denied
			all[at].WouldDeny += k.Value.WouldDeny
		}
	}
	slices.SortFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied+b.WouldDeny, a.Denied+a.WouldDeny), slices.Compare(a.ID[:], b.ID[:]))
	})
	return all
}
