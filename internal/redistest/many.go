package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const slots = 16384

// A ClusterOf is a Redis Cluster of masters without replicas.
type ClusterOf struct {
	Nodes []*Server
	// Addrs are their addresses; any of them finds the others.
	Addrs []string
	// URL has them all.
	URL string

	t testing.TB
}

// StartCluster starts a cluster of n masters, with the slots in equal parts in their order, and
// waits until it works.
func StartCluster(t testing.TB, n int, options ...Option) *ClusterOf {
	t.Helper()
	c := &ClusterOf{t: t}
	for i := range n {
		s := Start(t, append(options, withBus, Config(
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no",
		))...)
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		own := []any{"CLUSTER", "ADDSLOTS"}
		for slot := i * slots / n; slot < (i+1)*slots/n; slot++ {
			own = append(own, slot)
		}
		s.Do(own...)
		if i > 0 {
			s.Do(append([]any{"CLUSTER", "MEET"}, hostPort(c.Addrs[0])...)...)
		}
		c.Nodes, c.Addrs = append(c.Nodes, s), append(c.Addrs, s.Addr)
	}
	c.URL = "redis://" + strings.Join(c.Addrs, ",")
	c.Wait()
	return c
}

// Wait returns when all nodes agree that the cluster works.
func (c *ClusterOf) Wait() {
	c.t.Helper()
	for _, s := range c.Nodes {
		Eventually(c.t, "the cluster works", func() bool {
			info := s.Do("CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes))) &&
				strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d", slots))
		})
	}
}

// Slot is the slot of a key.
func (c *ClusterOf) Slot(key string) int {
	return int(c.Nodes[0].Do("CLUSTER", "KEYSLOT", key).(int64))
}

// Owner is the node that a slot was given to in the beginning.
func (c *ClusterOf) Owner(slot int) int {
	for i := range c.Nodes {
		if slot < (i+1)*slots/len(c.Nodes) {
			return i
		}
	}
	return len(c.Nodes) - 1
}

// Move moves a slot with its keys from one node to another. During is called while the slot is
// between the two, before its keys are moved.
func (c *ClusterOf) Move(slot, from, to int, during func()) {
	c.t.Helper()
	src, dst := c.Nodes[from], c.Nodes[to]
	srcID, dstID := src.Do("CLUSTER", "MYID"), dst.Do("CLUSTER", "MYID")
	dst.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", srcID)
	src.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", dstID)
	if during != nil {
		during()
	}
	for {
		keys := src.Do("CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		args := append([]any{"MIGRATE"}, hostPort(dst.Addr)...)
		src.Do(append(append(args, "", 0, 5000, "KEYS"), keys...)...)
	}
	dst.Do("CLUSTER", "SETSLOT", slot, "NODE", dstID)
	src.Do("CLUSTER", "SETSLOT", slot, "NODE", dstID)
}

// withBus has the server listen where the port of its cluster bus is free as well, 10,000 above.
func withBus(s *Server) {
	for range 1000 {
		port := FreePort(s.t)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+busAbove))
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, again := given.LoadOrStore(port+busAbove, nil); !again {
			s.listen(port)
			return
		}
	}
}

const busAbove = 10_000

// A Watched is a master with a replica under sentinels.
type Watched struct {
	Master, Replica *Server
	// Sentinel is the first of Sentinels.
	Sentinel  *Server
	Sentinels []*Server
	// Name is what the sentinels call the master.
	Name string
	// URL leads to the sentinels.
	URL string

	t testing.TB
}

// StartSentinel starts a master, a replica and one sentinel, see StartSentinels.
func StartSentinel(t testing.TB, options ...Option) *Watched { return StartSentinels(t, 1, options...) }

// StartSentinels starts a master, a replica and n sentinels, most of which must agree to replace
// the master after it has been silent for 1.5 s. Options are for master and replica, TLS is for the
// sentinels as well.
func StartSentinels(t testing.TB, n int, options ...Option) *Watched {
	t.Helper()
	w := &Watched{t: t, Name: "mymaster"}
	w.Master = Start(t, options...)
	at := hostPort(w.Master.Addr)
	follow := []string{"--replicaof", at[0].(string), at[1].(string), "--repl-diskless-sync-delay", "0"}
	if w.Master.password != "" {
		follow = append(follow, "--masterauth", w.Master.password)
	}
	w.Replica = Start(t, append(options, Config(follow...))...)
	w.WaitReplica()
	var addrs []string
	for range n {
		s := Start(t, func(s *Server) { w.watch(s, n/2+1) })
		w.Sentinels, addrs = append(w.Sentinels, s), append(addrs, s.Addr)
	}
	w.Sentinel = w.Sentinels[0]
	for _, s := range w.Sentinels {
		Eventually(t, "the sentinel knows the replica and the others", func() bool {
			replicas, _ := s.Do("SENTINEL", "REPLICAS", w.Name).([]any)
			others, _ := s.Do("SENTINEL", "SENTINELS", w.Name).([]any)
			return len(replicas) == 1 && len(others) == n-1
		})
	}
	w.URL = "redis://" + strings.Join(addrs, ",") + "?master_name=" + w.Name
	return w
}

// watch makes a server a sentinel of the master.
func (w *Watched) watch(s *Server, quorum int) {
	s.sentinel = true
	if w.Master.secure != nil {
		w.Master.secure(s)
	}
	at := hostPort(w.Master.Addr)
	conf := fmt.Sprintf("sentinel monitor %s %s %s %d\nsentinel down-after-milliseconds %s 1500\nsentinel failover-timeout %s 2000\n",
		w.Name, at[0], at[1], quorum, w.Name, w.Name)
	if w.Master.password != "" {
		conf += fmt.Sprintf("sentinel auth-pass %s %s\n", w.Name, w.Master.password)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "sentinel.conf"), []byte(conf), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// WaitReplica returns when the replica follows the master.
func (w *Watched) WaitReplica() {
	w.t.Helper()
	Eventually(w.t, "the replica follows", func() bool {
		return strings.Contains(w.Replica.try("INFO", "replication"), "master_link_status:up")
	})
}

// Failover kills the master and returns when the replica has taken its place, by all sentinels. The
// two then change names here: Master is the one that serves, and Replica the one that was killed,
// which Restart or Rejoin brings back.
func (w *Watched) Failover() {
	w.t.Helper()
	w.Master.Kill()
	w.Master, w.Replica = w.Replica, w.Master
	// Sentinels that were held up, on a busy machine, do nothing for half a minute (TILT).
	Eventually(w.t, "the replica is the master", func() bool {
		return strings.Contains(w.Master.try("INFO", "replication"), "role:master")
	})
	for _, s := range w.Sentinels {
		Eventually(w.t, "the sentinel names the new master", func() bool {
			return s.try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", w.Name) == fmt.Sprint(hostPort(w.Master.Addr))
		})
	}
}

// Rejoin brings the old master back as a replica of the new one, at once; sentinels do that as
// well, some ten seconds after it is back.
func (w *Watched) Rejoin() {
	w.t.Helper()
	w.Replica.Restart()
	w.Replica.Do(append([]any{"REPLICAOF"}, hostPort(w.Master.Addr)...)...)
	w.WaitReplica()
}
