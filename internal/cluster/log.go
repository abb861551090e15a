package cluster

import (
	"bytes"
	"strings"
	"sync"
)

// A Log holds what a process wrote, by lines. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	lines   []string
	rest    []byte
	awaited []awaited
}

type awaited struct {
	text string
	seen chan struct{}
}

// Write takes a piece of output.
func (l *Log) Write(piece []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, piece...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(piece), nil
		}
		l.add(string(line))
		l.rest = append(l.rest[:0], rest...)
	}
}

func (l *Log) add(line string) {
	l.lines = append(l.lines, line)
	for i := 0; i < len(l.awaited); i++ {
		if strings.Contains(line, l.awaited[i].text) {
			close(l.awaited[i].seen)
			l.awaited = append(l.awaited[:i], l.awaited[i+1:]...)
			i--
		}
	}
}

// next is closed when a line with the text comes that is not there yet.
func (l *Log) next(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := awaited{text, make(chan struct{})}
	l.awaited = append(l.awaited, a)
	return a.seen
}

// Lines returns all whole lines until now.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// With returns the lines that hold a text.
func (l *Log) With(text string) (found []string) {
	for _, line := range l.Lines() {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Tail is the last few lines, as one text.
func (l *Log) Tail(n int) string {
	all := l.Lines()
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
