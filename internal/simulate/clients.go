package simulate

import (
	"math"
	"slices"
)

// maxClients is of how many clients of a limit something is known.
const maxClients = 1 << 17

// parts is in how many parts a window is cut to count what a client sent in any window.
const parts = 10

// client is what is known of one client. A window that begins anywhere touches parts+1 parts at
// most: so many are summed, and what a client sent in any window is never more than that.
type client struct {
	hash     uint64
	part     int64 // the number of the latest part
	counts   [parts + 1]int64
	most     int64
	followed int32 // its index in the candidates and 1, 0 where it has none
	served   bool  // some response was no 4xx
}

// advance brings a client to a part.
func (c *client) advance(part int64) {
	if part <= c.part {
		return
	}
	for i := max(c.part+1, part-parts); i <= part; i++ {
		c.counts[i%(parts+1)] = 0
	}
	c.part = part
}

// add counts a request that takes some units in the latest part, and returns how many there were in
// a window.
func (c *client) add(units int64) (n int64) {
	c.counts[c.part%(parts+1)] += units
	for _, k := range c.counts {
		n += k
	}
	c.most = max(c.most, n)
	return n
}

// clients are those of one limit: all of them up to maxClients, and else a sample, as
// tally.Distinct has.
type clients struct {
	index map[uint64]int32
	all   []client
	bits  uint
	most  int64 // of all that were ever looked at
}

// of returns a client, nil where it is not in the sample.
func (c *clients) of(hash uint64) *client {
	if hash&(1<<c.bits-1) != 0 {
		return nil
	}
	if i, ok := c.index[hash]; ok {
		return &c.all[i]
	}
	if len(c.all) == maxClients {
		c.thin()
		return c.of(hash)
	}
	if c.index == nil {
		c.index = map[uint64]int32{}
	}
	c.index[hash] = int32(len(c.all))
	c.all = append(c.all, client{hash: hash})
	return &c.all[len(c.all)-1]
}

// thin drops every second client.
func (c *clients) thin() {
	c.bits++
	c.all = slices.DeleteFunc(c.all, func(one client) bool { return one.hash&(1<<c.bits-1) != 0 })
	clear(c.index)
	for i := range c.all {
		c.index[c.all[i].hash] = int32(i)
	}
}

// count returns how many clients there were.
func (c *clients) count() int64 { return int64(len(c.all)) << c.bits }

// mosts returns the most that each client of the sample sent in any window, in order.
func (c *clients) mosts() []int64 {
	all := make([]int64, len(c.all))
	for i := range c.all {
		all[i] = c.all[i].most
	}
	slices.Sort(all)
	return all
}

// quantile returns the least value that a share of all don't exceed.
func quantile(sorted []int64, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(share*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
