package strict

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-tide/ratelimit/internal/clock"
)

const (
	// memoryTime is how long a denial is remembered at most, from when its call was made.
	memoryTime = time.Second
	// maxRemembered bounds the sets of rules of one key whose denials are remembered. Requests of
	// one more are asked for.
	maxRemembered = 4
	memoryStripes = 16
)

// A denial is an answer that denied, to requests of the same rules under the same reset.
type denial struct {
	rules   []Rule
	cost    int64 // the least that was denied
	reset   int64 // the stamp
	outcome *outcome
	// asked is when the call was made, and came when it was answered, by the process' clock. wait
	// is the longest wait of the rules that denied.
	asked, came int64
	wait        time.Duration
	verdicts    []Verdict
	// trips are those of the Limiter then: what was denied before an outage doesn't hold after it.
	trips int64
}

// denialOf is what a batch of requests was denied, which has just been answered.
func (s *Limiter) denialOf(rules []Rule, o *outcome, reset int64) *denial {
	d := &denial{rules: rules, cost: slices.Min(o.denied), reset: reset, outcome: o, asked: o.asked, came: clock.Now(), trips: s.trips.Load()}
	d.verdicts = verdicts(rules, o, place{cost: d.cost}, nil)
	for i := range d.verdicts {
		v := &d.verdicts[i]
		if v.Reports = nil; !v.Decision.Allowed {
			d.wait = max(d.wait, v.Decision.Retry)
		}
	}
	return d
}

// covers reports whether a denial holds for a request of such a cost as well: less may be left than
// another cost.
func (d *denial) covers(cost int64) bool {
	return cost >= d.cost
}

// isSlowedBy reports whether buckets drain slower since than a denial has told: at the limit of the
// request that was decided last.
func (d *denial) isSlowedBy(rules []Rule) bool {
	return slices.ContainsFunc(d.rules, func(r Rule) bool {
		return slices.ContainsFunc(rules, func(last Rule) bool { return last.Window == r.Window && last.Limit < r.Limit })
	})
}

// isOver reports whether a denial is no longer remembered at now.
func (d *denial) isOver(now int64) bool {
	return now-d.asked >= int64(memoryTime) || now-d.came >= int64(d.wait)
}

// tell appends what the rules say to a request of a cost at now: what they said, with what is left
// of their waits. A rule whose wait is over would admit it, and then nobody else. One into which
// the cost never fits has no wait that passes.
func (d *denial) tell(now, cost int64, dst []Verdict) []Verdict {
	said := d.verdicts
	if cost != d.cost {
		said = verdicts(d.rules, d.outcome, place{cost: cost}, nil)
	}
	passed := time.Duration(max(0, now-d.came))
	for i, v := range said {
		v.Reports = nil
		w := &v.Decision
		if r := d.rules[i]; !w.Allowed && r.Limit > 0 && r.size() >= cost {
			if w.Retry -= passed; w.Retry <= 0 {
				w.Allowed, w.Remaining, w.Retry = true, 0, 0
			}
		}
		for _, wait := range []*time.Duration{&w.Next, &w.Reset} {
			if *wait > 0 {
				*wait = max(time.Microsecond, *wait-passed)
			}
		}
		dst = append(dst, v)
	}
	return dst
}

// A Memory is what Redis has last denied in a zone. A request whose rules are those of a denial of
// its key is denied without a call, while that holds: until a second after the call was made, or
// until the wait that it told is over. So a client that goes on asking costs Redis a call a second.
// Whatever this node itself refunds ends it. So does what Redis admits here to another request of
// the key, as less is left then. What other nodes do is seen a second late. What is admitted, only
// Redis says.
//
// Calls by other windows than those of a zone, as an override has them, go beside each other. What
// one denied is not remembered where another has ended since it was made: it may be older than what
// that was granted or refunded.
//
// Rules that count denied requests, and those whose units responses may refund, are always asked
// for. It is safe for concurrent use.
type Memory struct {
	of    *Limiter
	zone  string
	users int // guarded by Limiter.mu

	most     atomic.Int64 // keys
	keys     atomic.Int64
	sweeping atomic.Bool
	stripes  [memoryStripes]memoryStripe
}

type memoryStripe struct {
	mu   sync.Mutex
	keys map[[16]byte]remembered
	// left is the latest ended of a key for which there was no room.
	left int64
}

// remembered is what a key was denied, and when its last call has ended, where others may be under
// way beside it.
type remembered struct {
	denials []*denial
	ended   int64
}

func (r remembered) isOver(now int64) bool {
	return now-r.ended >= int64(memoryTime) && !slices.ContainsFunc(r.denials, func(d *denial) bool { return !d.isOver(now) })
}

// Memory returns the memory of a zone, until Release. Where it is new, it has so many keys at most.
func (s *Limiter) Memory(zone string, keys int) *Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.memories[zone]
	if m == nil {
		m = &Memory{of: s, zone: zone}
		m.Configure(keys)
		s.memories[zone] = m
	}
	m.users++
	return m
}

// Configure sets how many keys are remembered at most.
func (m *Memory) Configure(keys int) { m.most.Store(int64(keys)) }

// Release gives up a Memory.
func (m *Memory) Release() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.users--; m.users == 0 {
		delete(m.of.memories, m.zone)
	}
}

