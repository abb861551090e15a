package table

import "github.com/caddy-tide/ratelimit/internal/keys"

// Key and ID name a counter, in this process and on all nodes; KeyOf and IDOf hash it.
type (
	Key = keys.Key
	ID  = keys.ID
)

// KeyOf hashes the bytes of a key.
func KeyOf(raw []byte) Key { return keys.KeyOf(raw) }

// IDOf hashes the bytes of a key.
func IDOf(raw []byte) ID { return keys.IDOf(raw) }

// tagOf is the part of a key by which the index of a stripe finds it.
func tagOf(key Key) uint32 { return uint32(key[0]) }
