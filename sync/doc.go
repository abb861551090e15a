// Package ratesync shares between nodes, through Redis in the background, what they have counted,
// which keys they have banned and which slots they have given out. Where Redis decides on every
// request, that is package strict, with keys of the same Keyspace.
//
// What is counted of a key in a limit is a cell, see package cell: a field for each node has in
// full what that node has spent, which only that node writes, with a number that grows. So a
// message that is lost, repeated or late counts no request twice and none less.
//
// What drives them all:
//
//	attach.go      a syncer joins a Replicator, and leaves it
//	loop.go        when it syncs: timers for the pure loop of package cycle
//	send.go        messages of any kind, cut in batches and sent side by side
//	flush.go       the last sync of syncers that leave
//
// The way of a count:
//
//	tablesyncer.go a table, as the sync has it
//	counts.go      what is outgoing of it, quickly or slowly
//	cells.go       one call of the script of cells, also for package strict
//
// The others:
//
//	bans.go        bans, which go along with the sync of a table
//	slots.go       the slots of a zone, as a syncer of their own
//	slotscall.go   one call of slots.lua
//	slotsstrict.go Redis decides on slots: a request waits for the call that asks for it
//
// Other regions:
//
//	relay.go       the node of a region that reads the others
//	relayregion.go the way to one other region: how it stands, and what has changed there
//	relaycell.go   what its nodes have spent and whom they have banned, read there and said here
//	relaystate.go  how the other regions stand
//
// And what goes on beside it:
//
//	replicator.go  a Redis and a namespace, which several tables share
//	keyspace.go    the names of all keys
//	heartbeat.go   a node is there, and notices that the server has forgotten
//	clock.go       the server's time, which the tables follow
//	servertime.go  the same by the readings that took least
//	shard.go       parts of a Cluster that can be missed alone
//	note.go        what fails, and what follows from that
//	health.go      what is known of that as plain values: what to log, when to send again
//	reply.go       numbers in answers, if they can be believed
//	look.go        what the server has of a key, with nothing written
//	callcontext.go the timeout of each answer of a call
//	work.go        goroutines that the end waits for
//
// Locks are taken in this order, from the outside in:
//
//	link.mu            one Attach or Detach of a syncer at a time, also while it is flushed
//	otherRegion.mu     what is known of another region
//	Replicator.mu      its syncers, its health and its clock
//	Work.mu            nothing begins while the end does
//	table.walking      one walk over a table at a time
//	table.taking       messages are taken out, or resets applied, after table.walking
//	table.stripe.mu    the keys of a stripe, before reservationStripe.mu
//	savedPart.mu       a part of what an earlier process has saved
//	gauge.stripe.mu    the slots of the keys of a stripe
//
// Only link.mu is held over I/O, or while something is logged. No scrape and no other table's
// reload takes it, and a request only where its zone has gone: a response that settles late.
package ratesync
