package simulate

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// seed makes hashes differ from run to run, so that nobody can choose addresses that collide.
var seed = maphash.MakeSeed()

func hashOf(s string) uint64 { return maphash.String(seed, s) }

const (
	// ExactClients is up to how many clients are counted exactly.
	ExactClients = 1 << 16
	// maxDistinct is how many different hashes are held before every second one is dropped.
	maxDistinct = ExactClients
	// maxClients is the same for what is known of clients.
	maxClients = 1 << 17
)

// distinct counts different hashes: exactly up to maxDistinct, and else by a sample of them.
// It holds those whose lowest bits are 0, of which there are ever more.
type distinct struct {
	set  map[uint64]struct{}
	bits uint
}

func (d *distinct) add(hash uint64) {
	if hash&(1<<d.bits-1) != 0 {
		return
	}
	if d.set == nil {
		d.set = map[uint64]struct{}{}
	}
	d.set[hash] = struct{}{}
	for len(d.set) > maxDistinct {
		d.bits++
		for h := range d.set {
			if h&(1<<d.bits-1) != 0 {
				delete(d.set, h)
			}
		}
	}
}

// count returns how many there were.
func (d *distinct) count() int64 { return int64(len(d.set)) << d.bits }

// parts is in how many parts a window is cut to count a client's requests in any window.
const parts = 10

// client is what is known of one client. A window that begins anywhere touches parts+1 parts at
// most: so many are summed, and what a client sent in any window is never more than that.
type client struct {
	hash   uint64
	part   int64 // the number of the latest part
	counts [parts + 1]uint32
	most   uint32
	heavy  int32 // its index in a ladder and 1, 0 where it has none
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

// add counts a request in the latest part, and returns how many there were in a window.
func (c *client) add() (n uint32) {
	c.counts[c.part%(parts+1)]++
	for _, k := range c.counts {
		n += k
	}
	c.most = max(c.most, n)
	return n
}

// clients are those of one limit: all of them up to maxClients, and else a sample, as distinct has.
type clients struct {
	index map[uint64]int32
	all   []client
	bits  uint
	most  uint32 // of all that were ever looked at
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
func (c *clients) mosts() []uint32 {
	all := make([]uint32, len(c.all))
	for i := range c.all {
		all[i] = c.all[i].most
	}
	slices.Sort(all)
	return all
}

// quantile returns the least value that a share of all don't exceed.
func quantile(sorted []uint32, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(share * float64(len(sorted)))
	if float64(i) == share*float64(len(sorted)) {
		i--
	}
	return int64(sorted[min(max(i, 0), len(sorted)-1)])
}

// maxTop is how many keys are held to find those that are denied most: each that has more than that
// part of all denials is among them, and its count too high by no more than that part.
const maxTop = 1024

// heavyHitters are the keys with the most denials (Metwally's Space-Saving).
type heavyHitters struct {
	index map[uint64]int
	all   []hitter
}

type hitter struct {
	hash        uint64
	text        string
	count, over int64 // over is by how much count may be too high
}

// add counts a denial of a key, of which text is called where it is new.
func (h *heavyHitters) add(hash uint64, text func() string) {
	if i, ok := h.index[hash]; ok {
		h.all[i].count++
		return
	}
	if h.index == nil {
		h.index = map[uint64]int{}
	}
	if len(h.all) < maxTop {
		h.index[hash] = len(h.all)
		h.all = append(h.all, hitter{hash: hash, text: text(), count: 1})
		return
	}
	least := 0
	for i := range h.all {
		if h.all[i].count < h.all[least].count {
			least = i
		}
	}
	old := &h.all[least]
	delete(h.index, old.hash)
	h.index[hash] = least
	*old = hitter{hash: hash, text: text(), count: old.count + 1, over: old.count}
}

// top returns the n keys with the most denials.
func (h *heavyHitters) top(n int) []hitter {
	all := slices.SortedFunc(slices.Values(h.all), func(a, b hitter) int {
		return cmp.Or(cmp.Compare(b.count-b.over, a.count-a.over), cmp.Compare(a.text, b.text))
	})
	return all[:min(n, len(all))]
}
