package sim

import (
	"fmt"
)

// A world is the network and the nodes of one run.
type world[S any] struct {
	*Network
	sc    Scenario[S]
	nodes []*node[S]   // nil where one is away
	is    []Parameters // of each node, now

	clients []key
}

func newWorld[S any](sc Scenario[S]) *world[S] {
	w := &world[S]{Network: NewNetwork(epoch, sc.Latency, sc.Seed), sc: sc}
	w.lostReplies, w.duplicates, w.cut = sc.LostReplies, sc.Duplicates, w.isCut
	w.clients = keysOf(sc.Clients)
	w.nodes, w.is = make([]*node[S], sc.Nodes), make([]Parameters, sc.Nodes)
	for i := range w.nodes {
		w.is[i] = sc.parameters(i)
		if !sc.away(i, 0) {
			w.nodes[i] = w.newNode(i, fmt.Sprintf("node %d", i))
		}
	}
	for _, a := range sc.Away {
		w.after(a.From, func() {
			if n := w.nodes[a.Node]; n != nil {
				n.stop(true)
				w.nodes[a.Node] = nil
			}
		})
		w.after(a.To, func() { w.nodes[a.Node] = w.newNode(a.Node, fmt.Sprintf("node %d from %v", a.Node, a.To)) })
	}
	for _, s := range sc.Steps {
		w.after(s.At, func() { w.nodes[s.Node].stepped += s.By })
	}
	for _, r := range sc.Reloads {
		w.after(r.At, func() {
			w.is[r.Node] = w.is[r.Node].with(r.Parameters)
			if n := w.nodes[r.Node]; n != nil {
				n.configure()
			}
		})
	}
	for _, at := range sc.Flushes {
		w.after(at, w.store.Flush)
	}
	for _, r := range sc.Restarts {
		w.after(r.At, func() {
			w.nodes[r.Node].stop(r.Clean)
			w.nodes[r.Node] = w.newNode(r.Node, fmt.Sprintf("node %d from %v", r.Node, r.At))
		})
	}
	return w
}

// isCut reports that a node can't reach the store.
func (w *world[S]) isCut(node int) bool {
	for _, c := range w.sc.Cuts {
		if since := w.sinceStart(); c.Node == node && since >= c.From && since < c.To {
			return true
		}
	}
	return false
}
