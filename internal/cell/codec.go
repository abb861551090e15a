package cell

import (
	"errors"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Append adds how many KEYS the script has, the KEYS and ARGV.
func (c *Call) Append(a *Args) {
	n := len(c.Cells) + len(c.Bans)
	if c.Told != "" {
		n++
	}
	a.Number(int64(n))
	for i := range c.Cells {
		a.End(c.Cells[i].Key)
	}
	for i := range c.Bans {
		a.End(c.Bans[i].Key)
	}
	if c.Told != "" {
		a.End(c.Told)
	}
	a.Number(c.Seq)
	a.Number(int64(len(c.Cells)))
	if c.Told != "" {
		a.Text = strconv.AppendInt(a.Text, c.Least, 10)
	}
	a.End("")
	for i := range c.Cells {
		said := &c.Cells[i]
		if before := &c.Cells[max(0, i-1)]; i == 0 || before.Rule != said.Rule || before.Node != said.Node || before.State.Stamp != said.State.Stamp {
			a.Text = append(a.Text, said.Rule...)
			a.Append(said.State.Stamp)
			a.Text = append(a.Text, ' ')
			a.Text = append(a.Text, said.Node...)
		}
		a.End("")
		said.append(a)
	}
	for i := range c.Bans {
		a.End(c.Bans[i].Known)
	}
	for i := range c.Asks {
		a.Number(c.Asks[i].Count)
		a.Number(c.Asks[i].Cost)
		for _, limit := range c.Asks[i].Limits {
			a.Number(limit.Size)
			a.Number(limit.Rate)
		}
	}
}

// append adds what a node says of a cell.
func (s *Update) append(a *Args) {
	state := &s.State
	if s.Rule[0] == Bucket {
		a.Text = strconv.AppendInt(a.Text, state.Reserved, 10)
		a.Append(state.Incarnation, state.Total)
		a.End("")
		a.Text = strconv.AppendInt(a.Text, state.Unacked, 10)
		a.Append(state.UnackedFor, state.AnsweredSeq, state.Whole, state.Rest)
		a.End("")
		return
	}
	a.Number(state.At(state.Epoch))
	a.Append(state.Epoch, state.Reserved)
	a.Append(state.Totals[min(1, len(state.Totals)):]...)
	a.End("")
}

// ErrReply is the error of a reply that makes no sense.
var ErrReply = errors.New("the reply of redis has another form than its script gives")

// Read reads the answer to a call into a, of which what is there is used again.
func (c *Call) Read(text string, a *Answer) error {
	clock, rest, _ := strings.Cut(text, "\n")
	granted, rest, more := strings.Cut(rest, "\n")
	now, ok := numbers(clock, make([]int64, 0, 2))
	if !ok || len(now) != 2 {
		return ErrReply
	}
	a.Now = now[0]*1e6 + now[1]
	if a.Grants, a.Status = a.Grants[:0], ""; len(c.Asks) > 0 {
		for one := range strings.SplitSeq(granted, ",") {
			n, err := strconv.ParseInt(one, 10, 64)
			if err != nil {
				a.Grants, a.Status = a.Grants[:0], granted
				break
			}
			a.Grants = append(a.Grants, n)
		}
		if a.Status == "" && len(a.Grants) != len(c.Asks) {
			return ErrReply
		}
	}
	for len(a.Cells) < len(c.Cells) {
		a.Cells = append(a.Cells, Reply{})
	}
	a.Cells = a.Cells[:len(c.Cells)]
	next := func() (line string) {
		ok = ok && more
		line, rest, more = strings.Cut(rest, "\n")
		return line
	}
	for i := range c.Cells {
		own, sum := next(), next()
		if !ok || !a.Cells[i].read(own, sum, c.Cells[i].Rule[0]) {
			return ErrReply
		}
		if h := &a.Cells[i]; c.Seq > 0 && (sum == "" || c.Cells[i].Rule[0] == Bucket && h.NewerStamp == 0 && h.Err == "" && h.Sum.At == 0) {
			h.Err = NoSense // what was said is in the sum, of a bucket with an instant
		}
	}
	a.Bans = a.Bans[:0]
	for range c.Bans {
		a.Bans = append(a.Bans, next())
	}
	if !ok || more {
		return ErrReply
	}
	return nil
}

// read reads the two lines of a cell.
func (h *Reply) read(own, sum string, kind byte) bool {
	*h = Reply{Previous: State{Totals: h.Previous.Totals[:0]}, Sum: Sum{Totals: h.Sum.Totals[:0]}}
	if own == "!" {
		h.Err = sum
		return true
	}
	sum, h.Regions = strings.CutSuffix(sum, " ~")
	var buffer [MaxTotals + 8]int64
	s, ok := numbers(sum, buffer[:0])
	if own == "@" {
		h.NewerStamp = at(0, s, 0)
		return ok && len(s) == 1 && h.NewerStamp > 0
	}
	switch {
	case sum == "":
	case !ok:
		h.Err = NoSense
	case kind == Bucket && len(s) == 9 && makesSenseOf(s):
		h.Sum = Sum{Stamp: s[0], End: s[1], Reserved: s[2], Total: s[3], Whole: s[4], Rest: s[5], At: s[6], Rate: s[7], Added: s[8]}
	case kind != Bucket && len(s) > 4 && makesSense(s):
		totals := append(append(h.Sum.Totals, s[0]), s[5:]...)
		h.Sum = Sum{Stamp: s[1], End: s[2], Reserved: s[4], Epoch: s[3], Totals: totals}
	default:
		h.Err = NoSense
	}
	f, ok := numbers(own, buffer[:0])
	switch {
	case own == "":
	case !ok:
		h.Err = NoSense
	case kind == Bucket && len(f) == 6 && makesSense(f):
		h.Previous = State{Seq: f[0], Reserved: f[1], Incarnation: f[2], Total: f[3]}
	case kind != Bucket && len(f) > 3 && makesSense(f):
		totals := append(append(h.Previous.Totals, f[1]), f[4:]...)
		h.Previous = State{Seq: f[0], Reserved: f[3], Epoch: f[2], Totals: totals}
	default:
		h.Err = NoSense
	}
	return true
}

// NoSense is the error of a cell of which an answer says what makes no sense. Nothing of it is
// believed: whoever else writes there could lock clients out otherwise.
const NoSense = "an answer that makes no sense"

// makesSense reports whether numbers are some that the script counts.
func makesSense(all []int64) bool { return slices.Min(all) >= 0 && slices.Max(all) < MaxExact }

// makesSenseOf is makesSense for the sum of a bucket, whose level has a sign.
func makesSenseOf(s []int64) bool {
	level := s[4]
	return makesSense(s[:4]) && makesSense(s[5:]) && -MaxExact < level && level < MaxExact
}

// MaxExact is how far the numbers of Redis' Lua, which are doubles, can count.
const MaxExact = 1 << 53

// MaxTotals is the most totals that a state has.
const MaxTotals = 32

// numbers appends the numbers of a text with a space between them.
func numbers(text string, to []int64) (all []int64, ok bool) {
	for text != "" {
		word, rest, _ := strings.Cut(text, " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, false
		}
		to, text = append(to, n), rest
	}
	return to, true
}

// RegionState is what the nodes of a region have of a cell, of which so many epochs count, by its
// sum, its field of the other regions and its field born. r has the rate of a bucket, and now is
// the time there, in microseconds. Where all of a bucket was spent since it began there,
// AnsweredSeq, which numbers no message here, is 1 more than what of the level the nodes there have
// spent: as large a part of the level as their total is of all totals.
func RegionState(sum, others, born string, r *Rule, now int64) (s State, ok bool) {
	if r.Kind == Bucket {
		return bucketHere(sum, others, born, r, now)
	}
	var h, far Reply
	h.read("", sum, Windows)
	far.read("", others, Windows)
	if len(h.Sum.Totals) == 0 {
		return s, false
	}
	s = State{Stamp: h.Sum.Stamp, Epoch: h.Sum.Epoch}
	for age := range min(r.Kept, len(h.Sum.Totals)) {
		n := h.Sum.Totals[age]
		if far.Sum.Stamp == s.Stamp {
			n = max(0, n-far.Sum.In(s.Epoch-int64(age)))
		}
		s.Totals = append(s.Totals, n)
	}
	return s, true
}

// bucketHere is RegionState for a bucket. Its rate is that of the bucket.
func bucketHere(sum, others, born string, r *Rule, now int64) (s State, ok bool) {
	var h Reply
	if h.read("", sum, Bucket); h.Sum.At == 0 || h.Err != "" {
		return s, false
	}
	s = State{Stamp: h.Sum.Stamp, Incarnation: 1, Total: h.Sum.Total, Whole: h.Sum.Whole, Rest: h.Sum.Rest}
	knew, there := true, int64(0)
	if n, ok := numbers(born, nil); ok && len(n) == 3 && n[0] > 0 {
		s.Incarnation, s.Total, knew = n[0], max(0, s.Total-n[1]), n[2] > 0
	}
	if far, ok := numbers(others, nil); ok && len(far) == 4 && far[0] == s.Stamp {
		there = min(s.Total, far[3])
		s.Total -= there
	}
	r.Rate = h.Sum.Rate
	s.drain(r, now-h.Sum.At)
	if s.Whole >= 0 {
		s.Unacked = s.Whole + min(1, s.Rest)
	} else {
		s.Whole, s.Rest = 0, 0
	}
	if !knew {
		s.AnsweredSeq = 1 + partOf(s.Unacked, s.Total, s.Total+there)
	}
	return s, true
}

// partOf is the part of n that a is of all, rounded up.
func partOf(n, a, all int64) int64 {
	if all == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(a))
	part, rest := bits.Div64(hi, lo, uint64(all))
	return int64(part) + int64(min(1, rest))
}

