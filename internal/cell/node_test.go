package cell

import (
	"strconv"
	"testing"
)

// A node is what a node does with a cell, as small as it can be: one key in one limit. Its clock is
// the server's.
type node struct {
	t    testing.TB
	on   runner
	name string
	f    Rule
	size int64

	told  string // and least: where limits go over regions
	least int64

	stamp, seq, heard int64
	// Of windows: what it has spent, what Redis is known to have of that, and what others have
	// spent, by epochs. Until kept what others have only rises, as Redis has lost something.
	own, acked, others map[int64]int64
	kept               int64
	// Of a bucket: what was spent in this state of it, what of that Redis has, when the first unit
	// of the rest was spent, and what is in the bucket.
	start, total, got, first int64
	whole, rest, at          int64
}

// interval is the time between two syncs.
const interval = second

func newNode(t testing.TB, on runner, name string, f Rule, now int64) *node {
	n := &node{t: t, on: on, name: name, f: f, size: f.Size}
	n.empty(now)
	return n
}

// empty forgets what was spent: at first, and under a reset.
func (n *node) empty(now int64) {
	n.own, n.acked, n.others = map[int64]int64{}, map[int64]int64{}, map[int64]int64{}
	n.start, n.at, n.total, n.got, n.first, n.whole, n.rest = now, now, 0, 0, 0, 0, 0
}

// reset forgets under a reset of the node's own.
func (n *node) reset(stamp, now int64) {
	n.empty(now)
	n.stamp = stamp
}

// drain brings the bucket to now.
func (n *node) drain(now int64) {
	if now <= n.at {
		return
	}
	window := n.f.Window.Microseconds()
	flow := times(n.f.Rate, now-n.at)
	level := times(n.whole, window)
	level.Add(level, times(n.rest, 1)).Sub(level, flow)
	m := &model{level: level}
	n.whole, n.rest = m.whole(window)
	if n.whole < 0 {
		n.whole, n.rest = 0, 0
	}
	n.at = now
}

// room is how much fits in by what the node knows.
func (n *node) room(now int64) int64 {
	if n.f.Kind == Bucket {
		n.drain(now)
		return n.size - n.whole - min(1, n.rest)
	}
	m := newModel(0)
	for name, totals := range map[string]map[int64]int64{"own": n.own, "others": n.others} {
		m.fields[name] = modelField{totals: totals}
	}
	return m.room(n.f, Limit{Size: n.size}, now)
}

// spend counts units without asking.
func (n *node) spend(now, units int64) {
	if n.f.Kind != Bucket {
		n.own[n.f.Epoch(now)] += units
		return
	}
	n.drain(now)
	if n.total == n.got {
		n.first = now
	}
	n.total, n.whole = n.total+units, n.whole+units
}

// take decides alone.
func (n *node) take(now int64) bool {
	if n.room(now) < 1 {
		return false
	}
	n.spend(now, 1)
	return true
}

// call is a message of what it has spent, in which it asks for so many units.
func (n *node) call(key string, now, ask int64) Call {
	n.seq = max(n.seq+1, now)
	s := State{Seq: n.seq, Stamp: n.stamp}
	if n.f.Kind == Bucket {
		n.drain(now)
		s.Incarnation, s.Total, s.AnsweredSeq, s.Whole, s.Rest = n.start, n.total, n.heard, n.whole, n.rest
		if ask == 0 && n.total > n.got {
			s.UnackedFor = min(now-n.first, 2*interval)
		}
		flowed := times(n.f.Rate, s.UnackedFor)
		flowed.Div(flowed, times(n.f.Window.Microseconds(), 1))
		s.Unacked = max(0, min(n.total-n.got, n.whole+min(1, n.rest)+flowed.Int64()))
		if n.name[0] == '~' { // all there was spent by the nodes there, since its cell began
			s.AnsweredSeq = 1 + s.Unacked
		}
	} else {
		s.Epoch = n.f.Epoch(now)
		for k := s.Epoch; k > s.Epoch-int64(n.f.Kept); k-- {
			s.Totals = append(s.Totals, n.own[k])
		}
		for len(s.Totals) > 1 && s.Totals[len(s.Totals)-1] == 0 {
			s.Totals = s.Totals[:len(s.Totals)-1]
		}
	}
	c := Call{Seq: n.seq, Told: n.told, Least: n.least, Cells: []Update{{key, n.f.String(), n.name, s}}}
	if ask > 0 {
		c.Asks = []Ask{{Count: ask, Cost: 1, Limits: []Limit{{n.size, n.f.Rate}}}}
	}
	return c
}

