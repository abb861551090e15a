//go:build chaos && unix

package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// attacked are three nodes, each of which has its Redis behind a proxy of its own.
type attacked struct {
	t       *testing.T
	nodes   []*cluster.Node
	proxies []*faultproxy.Proxy
	client  *cluster.Client
	text    string // the template of the configuration

	mu       sync.Mutex
	admitted map[string]int // requests, by path
}

func startAttacked(t *testing.T, r *redistest.Server, options, site string) *attacked {
	t.Helper()
	a := &attacked{t: t, client: client(t, 60), admitted: map[string]int{}}
	for i := range 3 {
		p := faultproxy.Start(t, r.Addr)
		a.proxies = append(a.proxies, p)
		a.text += fmt.Sprintf("{{if eq .Node %d}}redis redis://%s?timeout=500ms{{end}}", i+1, p.Addr)
	}
	a.text = config(a.text+"\n"+options, site)
	a.nodes = start(t, 3, a.text).Nodes
	return a
}

// burst sends requests of a path to all nodes at once.
func (a *attacked) burst(path string, requests int) {
	got := a.client.Burst(a.t.Context(), a.nodes, path, requests, nil).Admitted()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.admitted[path] += got
}

func (a *attacked) got(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.admitted[path]
}

// disturb lets a fault come and go at one proxy after the other, until ctx ends. Where the fault is
// none, Redis itself stands still for a while.
func (a *attacked) disturb(ctx context.Context, r *redistest.Server, fault faultproxy.Fault) {
	pid := r.Info("server", "process_id")
	for i := 0; ctx.Err() == nil; i++ {
		p := a.proxies[i%len(a.proxies)]
		p.Set(fault)
		p.SetDelay(time.Duration(i%4) * 5 * time.Millisecond)
		if fault == faultproxy.None {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		redistest.Pause(time.Duration(50+i%3*150) * time.Millisecond)
		if fault == faultproxy.None {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		p.Set(faultproxy.None)
		p.SetDelay(0)
		redistest.Pause(50 * time.Millisecond)
		if i%4 > 0 {
			continue
		}
		if err := a.nodes[i%len(a.nodes)].Reload(a.t.Context(), strings.Replace(a.text, "respond ok", fmt.Sprintf("respond ok-%d", i), 1)); err != nil {
			a.t.Error(err)
		}
	}
}

// ask sends a request to a node over a connection of its own, and returns the answer and the wait
// that it tells. It is 0 where a reload has broken the connection.
func (a *attacked) ask(node int, path string) (status int, wait time.Duration) {
	got, _ := send(a.t.Context(), http.MethodGet, "http://"+a.nodes[node%len(a.nodes)].Addr+path, "", "Connection", "close")
	return got.status, got.wait()
}

var (
	attackedKinds = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra"}
	lossesOfCalls = []faultproxy.Fault{faultproxy.DropReplies, faultproxy.Blackhole, faultproxy.Reset, faultproxy.Drip, faultproxy.HalfClose, faultproxy.None}
)

// Whatever becomes of calls on their way, three nodes that deny without Redis admit the limit of a
// strict zone together and not one request more, over reloads too; and when all is well again, what
// nobody was granted is there to be had.
func TestAttackWithLostCalls(t *testing.T) {
	t.Parallel()
	const limit = 12
	r := redistest.Start(t)
	var parts []string
	for _, kind := range attackedKinds {
		parts = append(parts, keyedZone(kind, kind, fmt.Sprintf("limit %d/%s", limit, far), "algorithm "+kind, "sync_rate strict", "on_redis_loss deny"))
	}
	a := startAttacked(t, r, "strict_timeout 200ms", zones(parts...))
	for round, fault := range lossesOfCalls {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		var wg sync.WaitGroup
		for _, kind := range attackedKinds {
			wg.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					a.burst(fmt.Sprintf("/%s?k=%d.%d", kind, round, k), 2*limit)
				}
			})
		}
		wg.Go(func() { a.disturb(ctx, r, fault) })
		wg.Wait()
		cancel()
		a.exhaust(limit)
	}
}

