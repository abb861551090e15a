// The keys that have spent the most, and what they read.

package limits

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/ban"
	"github.com/caddy-tide/ratelimit/internal/clock"
	"github.com/caddy-tide/ratelimit/internal/heap"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/table"
)

// TopBy says what the most of is looked for.
type TopBy string

// What the most of can be looked for, see table.Spend.
const (
	ByUsed   TopBy = "used"
	ByAsked  TopBy = "asked"
	ByDenied TopBy = "denied" // of DeniedKeys, not of TopKeys
)

// AllTopBy are all that there are.
var AllTopBy = []TopBy{ByUsed, ByAsked, ByDenied}

func (b TopBy) of(s table.Spend) int64 {
	if b == ByAsked {
		return s.Asked
	}
	return s.Used
}

// TopKeys collects the few keys that have the most of something.
type TopKeys struct {
	by   TopBy
	n    int
	keys heap.Heap[table.Spend] // the least first
}

// NewTopKeys returns a TopKeys for n keys.
func NewTopKeys(by TopBy, n int) *TopKeys {
	less := func(a, b table.Spend) bool { return by.of(a) < by.of(b) }
	return &TopKeys{by, n, heap.Heap[table.Spend]{Before: less, All: make([]table.Spend, 0, n)}}
}

// Add notes what a key has spent. It is called under a lock that requests take, once for each key:
// it allocates nothing, and most keys cost one comparison.
func (m *TopKeys) Add(s table.Spend) {
	amount, all := m.by.of(s), m.keys.All
	switch {
	case amount <= 0 || m.n == 0:
	case len(all) < m.n:
		m.keys.Push(s)
	case amount > m.by.of(all[0]):
		all[0] = s
		m.keys.Fix()
	}
}

// Rows returns the keys that have the most, the first of all first.
func (m *TopKeys) Rows() []table.Spend {
	slices.SortFunc(m.keys.All, func(a, b table.Spend) int {
		return cmp.Or(cmp.Compare(m.by.of(b), m.by.of(a)), slices.Compare(a.ID[:], b.ID[:]))
	})
	return m.keys.All
}

// EachID calls f with the keys that this node knows, some of them more than once: those that have
// spent something lately, are banned, or have an override. f must be quick.
func (z *Zone) EachID(f func(keys.ID)) {
	spent := func(s table.Spend) { f(s.ID) }
	for l := range z.Each {
		l.EachSpend(spent)
	}
	if z.Slots != nil {
		z.Slots.EachSpend(spent)
	}
	if b := z.Bans(); b != nil {
		for _, r := range []*ban.Register{&b.Set, &b.Shadow} {
			r.Each(clock.Now(), func(id ban.ID, _ ban.Ban, _ string) { f(id) })
		}
	}
	z.AtRuntime.Load().EachOverride(f)
}

// wantedFor is how long the names of keys are looked out for after they were asked for.
const wantedFor = int64(time.Minute)

// KeyNames are the texts of a few keys, for a while. A table knows only hashes: the text of a key
// is left by the next request that brings it. The zero value wants none. It is safe for concurrent
// use.
type KeyNames struct{ wanted atomic.Pointer[wantedNames] }

// wantedNames are the keys of which the text is wanted, until an instant of the callers' clock. The
// map is not changed.
type wantedNames struct {
	until int64
	texts map[keys.Key]*atomic.Pointer[string]
}

// Wants reports whether the text of a key is to be left. It costs a request one load while nobody
// wants any.
func (n *KeyNames) Wants(key keys.Key, now int64) bool {
	w := n.wanted.Load()
	return w != nil && n.wants(w, key, now)
}

func (n *KeyNames) wants(w *wantedNames, key keys.Key, now int64) bool {
	if now > w.until {
		n.wanted.CompareAndSwap(w, nil)
		return false
	}
	text := w.texts[key]
	return text != nil && text.Load() == nil
}

// Put keeps the text of a key.
func (n *KeyNames) Put(key keys.Key, text string) {
	if w := n.wanted.Load(); w != nil {
		if p := w.texts[key]; p != nil {
			p.Store(&text)
		}
	}
}

// Want looks out for the texts of these keys and no others, for a minute from now on. Those that
// are known stay known.
func (n *KeyNames) Want(spent []table.Spend, now int64) {
	old := n.wanted.Load()
	next := &wantedNames{until: now + wantedFor, texts: make(map[keys.Key]*atomic.Pointer[string], len(spent))}
	for _, k := range spent {
		var p *atomic.Pointer[string]
		if old != nil && now <= old.until {
			p = old.texts[k.Key]
		}
		if p == nil {
			p = new(atomic.Pointer[string])
		}
		next.texts[k.Key] = p
	}
	n.wanted.Store(next)
}

// Of returns the text of a key, "" where it is not known.
func (n *KeyNames) Of(key keys.Key) string {
	if w := n.wanted.Load(); w != nil {
		if p := w.texts[key]; p != nil && p.Load() != nil {
			return *p.Load()
		}
	}
	return ""
}
