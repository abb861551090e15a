package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// caddyForTests asks the names of its Redis from the tests.
const caddyForTests = "github.com/caddy-tide/ratelimit/internal/cluster/caddy"

// What `make chaos` gives; without them the tests prove the same in phases as short as can be.
var (
	long   = flag.Bool("long", false, "measure: phases of seconds, one test at a time, a million requests for the exactly-once run")
	report = flag.String("report", "", "write what was measured between the marks of this Markdown file")
	seed   = flag.Uint64("seed", 1, "of the exactly-once run")
)

const sceneNodes = 3

// A pace is how fast and how long requests come in a scene.
type pace struct {
	sync  time.Duration // sync_rate
	rate  int           // requests a second
	phase time.Duration // at least, of each phase
	least int           // requests of each phase
}

func currentPace() pace {
	if *long {
		return pace{sync: 500 * time.Millisecond, rate: 900, phase: 5 * time.Second}
	}
	return pace{sync: 200 * time.Millisecond, rate: 150, least: 60}
}

// limit is a third of what comes for the zones that refuse.
func (p pace) limit() int { return p.rate / 5 / 3 }

// A scene is three nodes with a Redis of some shape, and clients that never stop asking.
type scene struct {
	*cluster.Cluster
	t      *testing.T
	pace   pace
	stores func() []*redistest.Server // that hold the counts now
	server *redistest.Server          // the only one, in a simple scene
	proxy  []*faultproxy.Proxy        // of each node, in a simple scene
	config string

	client *cluster.Client
	stop   func() // ends the requests; twice is once
	phases []*phase
	now    atomic.Pointer[phase]
	out    [sceneNodes]atomic.Bool // nodes that get no requests, as a load balancer has it
	flying [sceneNodes]atomic.Int64
}

// A phase is a part of a run with a name.
type phase struct {
	name    string
	began   time.Time
	length  time.Duration
	tallies map[part]*cluster.Tally
}

// part is what a tally counts apart.
type part struct {
	zone string
	node int
}

// turns are the zones in the order of requests. Most know no limit in sight: what they admit is to be found in Redis. Two are asked for three times
// their limit.
var turns = []string{"wide", "wide", "wide", "wide", "bucket", "local", "divide", "local", "divide", "bucket"}

// openScene starts nodes whose global options begin with a template of the line that leads to Redis.
func openScene(t *testing.T, redis string, stores func() []*redistest.Server) *scene {
	t.Helper()
	if !*long {
		t.Parallel()
	}
	s := &scene{t: t, pace: currentPace(), stores: stores}
	narrow := fmt.Sprintf("limit %d/1s", s.pace.limit())
	s.config = config(redis+"\nsync_rate "+s.pace.sync.String(), zones(
		zone("wide", wide, "algorithm fixed_window", "key {http.request.uri.query.k}"), zone("bucket", wide, "algorithm token_bucket"),
		zone("local", narrow), zone("divide", narrow, "on_redis_loss divide"),
	))
	s.Cluster = start(t, sceneNodes, s.config)
	s.client = client(t, 64)
	return s
}

// simple is a scene with one Redis, and a proxy before it for each node.
func simple(t *testing.T, options ...redistest.Option) *scene {
	t.Helper()
	r := redistest.Start(t, options...)
	return simpleWith(t, r, "")
}

func simpleWith(t *testing.T, r *redistest.Server, password string) *scene {
	t.Helper()
	var proxies []*faultproxy.Proxy
	var url strings.Builder
	for i := range sceneNodes {
		p := faultproxy.Start(t, r.Addr)
		proxies = append(proxies, p)
		fmt.Fprintf(&url, "{{if eq .Node %d}}redis://%s%s{{end}}", i+1, password, p.Addr)
	}
	s := openScene(t, "redis "+url.String(), func() []*redistest.Server { return []*redistest.Server{r} })
	s.server, s.proxy = r, proxies
	return s
}

// set changes what goes wrong on the way of all nodes.
func (s *scene) set(f faultproxy.Fault) {
	for _, p := range s.proxy {
		p.Set(f)
	}
}

// warm sends each node a few requests of each kind.
func (s *scene) warm() {
	p := s.enter("warm")
	var wg sync.WaitGroup
	for i := range sceneNodes * len(turns) {
		wg.Go(func() { s.ask(i, s.pick(i/len(turns)), p) })
	}
	wg.Wait()
	s.client.Close()
}

func (s *scene) current() *phase { return s.now.Load() }

// load begins to send requests in a phase of a name: an even rate, ten in a row to each node in turn.
func (s *scene) load(name string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.enter(name)
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		start := time.Now()
		timer := time.NewTimer(0)
		defer timer.Stop()
		for i := 0; ; i++ {
			timer.Reset(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(s.pace.rate))))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			node, p := s.pick(i/len(turns)), s.now.Load()
			wg.Go(func() { s.ask(i, node, p) })
		}
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	s.t.Cleanup(s.stop)
}

