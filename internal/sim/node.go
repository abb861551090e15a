package sim

import (
	"time"

	"github.com/caddy-tide/ratelimit/internal/table"
)

const (
	// timeout is what ratesync.Replicator gives a call by default.
	timeout  = time.Second
	mostKeys = 100_000
)

// A node is a real table and its link to the store.
type node[S any] struct {
	*Link
	w       *world[S]
	index   int
	table   *table.Table[S]
	stepped time.Duration // of its clock, since it started
}

// newNode starts a node.
func (w *world[S]) newNode(index int, name string) *node[S] {
	n := &node[S]{w: w, index: index, table: table.New[S](w.sc.Algorithm.Kind, mostKeys)}
	n.Link = w.Join(index, name, n.table, 0, w.sc.Algorithm)
	n.Link.rate = func() time.Duration { return n.is().Rate }
	n.Link.clock, n.estimates = n.clock, w.sc.Model.Estimate
	n.configure()
	n.Start()
	return n
}

// configure gives the table the node's parameters.
func (n *node[S]) configure() {
	is := n.is()
	n.table.Configure(table.SyncConfig{
		Params: is.Algorithm, Rate: is.Rate, Early: n.w.sc.Model.Early, Mixed: n.w.sc.Mixed, Waker: n.Waker, After: n.After,
	}, mostKeys)
}

// is the parameters of the node.
func (n *node[S]) is() Parameters { return n.w.is[n.index] }

// clock is what the node takes the time for.
func (n *node[S]) clock() int64 {
	now := n.w.now + int64(n.stepped)
	if n.w.sc.Skew == nil {
		return now
	}
	return now + int64(n.w.sc.Skew[n.index])
}

func (n *node[S]) take(of int) table.Taken {
	k := &n.w.clients[of]
	return n.table.Take(n.is().Algorithm.Compile(), k.key, k.raw, n.clock(), n.w.sc.cost(), 0)
}
