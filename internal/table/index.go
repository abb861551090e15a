package table

// An index finds the slot of a key in its shard: open addressing with a word a slot, which is its
// tag, the low half of the key's first half, and above which slot, plus one. A look-up reads one
// cache line where a Go map reads three; its owner locks.
type index struct {
	words []uint64 // a power of two of them, at most seven eighths used
	n     int
}

func tagOf(key Key) uint32 { return uint32(key[0]) }

func wordOf(key Key, slot uint32) uint64 { return uint64(slot+1)<<32 | uint64(tagOf(key)) }

func (x *index) home(word uint64) uint32 { return uint32(word) & uint32(len(x.words)-1) }

// seek returns the first slot from a position on whose key may be the one, and the position after
// it. A search begins at the position tag, and ends where ok is false.
func (x *index) seek(tag, from uint32) (slot, next uint32, ok bool) {
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

// add enters a key that is not there.
func (x *index) add(key Key, slot uint32) {
	if (x.n+1)*8 > len(x.words)*7 {
		x.lay(max(8, 2*len(x.words)))
	}
	x.put(wordOf(key, slot))
	x.n++
}

// lay enters all words anew, in so many.
func (x *index) lay(words int) {
	old := x.words
	x.words = make([]uint64, words)
	for _, word := range old {
		if word != 0 {
			x.put(word)
		}
	}
}

// fit makes the index as small as it would be if what it holds had been entered now.
func (x *index) fit() {
	if x.n == 0 {
		x.words = nil
		return
	}
	words := 8
	for x.n*8 > words*7 {
		words *= 2
	}
	x.lay(words)
}

func (x *index) put(word uint64) {
	mask := uint32(len(x.words) - 1)
	at := x.home(word)
	for x.words[at] != 0 {
		at = (at + 1) & mask
	}
	x.words[at] = word
}

// remove takes a key that is there out, and closes the gap: no word may stand behind an empty one
// that begins its search.
func (x *index) remove(key Key, slot uint32) {
	mask := uint32(len(x.words) - 1)
	gap := x.at(wordOf(key, slot))
	for at := (gap + 1) & mask; x.words[at] != 0; at = (at + 1) & mask {
		if (at-x.home(x.words[at]))&mask >= (at-gap)&mask {
			x.words[gap] = x.words[at]
			gap = at
		}
	}
	x.words[gap] = 0
	x.n--
}

// rename gives a key that is there another slot.
func (x *index) rename(key Key, from, to uint32) { x.words[x.at(wordOf(key, from))] = wordOf(key, to) }

// at returns where a word that is there stands.
func (x *index) at(word uint64) uint32 {
	at, mask := x.home(word), uint32(len(x.words)-1)
	for x.words[at] != word {
		at = (at + 1) & mask
	}
	return at
}
