package accesslog

import (
	"container/heap"
)

// batch is how many records are handed on together, and batchText about how many bytes of text they
// hold.
const (
	batch     = 256
	batchText = 256 << 10
)

// maxHeld is how many records are held back to bring them into order, and maxText how many bytes of
// text they hold together. Tests lower them.
var (
	maxHeld = 1 << 17
	maxText = 64 << 20
)

// Each calls yield with the requests of all files, in the order in which they began, until it
// returns false. A record is only valid within the call. Files are read by a goroutine that ends
// before Each returns.
func (f *Files) Each(o Options, yield func(*Record) bool) Stats {
	m := &merger{
		Options: o, ordered: make(chan []Record, 4), used: make(chan []Record, 8), stop: make(chan struct{}),
	}
	go m.run(f.sources)
	stopped := false
	for records := range m.ordered {
		for i := range records {
			if !stopped && !yield(&records[i]) {
				stopped = true
				close(m.stop)
			}
		}
		clear(records) // their texts may be large
		select {
		case m.used <- records:
		default:
		}
	}
	return m.stats
}

// merger brings the lines of several files into order: first by when they were written, which is
// how each file goes on, then by when their requests began.
type merger struct {
	Options
	stats Stats

	ordered, used chan []Record
	stop          chan struct{}
	out           []Record
	outText       int // bytes that out holds

	held    []Record // in any order, at the indices that are not in free
	free    []int32
	waiting starts
	made    int64
	text    int   // bytes that are held
	last    int64 // the start of the record handed on last
	begun   bool
}

// run reads all files.
func (m *merger) run(all []*source) {
	defer close(m.ordered)
	var open heads
	for _, s := range all {
		s.parser.headers = m.Headers
		if s.next(&m.stats) {
			open = append(open, s)
		}
	}
	heap.Init(&open)
	newest := int64(0)
	for len(open) > 0 {
		s := open[0]
		newest = max(newest, s.at)
		m.add(s)
		for len(m.waiting) > 0 && (newest-m.waiting[0].at > int64(m.Reorder) || len(m.waiting) > maxHeld || m.text > maxText) {
			if newest-m.waiting[0].at <= int64(m.Reorder) {
				m.stats.Early++
			}
			if !m.handOn() {
				return
			}
		}
		if s.next(&m.stats) {
			heap.Fix(&open, 0)
		} else {
			heap.Pop(&open)
		}
	}
	for len(m.waiting) > 0 {
		if !m.handOn() {
			return
		}
	}
	m.flush()
}

// add holds a file's next record back until those that began earlier have been read.
func (m *merger) add(s *source) {
	if m.begun && s.head.Start < m.last {
		m.stats.Requests--
		if s.head.Text {
			m.stats.Texts--
		}
		m.stats.trouble(Trouble{File: s.name, Line: s.number, Late: true, Why: "it began before what was read before it"})
		return
	}
	i := int32(len(m.held))
	if n := len(m.free); n > 0 {
		i, m.free = m.free[n-1], m.free[:n-1]
		m.held[i] = s.head
	} else {
		m.held = append(m.held, s.head)
	}
	m.made++
	m.text += s.head.size()
	m.waiting.push(start{s.head.Start, m.made, i})
}

// handOn hands on the record that began first. It returns false if nobody wants it any more.
func (m *merger) handOn() bool {
	first := m.waiting.pop()
	r := &m.held[first.index]
	size := r.size()
	m.text -= size
	m.outText += size
	m.last, m.begun = first.at, true
	m.out = append(m.out, *r)
	*r = Record{}
	m.free = append(m.free, first.index)
	if len(m.out) == batch || m.outText >= batchText {
		return m.flush()
	}
	return true
}

// size is about how many bytes of text a record holds.
func (r *Record) size() int {
	n := len(r.Method) + len(r.Host) + len(r.URI) + len(r.Proto) + len(r.RemoteIP) + len(r.ClientIP) + len(r.User)
	for name, values := range r.Headers {
		n += len(name) + 64
		for _, v := range values {
			n += len(v)
		}
	}
	return n
}

func (m *merger) flush() bool {
	select {
	case m.ordered <- m.out:
	case <-m.stop:
		return false
	}
	m.outText = 0
	select {
	case old := <-m.used:
		m.out = old[:0]
	default:
		m.out = make([]Record, 0, batch)
	}
	return true
}

// heads are files by when their next line was written.
type heads []*source

func (h heads) Len() int { return len(h) }
func (h heads) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)   { *h = append(*h, x.(*source)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// start is a record that is held back.
type start struct {
	at, made int64
	index    int32
}

func (s start) before(o start) bool { return s.at < o.at || s.at == o.at && s.made < o.made }

// starts are records by when they began, as a heap. It is one of its own, as container/heap would
// allocate for each record.
type starts []start

func (h *starts) push(s start) {
	*h = append(*h, s)
	all := *h
	for i := len(all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !all[i].before(all[parent]) {
			return
		}
		all[i], all[parent] = all[parent], all[i]
		i = parent
	}
}

func (h *starts) pop() start {
	all := *h
	first, last := all[0], len(all)-1
	all[0] = all[last]
	all = all[:last]
	for i := 0; ; {
		least := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(all) && all[child].before(all[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
	*h = all
	return first
}