// send makes a call at an instant.
func (n *node) send(c *Call, now int64) Answer {
	n.t.Helper()
	keys, args := argsOf(c)
	text, err := n.on.run(now, keys, args)
	if err != nil {
		n.t.Fatalf("%+v: %v", *c, err)
	}
	var a Answer
	if err := c.Read(text, &a); err != nil {
		n.t.Fatalf("%+v: %q: %v", *c, text, err)
	}
	return a
}

// hear takes in the answer to a call.
func (n *node) hear(c *Call, a Answer) (granted int64) {
	h, s := a.Cells[0], c.Cells[0].State
	if h.NewerStamp > 0 {
		n.reset(h.NewerStamp, a.Now)
		return 0
	}
	if h.Previous.Seq >= s.Seq || s.Stamp != n.stamp {
		return 0
	}
	if len(a.Grants) > 0 {
		granted = a.Grants[0]
	}
	n.heard = max(n.heard, s.Seq)
	if n.f.Kind == Bucket {
		unsaid := n.total - s.Total
		n.drain(a.Now)
		n.total, n.got = n.total+granted, s.Total+granted
		n.whole, n.rest = max(0, h.Sum.Whole)+unsaid, h.Sum.Rest
		if h.Sum.Whole < 0 {
			n.rest = 0
		}
		if n.first = a.Now; unsaid == 0 {
			n.first = 0
		}
		return granted
	}
	n.merge(h, s, a.Now, granted)
	return granted
}

// merge takes in what all have spent of windows.
func (n *node) merge(h Reply, s State, now, granted int64) {
	e := n.f.Epoch(now)
	held, all := byEpoch(h.Previous.Epoch, h.Previous.Totals), byEpoch(h.Sum.Epoch, h.Sum.Totals)
	said := byEpoch(s.Epoch, s.Totals)
	n.own[e] += granted
	said[e] += granted
	for k := e - int64(n.f.Kept) + 1; k <= e; k++ {
		if held[k] < n.acked[k] {
			n.kept = now + n.f.Window.Microseconds()
		}
		n.acked[k] = said[k]
	}
	for k := e - int64(n.f.Kept) + 1; k <= e+1; k++ {
		others := max(0, all[k]-said[k])
		if now < n.kept {
			others = max(others, n.others[k])
		}
		n.others[k] = others
	}
}

func byEpoch(newest int64, totals []int64) map[int64]int64 {
	all := map[int64]int64{}
	for i, n := range totals {
		all[newest-int64(i)] = n
	}
	return all
}

// sync says what it has spent, asks for so many units, and hears the answer.
func (n *node) sync(key string, now, ask int64) (granted int64) {
	n.t.Helper()
	c := n.call(key, now, ask)
	return n.hear(&c, n.send(&c, now))
}

// sum is what all have of a cell.
func (n *node) sum(key string, now int64) Sum {
	n.t.Helper()
	c := Call{Cells: []Update{{key, n.f.String(), "reader", State{Stamp: n.stamp}}}}
	return n.send(&c, now).Cells[0].Sum
}

// counts is what counts of a cell, in units.
func (n *node) counts(key string, now int64) float64 {
	n.t.Helper()
	s := n.sum(key, now)
	if n.f.Kind == Bucket {
		window := float64(n.f.Window.Microseconds())
		level := float64(s.Whole) + float64(s.Rest)/window - float64(s.Rate)*float64(now-s.At)/window
		return max(0, level)
	}
	e, all := n.f.Epoch(now), 0.
	for i, total := range s.Totals {
		if k := s.Epoch - int64(i); k > e-int64(n.f.Kept) {
			all += float64(total)
		}
	}
	return all
}

// argsOf are the KEYS and ARGV of a call.
func argsOf(c *Call) (keys []string, args []any) {
	var a Args
	c.Append(&a)
	a.Finish()
	all := a.All()
	n, _ := strconv.Atoi(*all[0].(*string))
	for _, key := range all[1 : 1+n] {
		keys = append(keys, *key.(*string))
	}
	for _, arg := range all[1+n:] {
		args = append(args, *arg.(*string))
	}
	return keys, args
}