// drain has so many microseconds pass.
func (s *State) drain(r *Rule, passed int64) {
	window := r.Window.Microseconds()
	hi, lo := bits.Mul64(uint64(max(0, passed)), uint64(r.Rate))
	if hi >= uint64(window) {
		s.Whole, s.Rest = -1, 0
		return
	}
	whole, parts := bits.Div64(hi, lo, uint64(window))
	if s.Rest -= int64(parts); s.Rest < 0 {
		s.Whole, s.Rest = s.Whole-1, s.Rest+window
	}
	s.Whole -= int64(min(whole, MaxExact))
}

// Raise has a state have so much in an epoch, if it has less there.
func (s *State) Raise(epoch, n int64) {
	if n <= s.At(epoch) {
		return
	}
	for s.Epoch < epoch {
		s.Totals = slices.Insert(s.Totals, 0, 0)
		s.Epoch++
	}
	for int64(len(s.Totals)) <= s.Epoch-epoch {
		s.Totals = append(s.Totals, 0)
	}
	s.Totals[s.Epoch-epoch] = n
}

// RaiseAll raises a state to another one.
func (s *State) RaiseAll(to *State) {
	if s.Incarnation == to.Incarnation {
		s.Total = max(s.Total, to.Total)
	}
	for age, n := range to.Totals {
		s.Raise(to.Epoch-int64(age), n)
	}
}

// IsBelow reports whether a state has less than another one in an epoch, of the so many that count.
func (s *State) IsBelow(other *State, kept int) bool {
	if s.Incarnation == other.Incarnation && s.Total < other.Total {
		return true
	}
	for age, n := range other.Totals {
		if epoch := other.Epoch - int64(age); n > s.At(epoch) && epoch > s.Epoch-int64(kept) {
			return true
		}
	}
	return false
}
