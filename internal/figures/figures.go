// Package figures finds numbers at paths of JSON that passes in pieces.
//
// A body is neither kept nor changed: a Scanner has the same size for a body of a gigabyte as for
// an empty one, and a write allocates nothing.
package figures

import (
	"errors"
	"fmt"
	"strings"
)

// maxParts is how many parts a path has at most.
const maxParts = 16

// Paths are the paths that a body is searched for. They are made once, and then only read.
//
// A path is a list of keys with dots between them, as in usage.total_tokens. A key is compared as
// it is written in the body; one that is written with an escape is none. Arrays have no part in a
// path: it leads to all of their elements.
type Paths struct {
	// nodes are the keys as a tree. The first one is where no path leads to, the second one is the
	// top of a value.
	nodes []node
	lines int
	// longest is the length of the longest key.
	longest int
}

// A node is what paths lead to by the same keys.
type node struct {
	children []child
	lines    []int // those that a number here is of
}

type child struct {
	key  string
	node uint16
}

const (
	nowhere uint16 = iota
	top
)

// maxNodes is how many nodes have a number of their own on the stack of a Scanner.
const maxNodes = 1 << 15

// NewPaths returns the paths of some lines. Those of one line are alternatives: of all numbers that
// they lead to the greatest one is that of the line.
func NewPaths(lines [][]string) (*Paths, error) {
	p := &Paths{nodes: make([]node, 2), lines: len(lines)}
	for line, paths := range lines {
		for _, path := range paths {
			if err := CheckPath(path); err != nil {
				return nil, err
			}
			at := top
			for key := range strings.SplitSeq(path, ".") {
				at = p.grow(at, key)
			}
			p.nodes[at].lines = append(p.nodes[at].lines, line)
			if len(p.nodes) > maxNodes {
				return nil, errors.New("there are too many paths of JSON; write fewer of them")
			}
		}
	}
	return p, nil
}

// CheckPath reports what is wrong with a path.
func CheckPath(path string) error {
	switch parts := strings.Split(path, "."); {
	case strings.HasPrefix(path, "$."):
		return fmt.Errorf("%q is JSONPath; write keys with a dot between them, like %s", path, path[2:])
	case len(parts) > maxParts:
		return fmt.Errorf("the path has %d parts; write at most %d", len(parts), maxParts)
	case strings.HasPrefix(path, ".") || strings.HasSuffix(path, ".") || strings.Contains(path, "..") || path == "":
		return fmt.Errorf("the path %q has an empty part; write keys with a dot between them, like usage.total_tokens", path)
	}
	return nil
}

// grow returns the node that a key leads to from another one.
func (p *Paths) grow(at uint16, key string) uint16 {
	if to := p.child(at, []byte(key)); to != nowhere {
		return to
	}
	to := uint16(len(p.nodes))
	p.nodes = append(p.nodes, node{})
	p.nodes[at].children = append(p.nodes[at].children, child{key, to})
	p.longest = max(p.longest, len(key))
	return to
}

// child returns the node that a key leads to from another one, or nowhere.
func (p *Paths) child(at uint16, key []byte) uint16 {
	for i := range p.nodes[at].children {
		if c := &p.nodes[at].children[i]; c.key == string(key) {
			return c.node
		}
	}
	return nowhere
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
