// Package keys hashes the keys of counters: for this process, and for all nodes.
package keys

import (
	"crypto/sha256"
	"hash/maphash"
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
