//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A rolling deployment brings limits and bursts that are higher. It is one fault of the suite: no
// request fails, and nothing that was counted before, during or after it is lost.
func TestFaultRollingDeployment(t *testing.T) {
	s := simple(t)
	old, changed := s.config, strings.NewReplacer(
		wide, "limit 3000000/"+far,
		"limit 1000/"+far+"\n\tburst 100000", "limit 4000/"+far+"\n\tburst 300000",
		fmt.Sprintf("limit %d/1s\n", s.load.limit()), fmt.Sprintf("limit %d/1s\n", s.load.limit()+1),
		fmt.Sprintf("limit %d/1s\n", s.load.narrow()), fmt.Sprintf("limit %d/1s\n", s.load.narrow()+1),
	).Replace(s.config)
	s.inject(fault{
		name: "other limits and bursts, one node after the other: a reload and two restarts", extraLimits: 1,
		begin: func() {
			if old == changed {
				t.Fatal("nothing has changed")
			}
			s.config = changed
			reload(t, s.Nodes[0], s.config)
			for node := 1; node < nodeCount; node++ {
				s.endNode(node, (*cluster.Node).Stop)
				s.restart(node)
			}
		},
		end:     nothing,
		mayLose: func(zone string) int { return unsent(t, s.Nodes[1])[zone] + unsent(t, s.Nodes[2])[zone] },
	})
}

// A deployment is the limits and bursts that are deployed: small ones, then large ones.
type deployment struct {
	// of buckets, where next to nothing flows in; burst is the limit of windows
	limit, burst int
	pace, queue  int // of the leaky bucket, a second and requests that wait
}

var small, large = deployment{20, 40, 20, 2}, deployment{90, 60, 30, 4}

// rolloutZones are the zones of a deployment: those that share counts now and then, and strict
// ones, whose names begin with an s.
var rolloutZones = []string{"token", "gcra", "sliding", "stoken", "sgcra", "ssliding", "slog", "leaky"}

func (d deployment) caddyfile(redis string) string {
	algorithms := map[string]string{
		"token": "token_bucket", "gcra": "gcra", "sliding": "sliding_window", "log": "sliding_log", "leaky": "leaky_bucket",
	}
	var parts []string
	for _, name := range rolloutZones {
		strict := algorithms[name] == ""
		kind := name
		if strict {
			kind = name[1:]
		}
		options := []string{"algorithm " + algorithms[kind]}
		switch kind {
		case "token", "gcra":
			options = append(options, fmt.Sprintf("limit %d/%s\nburst %d", d.limit, far, d.burst))
		case "leaky":
			options = append(options, fmt.Sprintf("limit %d/1s\nqueue %d", d.pace, d.queue))
		default:
			options = append(options, fmt.Sprintf("limit %d/%s", d.burst, far))
		}
		if strict {
			options = append(options, "sync_rate strict")
		}
		parts = append(parts, keyedZone(name, name, options...))
	}
	return config(redis+"\nsync_rate 100ms", zones(parts...))
}

// A rollout is three nodes that get other parameters one after the other. Each node is asked in all
// zones for one key, without a pause but while it restarts.
type rollout struct {
	t *testing.T
	*cluster.Cluster
	client *cluster.Client
	key    string
	began  time.Time
	busy   [nodeCount]sync.RWMutex // is held for a node that restarts
	starts atomic.Int64            // of nodes that knew nothing
	tally  map[tallyKey]*cluster.Tally
}

