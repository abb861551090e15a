// Package strict lets Redis decide on every request: sync_rate strict.
//
//	ask.go      a request asks for units of its key in each limit of its zone
//	jobs.go     calls of several keys share a round trip where many keys wait
//	limiter.go  what all requests of a Redis share
//	backlog.go  nobody waits for a call longer than Redis has for an answer
//	circuit.go  while Redis does not answer, nobody waits for it
//	ban.go      a call looks at the ban of its key first
//
// No lock is held over I/O. That of a key's queue is held while an answer is taken in, and so comes
// before Replicator.mu and table.walking.
package strict