// pick is the i-th node, or the next that is not out; it counts as busy until ask is done.
func (s *scene) pick(i int) int {
	for ; ; i++ {
		node := i % sceneNodes
		s.flying[node].Add(1)
		if !s.out[node].Load() {
			return node
		}
		s.flying[node].Add(-1)
	}
}

func (s *scene) ask(i, node int, p *phase) {
	defer s.flying[node].Add(-1)
	zone := turns[i%len(turns)]
	path := "/" + zone
	if zone == "wide" {
		path += fmt.Sprintf("?k=%d", i/len(turns)%32)
	}
	s.client.Get(context.Background(), s.Nodes[node].Addr, path, nil, p.tallies[part{zone, node}])
}

// enter begins a phase.
func (s *scene) enter(name string) *phase {
	now := time.Now()
	if p := s.now.Load(); p != nil {
		p.length = now.Sub(p.began)
	}
	p := &phase{name: name, began: now, tallies: make(map[part]*cluster.Tally)}
	for _, zone := range turns {
		for node := range sceneNodes {
			p.tallies[part{zone, node}] = new(cluster.Tally)
		}
	}
	s.phases = append(s.phases, p)
	s.now.Store(p)
	return p
}

// last waits until a phase is as long as it is to be.
func (s *scene) last(p *phase) {
	s.t.Helper()
	eventually(s.t, "enough requests are answered while "+p.name, func() error {
		if time.Since(p.began) < s.pace.phase || p.sent() < s.pace.least {
			return fmt.Errorf("%d in %s", p.sent(), time.Since(p.began))
		}
		return nil
	})
}

// remove takes a node out and waits until it has answered all.
func (s *scene) remove(node int) {
	s.t.Helper()
	s.out[node].Store(true)
	eventually(s.t, "a node has answered all", func() error {
		if n := s.flying[node].Load(); n != 0 {
			return fmt.Errorf("%d are under way", n)
		}
		return nil
	})
}

func (s *scene) restore(node int) { s.out[node].Store(false) }

// holds is what Redis counts of a zone.
func (s *scene) holds(zone string) (sum int) {
	for _, r := range s.stores() {
		sum += total(s.t, r, zone)
	}
	return sum
}

// admitted is what clients saw admitted in a zone, in all phases.
func (s *scene) admitted(zone string) (sum int) {
	for _, p := range s.phases {
		sum += p.admitted(zone)
	}
	return sum
}

// admittedOn is admitted of one node, and admittedUntil that up to the end of a phase.
func (s *scene) admittedOn(node int, zone string) int { return s.admittedUntil(nil, node, zone) }

func (s *scene) admittedUntil(last *phase, node int, zone string) (sum int) {
	for _, p := range s.phases {
		sum += p.tallies[part{zone, node}].Admitted()
		if p == last {
			break
		}
	}
	return sum
}

// up says whether every node's exchange works.
func (s *scene) up() error {
	for i, n := range s.Nodes {
		if s.out[i].Load() {
			continue
		}
		status, err := n.Status(s.t.Context())
		if err != nil {
			return err
		}
		if !status.Redis.Up {
			return fmt.Errorf("node %d: %v", n.Number, status.Redis.Failing)
		}
	}
	return nil
}

// each calls f for the tallies of a zone, "" for all.
func (p *phase) each(zone string, f func(*cluster.Tally)) {
	for part, t := range p.tallies {
		if zone == "" || part.zone == zone {
			f(t)
		}
	}
}

func (p *phase) admitted(zone string) (sum int) {
	p.each(zone, func(t *cluster.Tally) { sum += t.Admitted() })
	return sum
}

func (p *phase) sent() (sum int) {
	p.each("", func(t *cluster.Tally) { sum += t.Sent() })
	return sum
}

// failed is how many requests got another answer than 200 or 429, or none.
func (p *phase) failed() (sum int, first error) {
	p.each("", func(t *cluster.Tally) {
		sum += t.Sent() - t.Admitted() - t.Refused()
		if _, err := t.Errors(); err != nil {
			first = err
		} else if n := t.Sent() - t.Status(http.StatusOK) - t.Status(http.StatusTooManyRequests); n != 0 && first == nil {
			first = fmt.Errorf("%d answers with another status", n)
		}
	})
	return sum, first
}

// quantile is the time that a share q of the requests stayed below.
func (p *phase) quantile(q float64) time.Duration {
	var all []time.Duration
	p.each("", func(t *cluster.Tally) { all = append(all, t.Took()...) })
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}
