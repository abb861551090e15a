package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	"github.com/caddy-tide/ratelimit/sync/strict"
)

// A crowd is many nodes on one Redis, all in this process.
type crowd struct {
	server *redistest.Server
	nodes  []*node
	keys   int // that each node has, in the part with the loss
}

// showCrowd measures what many nodes cost by themselves, how close they keep one hot key to its
// limit, and what a loss of all that Redis has costs them.
func showCrowd(t *outside.T, d time.Duration) error {
	const loss = 100_000 // messages of a loss
	fmt.Printf("\nMeasured: many nodes on one Redis. Heartbeats alone, and one key at five times its limit of 1000/5s,\nbeside one counter that has the same requests:\n\n")
	fmt.Printf("| nodes | connections | heartbeats, of a core | hot key: calls a second | of a core | admitted, one counter is 1 |\n|---|---|---|---|---|---|\n")
	losses := ""
	for _, n := range []int{10, 100, 300, 1000} {
		c, err := startCrowd(t, n, 0, options{limit: 1000, window: 5 * time.Second, rate: 500 * time.Millisecond, early: true})
		if err != nil {
			return err
		}
		connections, beats := c.server.Info("clients", "connected_clients")-1, c.idle(d)
		calls, cpu, over := c.hot(max(d, 10*time.Second))
		c.close()
		if c, err = startCrowd(t, n, loss/n, idle); err != nil {
			return err
		}
		messages, before, meanwhile, err := c.lose(20 * time.Second)
		if err != nil {
			return err
		}
		fmt.Printf("| %d | %d | %.1f %% | %.0f | %.1f %% | %.2f |\n", n, connections, beats*100, calls, cpu*100, over)
		losses += fmt.Sprintf("| %d | %d | %.2f | %.1f ms | %.1f ms |\n", n, c.keys, messages, before, meanwhile)
		c.close()
	}
	fmt.Printf("\nFLUSHALL with keys that all nodes have, beside a `strict` zone of somebody else, once every 5 ms:\n\n")
	fmt.Printf("| nodes | FLUSHALL: keys | messages a key and node | strict before, p99 | meanwhile |\n|---|---|---|---|---|\n%s", losses)
	return nil
}

// startCrowd starts so many nodes, and waits until all know of each other.
func startCrowd(t testing.TB, nodes, keys int, o options) (*crowd, error) {
	c := &crowd{server: redistest.Start(t), keys: keys}
	var err error
	c.nodes, err = start(windows, c.server.URL, nodes, o)
	if err != nil {
		return nil, err
	}
	redistest.Eventually(t, "all nodes know of each other", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *node) bool { return n.replicator.Nodes() != int64(nodes) })
	})
	return c, nil
}

// idle returns the share of a core that Redis takes for the heartbeats.
func (c *crowd) idle(d time.Duration) (share float64) {
	before, began := usageOf(c.server), time.Now()
	time.Sleep(d)
	return usageOf(c.server).since(before).cpu / time.Since(began).Seconds()
}

// hot has one key asked for at five times its limit, on a node after the other. It returns the
// calls a second, Redis' share of a core, and how many times as much is admitted as one counter
// admits.
func (c *crowd) hot(d time.Duration) (calls, share, over float64) {
	alg := algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1000, Window: 5 * time.Second, SubWindows: 1}
	one, limit := table.New[algorithms.WindowState](alg.Kind, 10), alg.Compile()
	key, admitted, alone := []byte("hot"), 0, 0
	before, synced, began := usageOf(c.server), c.calls(), time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := 0; time.Since(began) < d; <-tick.C {
		for due := int(time.Since(began).Seconds() * 1000); n < due; n++ {
			if c.nodes[n%len(c.nodes)].ask(key) {
				admitted++
			}
			if one.Take(limit, keys.KeyOf(key), key, now(), 1, 0).Allowed {
				alone++
			}
		}
	}
	seconds := time.Since(began).Seconds()
	return float64(c.calls()-synced) / seconds, usageOf(c.server).since(before).cpu / seconds, float64(admitted) / float64(alone)
}

func (c *crowd) calls() (n int64) {
	for _, one := range c.nodes {
		n += one.replicator.Status().Syncs
	}
	return n
}

func (c *crowd) sent() (n int64) {
	for _, one := range c.nodes {
		n += one.replicator.Status().Keys
	}
	return n
}

// lose has Redis forget everything, with keys that all nodes have and nobody asks for, and looks
// for some time at what comes. It returns the messages for each key and node, and the p99, in
// milliseconds, of the calls of a strict zone, before and meanwhile.
func (c *crowd) lose(d time.Duration) (messages, before, meanwhile float64, err error) {
	c.prefer(c.server.Info("server", "process_id"))
	for _, n := range c.nodes {
		n.touch(c.keys)
	}
	c.settle()
	if before, err = c.elsewhere(d / 4); err != nil {
		return 0, 0, 0, err
	}
	sent := c.sent()
	c.server.Do("FLUSHALL")
	if meanwhile, err = c.elsewhere(d); err != nil {
		return 0, 0, 0, err
	}
	return float64(c.sent()-sent) / float64(len(c.nodes)*c.keys), before, meanwhile, nil
}

// settle waits until nothing is sent any more, a minute at most.
func (c *crowd) settle() {
	for last, i := int64(-1), 0; i < 30 && last != c.sent(); i++ {
		last = c.sent()
		time.Sleep(2 * time.Second)
	}
}

// prefer has a process go before the nodes where they wait for a CPU: elsewhere they have CPUs of
// their own. Without the right to do so it changes nothing.
func (c *crowd) prefer(process int) { _ = syscall.Setpriority(syscall.PRIO_PROCESS, process, -15) }

// elsewhere has another process ask Redis as a strict zone does, and returns its p99.
func (c *crowd) elsewhere(d time.Duration) (p99 float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	other := exec.Command(self, "-ask", c.server.URL, "-duration", d.String())
	other.Stderr = os.Stderr
	said, err := other.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := other.Start(); err != nil {
		return 0, err
	}
	c.prefer(other.Process.Pid)
	if _, err := fmt.Fscan(said, &p99); err != nil {
		return 0, err
	}
	return p99, other.Wait()
}

// askStrictly asks for a request of a strict zone every 5 ms, and prints the p99 in milliseconds.
func askStrictly(url string, d time.Duration) error {
	client, err := connect(url)
	if err != nil {
		return err
	}
	defer client.Close()
	s := strict.New(client, "other", time.Second)
	defer func() { s.CloseBy(time.Now().Add(time.Second)) }()
	ask := asker(s)
	var mu sync.Mutex
	var took []time.Duration
	var calls sync.WaitGroup
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < d; <-tick.C {
		calls.Go(func() {
			from := time.Now()
			_ = ask([]byte{byte(from.UnixNano())})
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(from))
		})
	}
	calls.Wait()
	slices.Sort(took)
	fmt.Println(float64(took[len(took)*99/100].Microseconds()) / 1000)
	return nil
}

func (c *crowd) close() {
	var all sync.WaitGroup
	for _, n := range c.nodes {
		all.Go(n.close)
	}
	all.Wait()
	c.server.Kill()
}
