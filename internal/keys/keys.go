// Package keys hashes the keys of counters: for this process, and for all nodes.
package keys

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"strings"
)

// A Key finds a counter in this process: two hashes under seeds of its own, so that nobody outside
// can choose two keys that meet. As a struct it stays in registers; an array would not.
type Key struct{ A, B uint64 }

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// KeyOf hashes the bytes of a key.
func KeyOf(raw []byte) Key {
	return Key{maphash.Bytes(seeds[0], raw), maphash.Bytes(seeds[1], raw)}
}

// An ID names a key to other nodes: the first 128 bits of its SHA-256, the same everywhere. It
// holds no byte that a client sent.
type ID [16]byte

// IDOf hashes the bytes of a key. It costs more than KeyOf, so a table computes it once, when a key
// enters it. Requests do so only in strict zones, where a share of the keys is enforced, and while
// shards are lost.
func IDOf(raw []byte) ID {
	sum := sha256.Sum256(raw)
	return ID(sum[:16])
}

// ShortDigits is how many hex digits of an ID are shown to people.
const ShortDigits = 8

// String is the ID in 32 hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Short is the ID as people see it everywhere: its first 8 hex digits.
func (id ID) Short() string { return id.String()[:ShortDigits] }

// A Prefix is what an ID begins with: it lies between the two, which it may be itself.
type Prefix struct{ first, last ID }

// ParsePrefix reads the first hex digits of an ID, or all of them.
func ParsePrefix(text string) (p Prefix, err error) {
	digits := 2 * len(p.first)
	if text == "" || len(text) > digits {
		return p, errNoID
	}
	for id, fill := range map[*ID]string{&p.first: "0", &p.last: "f"} {
		if _, err := hex.Decode(id[:], []byte(text+strings.Repeat(fill, digits-len(text)))); err != nil {
			return p, errNoID
		}
	}
	return p, nil
}

var errNoID = errors.New("an id is hex digits, as a line of the log or a list shows it: 8 of them, or as many as no other key begins with")

// Has reports whether an ID begins with the prefix.
func (p Prefix) Has(id ID) bool {
	return bytes.Compare(p.first[:], id[:]) <= 0 && bytes.Compare(id[:], p.last[:]) <= 0
}

// Whole returns the ID where the prefix is all of it.
func (p Prefix) Whole() (id ID, ok bool) { return p.first, p.first == p.last }
