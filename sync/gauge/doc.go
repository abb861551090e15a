// Package gaugesync shares between nodes how many slots of each key they have given out: the option
// concurrent of a zone.
//
// A node says what it has, never what has changed, in a field of its own that expires. So a message
// that is lost, repeated or late changes nothing for long, and neither does a node that is killed
// or a Redis that forgets: the next message says all there is to say.
//
//	source.go    a table, and where it is synced
//	loop.go      when: timers for the pure loop of package cycle
//	call.go      one call of gauge.lua
//	strict.go    Redis decides: a request waits for the call that asks for it
//	flush.go     the last sync of tables that leave
//
// Locks are taken in this order, from the outside in:
//
//	Source.mu        one Attach or Detach of a table at a time, also while it is flushed
//	Syncer.mu        its tables
//	gauge.stripe.mu  the keys of a stripe
//
// Only Source.mu is held over I/O; no request takes it.
package gaugesync