// load asks each node in each zone until it is stopped.
func (r *rollout) load(key string) (stop func()) {
	r.key, r.began, r.tally = key, time.Now(), make(map[tallyKey]*cluster.Tally)
	r.starts.Store(nodeCount)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, zone := range rolloutZones {
		for node := range nodeCount {
			tally := new(cluster.Tally)
			r.tally[tallyKey{zone, node}] = tally
			for range 2 {
				wg.Go(func() {
					for ctx.Err() == nil {
						r.busy[node].RLock()
						r.client.Get(context.Background(), r.Nodes[node].Addr, "/"+zone+"?k="+key, nil, tally)
						r.busy[node].RUnlock()
						// 50 requests a second for each zone
						redistest.Pause(120 * time.Millisecond)
					}
				})
			}
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rollout) admitted(zone string) (sum int) {
	for node := range nodeCount {
		sum += r.tally[tallyKey{zone, node}].Admitted()
	}
	return sum
}

func (r *rollout) sent(zone string) (sum int) {
	for node := range nodeCount {
		sum += r.tally[tallyKey{zone, node}].Sent()
	}
	return sum
}

// deploy gives a node another Caddyfile.
func (r *rollout) deploy(node int, caddyfile string, restart bool) {
	r.t.Helper()
	n := r.Nodes[node]
	if !restart {
		reload(r.t, n, caddyfile)
		return
	}
	r.busy[node].Lock()
	defer r.busy[node].Unlock()
	if err := n.Stop(); err != nil {
		r.t.Fatal(err)
	}
	if err := n.Start(r.t.Context(), caddyfile); err != nil {
		r.t.Fatal(err)
	}
	r.starts.Add(1)
}

// awaitRequests waits until each node has answered so many requests in each zone.
func (r *rollout) awaitRequests(requests int) {
	r.t.Helper()
	before := make(map[tallyKey]int)
	for part, tally := range r.tally {
		before[part] = tally.Sent()
	}
	eventually(r.t, "all nodes have answered", func() error {
		for part, tally := range r.tally {
			if got := tally.Sent() - before[part]; got < requests {
				return fmt.Errorf("node %d has answered %d of %d in zone %s", part.node+1, got, requests, part.zone)
			}
		}
		return nil
	})
}

// While the nodes of a rolling deployment have different limits and bursts, what is admitted in all
// is at least 0.9 of what the smallest one admits, and at most 1.05 of what the largest does, and a
// little for each node that starts and does not know the key. Strict zones never admit more than
// the largest one does.
func TestFaultRollingDeploymentHoldsLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	redis := slowRedis(server)
	r := &rollout{t: t, Cluster: start(t, nodeCount, small.caddyfile(redis)), client: client(t, 64)}
	for _, n := range r.Nodes {
		awaitUp(t, n)
	}
	counted := make(map[string]int)
	for i, to := range []deployment{large, small} {
		stop := r.load(fmt.Sprint(i))
		r.awaitRequests(4)
		for node := range nodeCount {
			r.deploy(node, to.caddyfile(redis), (node+i)%2 == 1)
			r.awaitRequests(3)
		}
		r.awaitRequests(10)
		r.awaitEnough(to)
		stop()
		took := time.Since(r.began)
		for _, zone := range rolloutZones {
			r.checkAdmitted(zone, took)
			counted[zone] += r.admitted(zone)
		}
	}
	for _, zone := range rolloutZones[:len(rolloutZones)-1] {
		eventually(t, "redis counts what clients saw admitted in zone "+zone, func() error {
			got := 0
			if slices.Contains(strictBuckets, zone) {
				got = filled(t, server, zone)
			} else {
				got = total(t, server, zone)
			}
			if got != counted[zone] {
				return fmt.Errorf("it counts %d, clients saw %d admitted", got, counted[zone])
			}
			return nil
		})
	}
}

// awaitEnough waits until each zone has admitted nine tenths of what its parameters admit, where
// nothing flows in.
func (r *rollout) awaitEnough(to deployment) {
	r.t.Helper()
	for _, zone := range rolloutZones[:len(rolloutZones)-1] {
		eventually(r.t, "a zone admits what its limit allows", func() error {
			if got := r.admitted(zone); 10*got < 9*to.burst {
				return fmt.Errorf("zone %s has admitted %d of %d requests at limit %d", zone, got, r.sent(zone), to.burst)
			}
			return nil
		})
	}
}

// checkAdmitted checks what was admitted in a zone.
func (r *rollout) checkAdmitted(zone string, took time.Duration) {
	r.t.Helper()
	got, sent, starts := r.admitted(zone), r.sent(zone), int(r.starts.Load())
	least, most := float64(min(small.burst, sent)), float64(large.burst)
	if zone == "leaky" {
		// Each node alone is asked for more than half of what the small bucket drains.
		least, most = min(float64(small.pace)*took.Seconds(), float64(sent)/2), float64(large.pace)*took.Seconds()+float64(large.queue)+1
	}
	least *= .9
	if zone[0] != 's' || zone == "sliding" {
		most = 1.05*most + float64(4*starts)
	}
	r.t.Logf("zone %s: %d of %d requests admitted in %s, want %.0f to %.0f; %d starts", zone, got, sent, took.Round(time.Millisecond), least, most, starts)
	if float64(got) < least || float64(got) > most {
		r.t.Errorf("zone %s admitted %d of %d requests in %s, want %.0f to %.0f", zone, got, sent, took, least, most)
	}
	for node := range nodeCount {
		tally := r.tally[tallyKey{zone, node}]
		if other := tally.Sent() - tally.Admitted() - tally.Denied(); other > 0 {
			_, err := tally.Errors()
			r.t.Errorf("%d requests to zone %s of node %d got no answer with status 200 or 429; the first error: %v", other, zone, node+1, err)
		}
	}
}
