package table

import "github.com/caddy-tide/ratelimit/internal/keys"

// An index finds the slot of a key: open addressing with a word a slot, which is a tag of 32 bits
// from the key's hash, and above it which slot, plus one. A look-up reads one cache line where a Go
// map reads three. Keys that share a tag are told apart by the owner, who also locks. The zero
// index is empty.
type index struct {
	words []uint64 // a power of two of them, at most seven eighths used
	n     int
}

func wordOf(tag, slot uint32) uint64 { return uint64(slot+1)<<32 | uint64(tag) }

// Len returns how many keys there are.
func (x *index) Len() int { return x.n }

func (x *index) home(word uint64) uint32 { return uint32(word) & uint32(len(x.words)-1) }

// Seek returns the first slot from a position on whose key may be the one, and the position after
// it. A search begins at the position tag, and ends where ok is false.
func (x *index) Seek(tag, from uint32) (slot, next uint32, ok bool) {
	mask := uint32(len(x.words) - 1)
	for at := from; x.n > 0; at++ {
		word := x.words[at&mask]
		if uint32(word) == tag && word != 0 {
			return uint32(word>>32) - 1, at + 1, true
		}
		if word == 0 {
			break
		}
	}
	return 0, 0, false
}

// Add enters a key that is not there.
func (x *index) Add(tag, slot uint32) {
	if (x.n+1)*8 > len(x.words)*7 {
		x.resize(max(8, 2*len(x.words)))
	}
	x.put(wordOf(tag, slot))
	x.n++
}

// resize enters all words again, in so many.
func (x *index) resize(words int) {
	old := x.words
	x.words = make([]uint64, words)
	for _, word := range old {
		if word != 0 {
			x.put(word)
		}
	}
}

// Fit makes the index as small as it would be if what it holds had been entered now.
func (x *index) Fit() {
	if x.n == 0 {
		x.words = nil
		return
	}
	words := 8
	for x.n*8 > words*7 {
		words *= 2
	}
	x.resize(words)
}

func (x *index) put(word uint64) {
	mask := uint32(len(x.words) - 1)
	at := x.home(word)
	for x.words[at] != 0 {
		at = (at + 1) & mask
	}
	x.words[at] = word
}

// Remove takes a key that is there out, and closes the gap: no word may stand behind an empty one
// that begins its search.
func (x *index) Remove(tag, slot uint32) {
	mask := uint32(len(x.words) - 1)
	gap := x.at(wordOf(tag, slot))
	for at := (gap + 1) & mask; x.words[at] != 0; at = (at + 1) & mask {
		if (at-x.home(x.words[at]))&mask >= (at-gap)&mask {
			x.words[gap] = x.words[at]
			gap = at
		}
	}
	x.words[gap] = 0
	x.n--
}

// Rename gives a key that is there another slot.
func (x *index) Rename(tag, from, to uint32) { x.words[x.at(wordOf(tag, from))] = wordOf(tag, to) }

// at returns where a word that is there stands.
func (x *index) at(word uint64) uint32 {
	at, mask := x.home(word), uint32(len(x.words)-1)
	for x.words[at] != word {
		at = (at + 1) & mask
	}
	return at
}

// tagOf is the part of a key by which the index of a stripe finds it.
func tagOf(key keys.Key) uint32 { return uint32(key.A) }