// exhaust takes what is left of all keys, which is to be all of the limit and no more.
func (a *attacked) exhaust(limit int) {
	a.t.Helper()
	short := 0
	for path, got := range maps.Clone(a.admitted) {
		if got < limit {
			short++
		}
		eventually(a.t, path+" has all of its limit", func() error {
			a.burst(path, 3)
			if got := a.got(path); got < limit {
				return fmt.Errorf("%d admitted", got)
			}
			return nil
		})
		a.burst(path, limit)
		if got := a.got(path); got != limit {
			a.t.Errorf("%s: %d were admitted, want %d", path, got, limit)
		}
	}
	a.t.Logf("%d keys, of which %d had less than their limit while calls were lost", len(a.admitted), short)
	clear(a.admitted)
}

// Whoever waits as he was told while calls were lost is admitted at the first attempt, by another
// node as well: what calls had taken of which nobody heard was given back meanwhile.
func TestAttackOnWaits(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	var parts []string
	for _, kind := range attackedKinds {
		parts = append(parts, keyedZone(kind, kind, "limit 3/4s", "algorithm "+kind, "sync_rate strict", "on_redis_loss deny"))
	}
	a := startAttacked(t, r, "strict_timeout 200ms", zones(parts...))
	for round, fault := range lossesOfCalls[:3] {
		ctx, cancel := context.WithCancel(t.Context())
		healed := make(chan struct{})
		var disturbed, told, all sync.WaitGroup
		disturbed.Go(func() { a.disturb(ctx, r, fault) })
		for i, kind := range attackedKinds {
			for k := range 8 {
				told.Add(1)
				all.Go(func() { a.waitAsTold(fmt.Sprintf("/%s?k=%d.%d", kind, round, k), i+k, told.Done, healed) })
			}
		}
		told.Wait()
		cancel()
		disturbed.Wait()
		for _, n := range a.nodes {
			eventually(t, "no circuit is open", func() error {
				if s, err := n.Status(t.Context()); err != nil || s.Strict.Open > 0 {
					return fmt.Errorf("%+v, %v", s.Strict, err)
				}
				return nil
			})
		}
		close(healed)
		all.Wait()
	}
}

// waitAsTold asks one node after the other until the client has been denied six times since it was
// last admitted, waits for the shortest time that it was told then, and asks once, when what nobody
// heard of has been given back: a node does that a timeout after it has sent a call.
func (a *attacked) waitAsTold(path string, node int, told func(), healed chan struct{}) {
	var until time.Time
	var heard []time.Time // when a request was admitted, or broken by a reload
	for n := 0; n < 6 && a.t.Context().Err() == nil; node++ {
		switch status, wait := a.ask(node, path); status {
		case 0:
			heard = append(heard, time.Now())
		case http.StatusOK:
			n, heard = 0, append(heard, time.Now())
		case http.StatusTooManyRequests:
			if w := time.Now().Add(wait); n == 0 || w.Before(until) {
				until = w
			}
			n++
		}
	}
	told()
	<-healed
	if !redistest.Poll(40*time.Second, func() bool {
		recent := slices.DeleteFunc(slices.Clone(heard), func(at time.Time) bool { return time.Since(at) > 8*time.Second })
		return a.used(node, path) <= int64(len(recent))
	}) {
		a.t.Errorf("%s: what nobody heard of was not given back", path)
	}
	redistest.Pause(time.Until(until))
	if status, more := a.ask(node+1, path); status != http.StatusOK {
		a.t.Errorf("%s: status %d, %s after all that it was told to wait, and %s more", path, status, time.Since(until), more)
	}
}

// used is how much of its limit a path has used, as Redis tells a node, endless where a reload has
// broken the connection.
func (a *attacked) used(node int, path string) int64 {
	zone, key, _ := strings.Cut(path[1:], "?k=")
	used, err := usedOf(a.nodes[node%len(a.nodes)], zone, key)
	if err != nil {
		return math.MaxInt64
	}
	return used
}
