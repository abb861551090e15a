// Package algorithms holds the decisions of the rate limiter: six kinds of limit, which three
// machines decide. Nothing here reads a clock, allocates for a decision it can make without, or
// knows of a network.
//
// A limit is described by Params and compiled once into a Limit, which comes by value with every
// call. So a limit may differ from request to request, and a changed one applies at once to what
// is already spent. What a machine remembers of one key is a state: a WindowState, a BucketState
// or a LogState, whose zero value is a key never seen. A state belongs to one caller at a time:
// its owner locks. A machine has no state of its own and may be shared.
//
// Time is an argument: nanoseconds since the Unix epoch, as int64. It may step back; a step back
// never makes a client wait longer than one full window (for buckets: the time one takes to drain)
// from the stepped time on. Up to 100ms back, or an eighth of the window where that is less, is no
// step: it is a request that read its clock before another did, and it is served as if it came
// together with that one.
package algorithms
