package cluster

import (
	"context"
	"errors"
	"os"
	"sync"
)

// A Cluster is some nodes with the same configuration.
type Cluster struct {
	Nodes []*Node

	dir string
}

// Options are how a cluster is to be.
type Options struct {
	// Program is Caddy, as Build makes it.
	Program string
	// Caddyfile is a template of the nodes' configuration: {{.Addr}} and {{.Port}} are where the
	// node is to listen, {{.Admin}} is where its admin API must, {{.Node}} is its number.
	Caddyfile string
	// Nodes is how many there are.
	Nodes int
}

// Start starts the nodes, all at once, and returns when they serve.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "tide-cluster")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	for i := range o.Nodes {
		n, err := newNode(i+1, o.Program, dir)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Nodes = append(c.Nodes, n)
	}
	if err := c.each(func(n *Node) error { return n.Start(ctx, o.Caddyfile) }); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Reload gives all nodes another Caddyfile.
func (c *Cluster) Reload(ctx context.Context, caddyfile string) error {
	return c.each(func(n *Node) error { return n.Reload(ctx, caddyfile) })
}

// Status asks all nodes at once.
func (c *Cluster) Status(ctx context.Context) ([]Status, error) {
	all := make([]Status, len(c.Nodes))
	err := c.each(func(n *Node) (err error) {
		all[n.Number-1], err = n.Status(ctx)
		return err
	})
	return all, err
}

// Stop ends all processes in order, so that they send their last counts.
func (c *Cluster) Stop() error { return c.each((*Node).Stop) }

// Close kills what still runs and removes its files.
func (c *Cluster) Close() {
	for _, n := range c.Nodes {
		n.close()
	}
	_ = os.RemoveAll(c.dir)
}

// each calls f for all nodes at once.
func (c *Cluster) each(f func(*Node) error) error {
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		wg.Go(func() { errs[i] = f(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
