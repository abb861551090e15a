// Package strict lets Redis decide on every request: sync_rate strict.
//
//	ask.go         a request asks for units of its key in each limit of its zone: windows, logs
//
// Of buckets:
//
//	limiter.go     a request asks for a unit of its key in each limit of its zone
//	calls.go       one call a key is under way; requests that come meanwhile share the next one
//	memory.go      what Redis has just denied is denied again without a call
//	correction.go  refunds and penalties, which a later call carries
//	family.go      what buckets have in Redis: scripts, arguments, replies
//	verdict.go     what a reply says to each request of a call
//	charger.go     what a node has decided alone is charged to Redis later
//	reset.go       what is forgiven: which keys a call goes by
//	look.go        what a request would get, with nothing written
//	rule.go        a zone's limits as scripts have them, and its queues by key
//
// Of both:
//
//	turns.go       calls of several keys share a round trip where many keys wait
//	backlog.go     nobody waits for a call longer than Redis has for an answer
//	circuit.go     while Redis does not answer, nobody waits for it
//	ban.go         a call looks at the ban of its key first
//
// A call of a bucket runs head.lua, bucket.lua and tail.lua; a charge ends with charge_tail.lua.
//
// A ruleset's lock is taken before the Limiter's and before those of a Memory, and a circuit's
// alone. None is held over I/O.
package strict
