// Package figures finds numbers at paths of JSON that passes in pieces.
//
// A body is neither kept nor changed: a Scanner has at most some kilobytes, also for a body of a
// gigabyte, and for a string or a number in it that is as long.
package figures

import (
	"fmt"
	"strings"
)

// Paths are the paths that a body is searched for. They are made once, and then only read.
//
// A path is a list of keys with dots between them, as in usage.total_tokens. A key is compared as
// it is written in the body; one that is written with an escape is none. Arrays have no part in a
// path: it leads to all of their elements.
type Paths struct {
	// lines are those of each path, in which a quote stands before every key and no dot.
	lines map[string][]int
	count int
	// longest is the length of the longest path.
	longest int
}

// NewPaths returns the paths of some lines. Those of one line are alternatives: of all numbers that
// they lead to the greatest one is that of the line.
func NewPaths(lines [][]string) (*Paths, error) {
	p := &Paths{lines: map[string][]int{}, count: len(lines)}
	for line, paths := range lines {
		for _, path := range paths {
			if err := CheckPath(path); err != nil {
				return nil, err
			}
			path = strings.ReplaceAll("."+path, ".", `"`)
			p.lines[path] = append(p.lines[path], line)
			p.longest = max(p.longest, len(path))
		}
	}
	return p, nil
}

// CheckPath reports what is wrong with a path.
func CheckPath(path string) error {
	switch {
	case strings.HasPrefix(path, "$."):
		return fmt.Errorf("%q is JSONPath; write keys with a dot between them, like %s", path, path[2:])
	case strings.Contains("."+path+".", ".."):
		return fmt.Errorf("the path %q has an empty part; write keys with a dot between them, like usage.total_tokens", path)
	}
	return nil
}

// A Format is how the values of a body stand one after the other.
type Format int

const (
	// JSON has values one after the other. Nothing of a body is read after an error in it.
	JSON Format = iota
	// Lines have values that end with their line (ndjson), so that an error does as well.
	Lines
	// Events have values in the data of server-sent events, and a value ends with its event.
	Events
)

// FormatOf returns the format that a Content-Type stands for. ok is false for what has no JSON.
func FormatOf(contentType string) (f Format, ok bool) {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	switch media {
	case "application/json":
		return JSON, true
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines":
		return Lines, true
	case "text/event-stream":
		return Events, true
	}
	return JSON, strings.HasSuffix(media, "+json")
}
