// Package ratesync shares counts between nodes through Redis in the background. Where Redis decides
// on every request, that is package strict, with keys of the same Keyspace.
//
// What is shared is a grow-only counter (a G-counter CRDT) for each key and epoch: a field for each
// node has its total, which only that node writes, with a sequence number. So a message that is
// lost, repeated or late counts no request twice and none less.
//
// The way of a count:
//
//	source.go      a table, and what the sync asks of it
//	attach.go      a table joins a Replicator, and leaves it
//	loop.go        when it syncs: timers for the pure loop of package cycle
//	waker.go       what wakes a loop, and how far it has come
//	counts.go      what is due of a table, quickly or slowly
//	send.go        messages of any kind, cut in batches and sent side by side
//	push.go        one call of push.lua
//	reply.go       what it says, if that can be believed
//	charge.go      in place of these three for strict zones: what a node had to decide alone
//	flush.go       the last sync of tables that leave
//
// And what goes on beside it:
//
//	replicator.go  a Redis and a namespace, which several tables share
//	keyspace.go    the names of all keys
//	heartbeat.go   a node is there, and notices that the server has forgotten
//	clock.go       the server's time, which the tables follow
//	servertime.go  the same by the readings that took least
//	bans.go        bans, which go along with the sync of a table
//	shard.go       parts of a Cluster that can be lost alone
//	note.go        what fails, and what follows from that
//	health.go      what is known of that as plain values: what to log, when to send again
//	callargs.go    the arguments of a call, in one allocation
//	callcontext.go the timeout of each answer of a call
//
// Locks are taken in this order, from the outside in:
//
//	Source.mu          one Attach or Detach of a table at a time, also while it is flushed
//	Replicator.mu      its tables, its health and its clock
//	pendingCharges.mu  the charges of a table that are on their way
//	table.walking      one walk over a table at a time
//	table.stripe.mu    the keys of a stripe
//	table.widening     the making of a sketch, for keys beyond max_keys
//	heldPart.mu        a part of what an earlier process has saved; not together with widening
//
// Only Source.mu is held over I/O, or while something is logged: no request, no scrape and no other
// table's reload takes it.
package ratesync
