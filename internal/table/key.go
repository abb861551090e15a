package table

import "github.com/caddy-tide/ratelimit/internal/keys"

// Key and ID name a counter, in this process and on all nodes.
type (
	Key = keys.Key
	ID  = keys.ID
)

// KeyOf and IDOf hash the bytes of a key.
func KeyOf(raw []byte) Key { return keys.KeyOf(raw) }
func IDOf(raw []byte) ID   { return keys.IDOf(raw) }

// tagOf is the part of a key by which the index of a stripe finds it.
func tagOf(key Key) uint32 { return uint32(key.A) }
