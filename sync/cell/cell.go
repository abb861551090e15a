// Package cell is the one thing that nodes share of a key in a limit, and the one script by which
// they do.
//
// A cell is a hash in Redis. Each node says in full what it has spent of the key, its state, under
// a number that grows. So messages that are lost, repeated or late change nothing. A strict call is
// such a message that asks for more. The head of say.lua tells what stands in a cell, and what a
// call is made of.
package cell

import (
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Source is the script.
//
//go:embed say.lua
var Source string

// A Family says how the script counts.
type Family struct {
	// Kind is Windows, Fades or Bucket.
	Kind byte
	// Window is how long a limit's window is, Parts how many epochs it has, and Live how many
	// count.
	Window      time.Duration
	Parts, Live int
	// Size is how much fits in, and Rate how much flows out of a bucket in a window.
	Size, Rate int64
	// Counts is for how long the newest epoch counts.
	Counts time.Duration
	// Opens says that what is granted is open until its response begins.
	Opens bool
}

// Kinds of families.
const (
	Windows = 'w' // fixed windows and logs: an epoch counts until it is over
	Fades   = 's' // the oldest epoch counts by the part of it that is still in the window
	Bucket  = 'b'
)

// String is a family as the script reads it, without the stamp behind it.
func (f Family) String() string {
	opens := 0
	if f.Opens {
		opens = 1
	}
	return fmt.Sprintf("%c %d %d %d %d %d %d %d", f.Kind, f.Window.Microseconds(), f.Parts, f.Live, f.Size, f.Rate, f.Counts.Milliseconds(), opens)
}

// Epoch is the number of the epoch at an instant, in microseconds of Redis' clock.
func (f Family) Epoch(now int64) int64 {
	window, parts := f.Window.Microseconds(), int64(f.Parts)
	return now/window*parts + now%window*parts/window
}

// A State is what a node says of a cell. It has totals, or what a bucket has.
type State struct {
	// Seq is the number of the message, which is that of the call.
	Seq, Stamp, Open int64
	// Epoch is the newest one, and Totals what was spent in it and in those before.
	Epoch  int64
	Totals []int64
	// Start names the state of a bucket, and Total is what was spent in it.
	Start, Total int64
	// Fresh is what of the total Redis is not known to have, and Span for how long the node has
	// been spending it, in microseconds. Heard is the last Seq whose answer the node has, Whole and
	// Rest the level that it knows.
	Fresh, Span, Heard, Whole, Rest int64
}

// append adds what the script has of a cell.
func (s *Said) append(args []any) []any {
	b := make([]byte, 0, 64)
	b = strconv.AppendInt(append(append(b, s.Family...), ' '), s.State.Stamp, 10)
	args = append(args, string(b))
	if s.Family[0] == Bucket {
		args = append(args, string(numbers(b[:0], s.State.Open, s.State.Start, s.State.Total)))
		return append(args, string(numbers(b[:0], s.State.Fresh, s.State.Span, s.State.Heard, s.State.Whole, s.State.Rest)))
	}
	total, older := int64(0), []int64(nil)
	if len(s.State.Totals) > 0 {
		total, older = s.State.Totals[0], s.State.Totals[1:]
	}
	args = append(args, strconv.FormatInt(total, 10))
	b = numbers(append(b[:0], ' '), s.State.Epoch, s.State.Open)
	for _, n := range older {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return append(args, string(b))
}

// numbers adds numbers with a space between them.
func numbers(b []byte, all ...int64) []byte {
	for i, n := range all {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return b
}

// A Said is a cell in a call: its key, its family as a text, and what the node says of it.
type Said struct {
	Key    string
	Family string
	State  State
}

// An Ask is so many requests that cost the same, and the limits of each cell that they go by.
type Ask struct {
	Count, Cost int64
	Limits      []Limit
}

// A Limit is what a request goes by.
type Limit struct{ Size, Rate int64 }

// A Ban is the key of a ban, and what the node knows of it: "begun length stamp", or nothing.
type Ban struct{ Key, Known string }

// A Call is a message of a node.
type Call struct {
	Node string
	// Seq is above that of all earlier calls; 0 only reads.
	Seq   int64
	Cells []Said
	Bans  []Ban
	Asks  []Ask
	// Told is the sorted set of cells that other regions hear of, of which the nodes here have
	// spent Least or more. It is empty where limits don't go over regions.
	Told  string
	Least int64
	// Quiet says that no earlier message of these cells is without an answer.
	Quiet bool
}

// Args are the KEYS and ARGV of the script.
func (c *Call) Args() (keys []string, args []any) {
	quiet, least := "", ""
	if c.Quiet {
		quiet = "1"
	}
	if c.Told != "" {
		least = strconv.FormatInt(c.Least, 10)
	}
	args = append(args, c.Node, c.Seq, len(c.Cells), least, quiet)
	for i := range c.Cells {
		said := &c.Cells[i]
		keys = append(keys, said.Key)
		args = said.append(args)
	}
	for _, ban := range c.Bans {
		keys = append(keys, ban.Key)
		args = append(args, ban.Known)
	}
	if c.Told != "" {
		keys = append(keys, c.Told)
	}
	for _, ask := range c.Asks {
		args = append(args, ask.Count, ask.Cost)
		for _, limit := range ask.Limits {
			args = append(args, limit.Size, limit.Rate)
		}
	}
	return keys, args
}

// A Sum is what all nodes have of a cell.
type Sum struct {
	Stamp, End, Open int64
	// Epoch and Totals are those of windows.
	Epoch  int64
	Totals []int64
	// Total is what was spent of a bucket, Whole and Rest its level, which may be below 0, At the
	// instant of that, Rate what flows out, and Added what was added in all.
	Total, Whole, Rest, At, Rate, Added int64
}

// A Heard is what the answer to a call says of a cell.
type Heard struct {
	// Held is what Redis had of the node's state before. Its Seq is 0 where it had none. Of a
	// bucket its Total includes Granted, by a call that came before.
	Held    State
	Granted int64
	Sum     Sum
	// Under is the stamp of a reset that the node has not heard of; then nothing was said. Err is
	// an error about this key alone.
	Under int64
	Err   error
}

// An Answer is that to a call.
type Answer struct {
	Now int64 // microseconds of Redis' clock
	// Grants are how many requests of each Ask were granted. Without them Status says why: "old",
	// "banned" or "failed".
	Grants []int64
	Status string
	Cells  []Heard
	Bans   []string
}

var errReply = errors.New("the reply makes no sense")

// Read reads the answer to a call.
func (c *Call) Read(text string) (a Answer, err error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 2+2*len(c.Cells)+len(c.Bans) {
		return a, errReply
	}
	clock, ok := integers(lines[0])
	if !ok || len(clock) != 2 {
		return a, errReply
	}
	a.Now = clock[0]*1e6 + clock[1]
	if len(c.Asks) > 0 {
		granted, ok := integers(strings.ReplaceAll(lines[1], ",", " "))
		switch {
		case !ok:
			a.Status = lines[1]
		case len(granted) != len(c.Asks):
			return a, errReply
		}
		a.Grants = granted
	}
	for i := range c.Cells {
		heard, err := read(lines[2+2*i], lines[3+2*i], c.Cells[i].Family[0])
		if err != nil {
			return a, err
		}
		a.Cells = append(a.Cells, heard)
	}
	a.Bans = lines[2+2*len(c.Cells):]
	return a, nil
}

// read reads the two lines of a cell.
func read(held, sum string, kind byte) (h Heard, err error) {
	if held == "!" {
		return Heard{Err: errors.New(sum)}, nil
	}
	s, ok := integers(sum)
	if held == "@" {
		if !ok || len(s) != 1 {
			return h, errReply
		}
		return Heard{Under: s[0]}, nil
	}
	f, there := integers(held)
	if kind == Bucket {
		if ok && len(s) == 9 {
			h.Sum = Sum{Stamp: s[0], End: s[1], Open: s[2], Total: s[3], Whole: s[4], Rest: s[5], At: s[6], Rate: s[7], Added: s[8]}
		}
		if there && len(f) == 6 {
			h.Held, h.Granted = State{Seq: f[0], Open: f[1], Start: f[2], Total: f[3]}, f[4]
		}
		return h, nil
	}
	if ok && len(s) > 4 {
		h.Sum = Sum{Stamp: s[1], End: s[2], Open: s[4], Epoch: s[3], Totals: append(s[:1:1], s[5:]...)}
	}
	if there && len(f) > 3 {
		h.Held = State{Seq: f[0], Open: f[3], Epoch: f[2], Totals: append(f[1:2:2], f[4:]...)}
	}
	return h, nil
}

// integers are the numbers of a text with a space between them.
func integers(text string) (all []int64, ok bool) {
	for text != "" {
		word, rest, _ := strings.Cut(text, " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, false
		}
		all, text = append(all, n), rest
	}
	return all, true
}
