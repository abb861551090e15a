// Package gauge counts what runs now, by key: the slots of a key that this node has given out and
// not got back, and those of the other nodes, as far as it has heard of them.
//
//	table.go     a request takes a slot and gives it back
//	list.go      in which list of its stripe a key stands
//	sync.go      what is due goes out in messages, and their answers come in
//	waiter.go    the same where Redis decides, for requests that wait for it
//	overflow.go  keys beyond max_keys, in cells that they share
//
// It knows nothing of Redis or Caddy, and reads no clock.
package gauge
