package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// maxLine is the longest line that is read. A longer one is no request that a server would take:
// it is counted as damaged and never held in memory.
const maxLine = 1 << 20

// Files are logs that are open.
type Files struct {
	// Bytes is how much there is to read, as it is stored, 0 where that is not known. Read is how
	// much was read; it may be asked for at any time.
	Bytes int64
	Read  atomic.Int64

	sources []*source
	closers []io.Closer
}

// source is one log.
type source struct {
	name   string
	lines  *bufio.Reader
	number int64 // of the line read last
	parser parser
	head   *Record
	at     int64 // the time of head, at which its line was written
	order  int

	changed int64 // when the file was changed last, or now for what is no file
	newest  int64 // the latest at so far, 0 before the first request
}

// Open opens logs by their paths; "-" is stdin. It fails where one can't be read.
func Open(paths []string, stdin io.Reader) (f *Files, err error) {
	f = &Files{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for i, path := range paths {
		from, changed := stdin, time.Now()
		if path == "-" {
			f.Bytes = -1
		} else {
			file, err := os.Open(path)
			if err != nil {
				return f, err
			}
			f.closers = append(f.closers, file)
			info, err := file.Stat()
			if err != nil {
				return f, err
			}
			if info.IsDir() {
				return f, fmt.Errorf("%s is a directory; name the files in it, like %s/*.log", path, path)
			}
			if info.Mode().IsRegular() {
				changed = info.ModTime()
				if f.Bytes >= 0 {
					f.Bytes += info.Size()
				}
			}
			from = file
		}
		s := &source{name: path, order: i, changed: changed.UnixNano()}
		if s.lines, err = unpacked(&counted{from, &f.Read}); err != nil {
			return f, fmt.Errorf("reading %s: %w", path, err)
		}
		f.sources = append(f.sources, s)
	}
	f.Bytes = max(f.Bytes, 0)
	return f, nil
}

// Close closes the files.
func (f *Files) Close() {
	for _, c := range f.closers {
		_ = c.Close() // they were only read
	}
}

// counted counts what is read.
type counted struct {
	from io.Reader
	n    *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// buffer is how much is read at a time of each file.
const buffer = 64 << 10

// others are formats that are not read, by how they begin, with what unpacks them.
var others = []struct{ magic, name, program string }{
	{"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"}, {"BZh", "bzip2", "bzip2 -dc"}, {"\xfd7zX", "xz", "xz -dc"}, {"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{"PK\x03\x04", "zip", "unzip -p"},
}

// unpacked returns a reader of lines. What is compressed is told by its first bytes: a log that was
// rotated may have any name.
func unpacked(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, buffer)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, c := range others {
		if bytes.HasPrefix(magic, []byte(c.magic)) {
			return nil, fmt.Errorf("it is compressed by %s, which is not read here; give it as standard input: %s FILE | caddy rate-limit simulate … -", c.name, c.program)
		}
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("it begins like gzip, and is not: %w", err)
		}
		return bufio.NewReaderSize(z, buffer), nil
	case bytes.HasPrefix(magic, []byte{0xef, 0xbb, 0xbf}):
		_, err = b.Discard(3) // a byte order mark
		return b, err
	}
	return b, nil
}

// next reads up to the next request. It returns false at the end. What is left out is noted in s.
func (f *source) next(s *Stats) bool {
	for {
		line, err := f.lines.ReadSlice('\n')
		if err != nil && (len(line) == 0 || !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF)) {
			f.ended(err, s)
			return false
		}
		s.Lines++
		f.number++
		var k kind
		why := ""
		if errors.Is(err, bufio.ErrBufferFull) {
			line, why = f.long(line)
		}
		f.head = new(Record)
		if why == "" {
			k, why = f.parser.line(line, f.head)
		}
		if k == request && f.isAhead(f.head.Start+int64(f.head.Took)) {
			k, why = damaged, "its time lies more than a day ahead of the lines after it, or of the file's last change"
		}
		switch k {
		case request:
			s.Requests++
			if f.head.Text {
				s.Texts++
			}
			f.at = f.head.Start + int64(f.head.Took)
			f.newest = max(f.newest, f.at)
			return true
		case other:
			s.Other++
		default:
			s.trouble(Trouble{File: f.name, Line: f.number, Why: why})
		}
	}
}

// day is by how much a line is later than others if a clock had jumped. A site without visitors has
// gaps as long, but no line from before the gap comes after it.
const day = int64(24 * time.Hour)

// isAhead reports whether the time of the line read last is that of a clock that had jumped. All
// others would be late after it. A log whose times are all of a wrong clock is whole in itself.
func (f *source) isAhead(at int64) bool {
	if f.newest != 0 && at-f.newest <= day {
		return false
	}
	if f.newest != 0 && f.newest-f.changed <= day && at-f.changed > day {
		return true
	}
	// What is in the buffer tells; an error at its end comes again when it is read.
	following, _ := f.lines.Peek(buffer)
	p := parser{times: f.parser.times}
	for {
		line, rest, whole := bytes.Cut(following, []byte{'\n'})
		var next Record
		if k, _ := p.line(line, &next); whole && k == request && at-next.Start-int64(next.Took) > day {
			return true
		}
		if following = rest; !whole {
			return false
		}
	}
}

// long reads the rest of a line that is longer than the buffer.
func (f *source) long(start []byte) (line []byte, why string) {
	line = bytes.Clone(start)
	for {
		more, err := f.lines.ReadSlice('\n')
		if len(line)+len(more) > maxLine {
			line, why = line[:0], "it is longer than 1 MiB"
		}
		if why == "" {
			line = append(line, more...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, why
		}
	}
}

// ended notes a file that ends before its end.
func (f *source) ended(err error, s *Stats) {
	if !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s.trouble(Trouble{File: f.name, Line: f.number + 1, Why: "the file can't be read any further: " + err.Error()})
	}
}
