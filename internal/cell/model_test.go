package cell

import (
	"maps"
	"math/big"
)

// A model is a cell as it has to be, in whole numbers. What all have spent of windows it adds up
// from the fields each time.
type model struct {
	stamp  int64
	fields map[string]modelField
	// poisoned: its sum makes no sense, and with it the stamp is lost.
	poisoned bool
	// Of a bucket: what is in it, in parts of the window, and its other numbers.
	level                             *big.Int
	at, flows, added, total, ope, end int64
}

type modelField struct {
	seq, open, epoch              int64
	totals                        map[int64]int64
	start, total, granted, stands int64
}

func newModel(stamp int64) *model {
	return &model{stamp: stamp, fields: map[string]modelField{}, level: new(big.Int)}
}

func (m *model) copy() *model {
	other := *m
	other.fields, other.level = maps.Clone(m.fields), new(big.Int).Set(m.level)
	return &other
}

func times(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

// whole is the level in units, rounded down, and the parts of the window above that.
func (m *model) whole(window int64) (int64, int64) {
	whole, rest := new(big.Int).DivMod(m.level, big.NewInt(window), new(big.Int))
	return whole.Int64(), rest.Int64()
}

// take has the cell after a message, nil where it changes nothing. m is nil where there is no cell.
func (m *model) take(f Rule, node string, s State, now int64) (next *model) {
	if m == nil {
		m = newModel(s.Stamp)
		m.flows = f.Rate
	}
	had, known := m.fields[node]
	if s.Seq == 0 || !m.poisoned && s.Stamp < m.stamp || known && (m.poisoned || s.Stamp == m.stamp) && s.Seq <= had.seq {
		return nil
	}
	next = m.copy()
	if m.poisoned {
		next.stamp, next.poisoned = s.Stamp, false
		maps.DeleteFunc(next.fields, func(name string, field modelField) bool {
			for e := range field.totals {
				if e > f.Epoch(now)-int64(f.Kept) {
					return false
				}
			}
			return name != node
		})
	} else if s.Stamp > m.stamp {
		next = newModel(s.Stamp)
		next.flows = f.Rate
	}
	had, known = next.fields[node]
	own := modelField{seq: s.Seq, open: s.Reserved, epoch: s.Epoch, totals: map[int64]int64{}, start: s.Incarnation, total: s.Total}
	for i, n := range s.Totals {
		own.totals[s.Epoch-int64(i)] = n
	}
	if e := f.Epoch(now); f.Kind != Bucket && s.Epoch > e {
		// ahead it leaves out an epoch that still counts here
		if last := e - int64(f.Kept) + 1; own.totals[last] == 0 {
			own.totals[last] = had.totals[last]
		}
	}
	if f.Kind == Bucket {
		next.fill(f, had, known, s, now)
	}
	next.fields[node] = own
	return next
}

// fill is a message about a bucket.
func (m *model) fill(f Rule, had modelField, known bool, s State, now int64) {
	window := f.Window.Microseconds()
	m.level.Sub(m.level, times(m.flows, max(0, now-m.at)))
	idle := m.flows
	if f.Decided {
		idle = min(idle, f.Rate)
	}
	if bottom := new(big.Int).Neg(times(idle, s.UnackedFor)); m.level.Cmp(bottom) < 0 {
		m.level = bottom
	}
	m.at = now
	m.ope = max(0, m.ope+s.Reserved-had.open)
	more := s.Unacked
	if known && had.start == s.Incarnation {
		more = s.Total - had.total
		m.total += more
		if had.granted > 0 && had.seq > s.AnsweredSeq {
			whole, rest := m.whole(window)
			if stands := whole - (m.added - had.stands); had.stands <= m.added && stands >= 0 {
				if stands < had.granted {
					m.level.Sub(m.level, big.NewInt(rest))
				}
				m.level.Sub(m.level, times(min(stands, had.granted), window))
				for name, other := range m.fields {
					if other.granted > 0 && other.stands < had.stands {
						other.stands += min(stands, had.granted)
						m.fields[name] = other
					}
				}
			}
			more += had.granted
		}
		if more < 0 && m.level.Sign() >= 0 {
			if m.level.Add(m.level, times(more, window)); m.level.Sign() < 0 {
				m.level.SetInt64(0)
			}
		}
	} else {
		m.total += s.Total
		least := times(s.Whole-s.Unacked, window)
		least.Add(least, big.NewInt(s.Rest))
		if s.Whole >= s.Unacked && least.Cmp(m.level) > 0 {
			whole, _ := m.whole(window)
			m.added, m.level = m.added+s.Whole-s.Unacked-whole+1, least
		}
	}
	more = min(more, s.Unacked)
	if m.flows == 0 || f.Decided && (more > 0 || more == 0 && f.Rate > m.flows) {
		m.flows = f.Rate
	}
	whole, _ := m.whole(window)
	if more = min(more, f.Size+f.Rate-whole); more > 0 {
		m.level.Add(m.level, times(more, window))
		m.added += more
	}
	filled := times(s.Whole, window)
	filled.Add(filled, big.NewInt(s.Rest))
	if over := new(big.Int).Sub(m.level, filled); f.Filled && over.CmpAbs(big.NewInt(window)) <= 0 {
		m.level = filled
	}
	m.total = max(0, m.total)
}

// sum is what all have spent, by epochs that count, and what of the newest is open.
func (m *model) sum(f Rule, now, newest int64) (all map[int64]int64, open int64) {
	all, e := map[int64]int64{}, f.Epoch(now)
	for _, field := range m.fields {
		for k, n := range field.totals {
			if k > e-int64(f.Kept) && n > 0 {
				all[k] += n
			}
		}
		if field.epoch == newest {
			open += field.open
		}
	}
	return all, open
}

// room is how much fits in.
func (m *model) room(f Rule, limit Limit, now int64) int64 {
	if f.Kind == Bucket {
		if limit.Rate == 0 {
			return 0
		}
		whole, rest := m.whole(f.Window.Microseconds())
		return limit.Size - max(0, whole+min(1, rest))
	}
	e, room := f.Epoch(now), limit.Size
	all, _ := m.sum(f, now, 0)
	for k, n := range all {
		if k > e {
			continue
		}
		if f.Kind == Fades && k == e-int64(f.Kept)+1 {
			window := f.Window.Microseconds()
			gone := times(n, now%window*int64(f.Parts)%window)
			n -= gone.Div(gone, big.NewInt(window)).Int64()
		}
		room -= n
	}
	return room
}

// grant adds n units to what a node has spent.
func (m *model) grant(f Rule, node string, n, now int64) {
	own := m.fields[node]
	if f.Kind == Bucket {
		m.level.Add(m.level, times(n, f.Window.Microseconds()))
		m.total, m.added = m.total+n, m.added+n
		own.total, own.granted = own.total+n, own.granted+n
	} else {
		e := f.Epoch(now)
		if own.epoch < e {
			own.epoch, own.open = e, 0
		}
		own.totals = maps.Clone(own.totals)
		own.totals[e] += n
	}
	m.fields[node] = own
}

// note is the end of a call.
func (m *model) note(node string) {
	own := m.fields[node]
	if own.granted > 0 {
		own.stands = m.added
	}
	m.fields[node] = own
}