// IsEmpty reports whether nothing is remembered. A nil Memory is empty.
func (m *Memory) IsEmpty() bool { return m == nil || m.keys.Load() == 0 }

// Recall appends what the rules of a key say to a request of n units at now, by the process' clock,
// if it is denied without a call.
func (m *Memory) Recall(rules []Rule, id [16]byte, n, now int64, dst []Verdict) (said []Verdict, ok bool) {
	var d *denial
	st := m.stripe(id)
	st.mu.Lock()
	all := st.keys[id].denials
	if i := indexOf(all, rules); i >= 0 {
		d = all[i]
	}
	st.mu.Unlock()
	if d == nil || !d.covers(n) || d.isOver(now) {
		return dst, false
	}
	s := m.of
	if c, _ := s.circuitOf(id); s.work.HasEnded() || c.down.Load() || d.trips != s.trips.Load() || d.reset != s.resetOf(m.zone, id).Stamp {
		return dst, false
	}
	return d.tell(now, n, dst), true
}

func (m *Memory) stripe(id [16]byte) *memoryStripe { return &m.stripes[id[15]%memoryStripes] }

func indexOf(all []*denial, rules []Rule) int {
	return slices.IndexFunc(all, func(d *denial) bool { return slices.Equal(d.rules, rules) })
}

// note remembers what a call was denied, and forgets before what it made untrue. beside is set
// where another call of the key may be under way. It returns the denials that are true.
func (m *Memory) note(id [16]byte, untrue, beside bool, denials []*denial) []*denial {
	now := clock.Now()
	st := m.stripe(id)
	st.mu.Lock()
	defer st.mu.Unlock()
	r, had := st.keys[id]
	ended := max(r.ended, st.left)
	if beside {
		r.ended = now
	}
	r.denials = slices.DeleteFunc(r.denials, func(old *denial) bool {
		return untrue || old.isOver(now) || slices.ContainsFunc(denials, func(d *denial) bool { return old.isSlowedBy(d.rules) })
	})
	denials = slices.DeleteFunc(denials, func(d *denial) bool { return d.asked <= ended })
	r.denials = latest(r.denials, denials)
	switch {
	case r.isOver(now):
		if had {
			delete(st.keys, id)
			m.keys.Add(-1)
		}
		return denials
	case !had && m.keys.Load() >= m.most.Load():
		st.left = max(st.left, r.ended)
		return denials
	case !had:
		m.keys.Add(1)
	}
	if st.keys == nil {
		st.keys = make(map[[16]byte]remembered)
	}
	if st.keys[id] = r; m.sweeping.CompareAndSwap(false, true) {
		m.of.work.Go(m.sweepAll)
	}
	return denials
}

// latest returns denials with others that have come since, each in place of what was remembered of
// its rules.
func latest(all, since []*denial) []*denial {
	all = slices.DeleteFunc(all, func(d *denial) bool { return indexOf(since, d.rules) >= 0 })
	for _, d := range since {
		all = slices.DeleteFunc(all, func(old *denial) bool { return old.isSlowedBy(d.rules) })
		if i := indexOf(all, d.rules); i >= 0 {
			all[i] = d
		} else if len(all) < maxRemembered {
			all = append(all, d)
		}
	}
	return all
}

// sweepAll drops, once a second, what is no longer remembered, until nothing is left.
func (m *Memory) sweepAll() {
	for {
		select {
		case <-m.of.probes.Done():
			return
		case <-time.After(memoryTime):
		}
		m.sweep(clock.Now())
		if m.keys.Load() > 0 {
			continue
		}
		m.sweeping.Store(false)
		if m.keys.Load() == 0 || !m.sweeping.CompareAndSwap(false, true) {
			return
		}
	}
}

func (m *Memory) sweep(now int64) {
	for i := range m.stripes {
		st := &m.stripes[i]
		st.mu.Lock()
		for id, r := range st.keys {
			if r.isOver(now) {
				delete(st.keys, id)
				m.keys.Add(-1)
			}
		}
		st.mu.Unlock()
	}
}

// remember notes in the memory of a zone what a call of a key was denied, and forgets before what
// it made untrue. Its ruleset's mutex is held, so that what is refunded at the same time ends it.
func (s *Limiter) remember(rs *ruleset, id [16]byte, untrue bool, denials []*denial) []*denial {
	s.mu.Lock()
	m := s.memories[rs.zone]
	beside := slices.ContainsFunc(s.zones[rs.zone], func(other *ruleset) bool { return other != rs && other.mayCall(id) })
	s.mu.Unlock()
	if m == nil || !beside && len(denials) == 0 && (!untrue || m.IsEmpty()) {
		return denials
	}
	return m.note(id, untrue, beside, denials)
}

// forget ends what is remembered of a key. Its ruleset's mutex is held.
func (s *Limiter) forget(rs *ruleset, id [16]byte) { s.remember(rs, id, true, nil) }

// mayRemember reports whether a denial holds for other requests of the rules: not where each of
// them counts, nor where responses may refund units at any time.
func mayRemember(rules []Rule) bool {
	return !slices.ContainsFunc(rules, func(r Rule) bool { return r.CountsDenied || r.Reserves })
}
