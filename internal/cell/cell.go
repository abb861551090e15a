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
	"fmt"
	"time"
)

// Script is the script.
//
//go:embed say.lua
var Script string

// A Rule says how the script counts.
type Rule struct {
	// Kind is Windows, Calendar, Fades or Bucket.
	Kind byte
	// Window is how long a limit's window is, Parts how many epochs it has, and Kept how many
	// count.
	Window      time.Duration
	Parts, Kept int
	// Shift is by how many microseconds the clock of a Calendar is ahead of one whose windows have
	// all been as long as the current one.
	Shift int64
	// Size is how much fits in, and Rate how much flows out of a bucket in a window.
	Size, Rate int64
	// Decided says that Rate is that of a request since the last answer, and Filled that a penalty
	// has filled the bucket.
	Decided, Filled bool
	// TTL is for how long the newest epoch counts.
	TTL time.Duration
	// Reserved says that what is granted is reserved until its response begins, and GrowOnly that
	// no total of another region falls by this message.
	Reserved, GrowOnly bool
}

// Kinds of rules.
const (
	Windows  = 'w' // fixed windows and logs: an epoch counts until it is over
	Calendar = 'c' // fixed windows of a calendar
	Fades    = 's' // the oldest epoch counts by the part of it that is still in the window
	Bucket   = 'b'
)

// String is a rule as the script reads it, without the stamp and the node behind it.
func (r Rule) String() string {
	parts, kept, flag := int64(r.Parts), r.Kept, oneIf(r.Reserved || r.GrowOnly)
	switch r.Kind {
	case Calendar:
		parts = r.Shift
	case Bucket:
		kept = oneIf(r.Decided) + 2*oneIf(r.Filled)
	}
	return fmt.Sprintf("%c %d %d %d %d %d %d %d", r.Kind, r.Window.Microseconds(), parts, kept, r.Size, r.Rate, r.TTL.Milliseconds(), flag)
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Epoch is the number of the epoch at an instant, in microseconds of Redis' clock.
func (r Rule) Epoch(now int64) int64 {
	window, parts := r.Window.Microseconds(), int64(r.Parts)
	now -= r.Shift
	return now/window*parts + now%window*parts/window
}

// A State is what a node says of a cell. It has totals, or what a bucket has.
type State struct {
	// Seq is the number of the message, which is that of the call.
	Seq, Stamp, Reserved int64
	// Epoch is the newest one, and Totals what was spent in it and in those before.
	Epoch  int64
	Totals []int64
	// Incarnation numbers the state of a bucket, and Total is what was spent in that.
	Incarnation, Total int64
	// Unacked is what of the total Redis is not known to have, and UnackedFor for how long the node
	// has been spending it, in microseconds. AnsweredSeq is the last Seq whose answer the node has,
	// Whole and Rest the level that it knows.
	Unacked, UnackedFor, AnsweredSeq, Whole, Rest int64
}

// At is what was spent in an epoch.
func (s *State) At(epoch int64) int64 { return at(s.Epoch, s.Totals, epoch) }

func at(newest int64, totals []int64, epoch int64) int64 {
	if age := newest - epoch; age >= 0 && age < int64(len(totals)) {
		return totals[age]
	}
	return 0
}

// An Update is a cell in a call: its key, its rule as a text, the node, and what that says of it.
type Update struct {
	Key   string
	Rule  string
	Node  string
	State State
}

// An Ask is so many requests that cost the same, and the limits of each cell that they go by.
type Ask struct {
	Count, Cost int64
	Limits      []Limit
}

// A Limit is what a request goes by.
type Limit struct{ Size, Rate int64 }

// A Ban is the key of a ban, and what the node knows of it: "begun length stamp", and " memory"
// where bans grow, or nothing.
type Ban struct{ Key, Known string }

// A Call is a message.
type Call struct {
	// Seq is above that of all earlier calls of the same node; 0 only reads.
	Seq   int64
	Cells []Update
	Bans  []Ban
	Asks  []Ask
	// Told is the sorted set of cells that other regions hear of, of which the nodes here have
	// spent Least or more. It is empty where limits don't go over regions.
	Told  string
	Least int64
}

// A Sum is what all nodes have of a cell.
type Sum struct {
	Stamp, End, Reserved int64
	// Epoch and Totals are those of windows.
	Epoch  int64
	Totals []int64
	// Total is what was spent of a bucket, Whole and Rest its level, which may be below 0, At the
	// instant of that, Rate what flows out, and Added what was added in all.
	Total, Whole, Rest, At, Rate, Added int64
}

// In is what was spent in an epoch.
func (s *Sum) In(epoch int64) int64 { return at(s.Epoch, s.Totals, epoch) }

// A Reply is what the answer to a call says of a cell.
type Reply struct {
	// Previous is what Redis had of the node's state before. Its Seq is 0 where it had none. Of a
	// bucket its Total includes what a call granted that came before.
	Previous State
	Sum      Sum
	// Regions is set where another region has something of the cell.
	Regions bool
	// NewerStamp is that of a reset that the node has not heard of; then nothing was said. Err is
	// an error about this key alone.
	NewerStamp int64
	Err        string
}

// An Answer is that to a call.
type Answer struct {
	Now int64 // microseconds of Redis' clock
	// Grants are how many requests of each Ask were granted. Without them Status says why: "old",
	// "banned" or "failed".
	Grants []int64
	Status string
	Cells  []Reply
	Bans   []string
}
