package accesslog

import "github.com/caddy-tide/ratelimit/internal/heap"

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
		Options: o, ordered: make(chan []*Record, 4), stop: make(chan struct{}),
		waiting: heap.Heap[start]{Before: start.isBefore},
	}
	go m.run(f.sources)
	stopped := false
	for records := range m.ordered {
		for _, r := range records {
			if !stopped && !yield(r) {
				stopped = true
				close(m.stop)
			}
		}
	}
	return m.stats
}

// merger brings the lines of several files into order: first by when they were written, which is
// how each file goes on, then by when their requests began.
type merger struct {
	Options
	stats Stats

	ordered chan []*Record
	stop    chan struct{}
	out     []*Record
	outText int // bytes that out holds

	waiting heap.Heap[start]
	made    int64
	text    int   // bytes that are held
	last    int64 // the start of the record handed on last
	begun   bool
}

// run reads all files.
func (m *merger) run(all []*source) {
	defer close(m.ordered)
	open := heap.Heap[*source]{Before: isWrittenBefore}
	for _, s := range all {
		s.parser.headers, s.parser.fields = m.Headers, m.Fields
		if s.next(&m.stats) {
			open.Push(s)
		}
	}
	newest := int64(0)
	for len(open.All) > 0 {
		s := open.All[0]
		newest = max(newest, s.at)
		m.add(s)
		for len(m.waiting.All) > 0 {
			isDue := newest-m.waiting.All[0].Start > int64(m.Reorder)
			if !isDue && len(m.waiting.All) <= maxHeld && m.text <= maxText {
				break
			}
			if !isDue {
				m.stats.Early++
			}
			if !m.handOn() {
				return
			}
		}
		if s.next(&m.stats) {
			open.Fix()
		} else {
			open.Pop()
		}
	}
	for len(m.waiting.All) > 0 {
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
	m.made++
	m.text += s.head.size()
	m.waiting.Push(start{s.head, m.made})
}

// handOn hands on the record that began first. It returns false if nobody wants it any more.
func (m *merger) handOn() bool {
	first := m.waiting.Pop()
	size := first.size()
	m.text -= size
	m.outText += size
	m.last, m.begun = first.Start, true
	m.out = append(m.out, first.Record)
	if len(m.out) == batch || m.outText >= batchText {
		return m.flush()
	}
	return true
}

// size is about how many bytes of text a record holds.
func (r *Record) size() int {
	n := len(r.Method) + len(r.Host) + len(r.URI) + len(r.Proto) + len(r.RemoteIP) + len(r.ClientIP) + len(r.User)
	for _, text := range r.Fields {
		n += len(text)
	}
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
	m.out, m.outText = make([]*Record, 0, batch), 0
	return true
}

// isWrittenBefore is the order in which lines were written.
func isWrittenBefore(a, b *source) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

// start is a record that is held back.
type start struct {
	*Record
	made int64
}

func (s start) isBefore(o start) bool {
	return s.Start < o.Start || s.Start == o.Start && s.made < o.made
}
