package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
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
	most  int           // requests at once
	phase time.Duration // at least, of each phase
	least int           // requests of each phase
	// strict is how long a request waits for Redis at most: as by default, or so long that a
	// machine with other tests on it keeps up.
	strict time.Duration
}

func currentPace() pace {
	if *long {
		return pace{sync: 500 * time.Millisecond, rate: 900, most: 128, phase: 5 * time.Second, strict: 100 * time.Millisecond}
	}
	return pace{sync: 200 * time.Millisecond, rate: 150, most: 16, least: 60, strict: 300 * time.Millisecond}
}

// limit is a third of what comes for the zones that refuse.
func (p pace) limit() int { return p.rate / 5 / 3 }

// queue is what a queue drains in a second, two thirds of what comes for it, and how many wait: for
// a tenth of a second or two.
func (p pace) queue() (limit, waiting int) { return p.rate / 30, max(1, p.rate/300) }

// narrow is what the queue of a strict zone drains in a second, two thirds of what comes for it;
// one beside a strict zone drains a third of that on each node.
func (p pace) narrow() int { return p.rate / 10 / len(kinds) * 2 / 3 }

// A scene is three nodes with a Redis of some shape, and clients that never stop asking. What they
// ask of a node they ask of one of a control group as well, to which nothing happens.
type scene struct {
	*cluster.Cluster
	control *cluster.Cluster

	t      *testing.T
	pace   pace
	stores func() []*redistest.Server // that hold the counts now
	server *redistest.Server          // the only one, in a simple scene
	proxy  []*faultproxy.Proxy        // of each node, in a simple scene
	config string

	client   *cluster.Client
	leave    func() // lets another scene in
	stop     func() // ends the requests; twice is once
	phases   []*phase
	now      atomic.Pointer[phase]
	out      [sceneNodes]atomic.Bool // nodes that get no requests, as a load balancer has it
	inFlight [sceneNodes]atomic.Int64
	past     [sceneNodes]past
	named    [sceneNodes]bool // nodes whose status has named the reason of the fault
}

// past is what former lives of a node leave behind.
type past struct {
	circuits cluster.Circuits
	lines    int // that said that the exchange fails, when the node ended before it worked again
}

// A phase is a part of a run with a name.
type phase struct {
	name    string
	began   time.Time
	length  time.Duration
	tallies map[part]*cluster.Tally
	control map[part]*cluster.Tally
}

// part is what a tally counts apart.
type part struct {
	zone string
	node int
}

// turns are the zones in the order of requests. Most know no limit in sight: what they admit is to
// be found in Redis. Two are asked for three times their limit. In one Redis decides, and in one
// requests wait for their turn.
var turns = []string{
	"wide", "bucket", "wide", "local", "divide", "strict", "bucket", "local", "divide", "strict",
	"wide", "bucket", "wide", "local", "divide", "kinds", "kinds", "local", "divide", "queue",
}

// kinds take turns at the requests of that name: strict zones of the other algorithms, and a strict
// zone with a queue beside it that is local.
var kinds = []string{"slog", "stoken", "sgcra", "squeue", "beside"}

// counted are those of which Redis holds in the end what was admitted.
var counted = []string{"slog", "stoken", "sgcra", "beside"}

// inTime are the zones whose requests wait for nothing, by design: those that are timed.
var inTime = []string{"wide", "bucket", "local", "divide"}

// enterStage waits for its turn, in a short run, before anything of the scene is started.
func enterStage(t *testing.T) *scene {
	t.Helper()
	if !*long {
		t.Parallel()
	}
	onStage <- struct{}{}
	s := &scene{t: t, pace: currentPace(), leave: sync.OnceFunc(func() { <-onStage })}
	t.Cleanup(s.leave)
	return s
}

// open starts nodes whose global options begin with a template of the line that leads to Redis.
func (s *scene) open(redis string, stores func() []*redistest.Server) *scene {
	s.t.Helper()
	s.stores, s.config = stores, s.caddyfile(redis)
	s.control = control.of(s.t, s.caddyfile)
	s.Cluster = start(s.t, sceneNodes, s.config)
	s.client = client(s.t, 64)
	return s
}

func (s *scene) caddyfile(redis string) string {
	narrow := fmt.Sprintf("limit %d/1s", s.pace.limit())
	drain, waiting := s.pace.queue()
	return config(fmt.Sprintf("%s\nsync_rate %s\nstrict_timeout %s", redis, s.pace.sync, s.pace.strict), zones(
		zone("wide", wide, "algorithm fixed_window", "key {http.request.uri.query.k}"), zone("bucket", wide, "algorithm token_bucket"),
		zone("local", narrow), zone("divide", narrow, "on_redis_loss divide"),
		zone("strict", wide, "algorithm fixed_window", "key {http.request.uri.query.k}", "sync_rate strict"),
		zone("queue", fmt.Sprintf("limit %d/1s", drain), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting)),
		zone("slog", wide, "algorithm sliding_log", "sync_rate strict"),
		// They drain by less than one request while a test runs, so what Redis holds is what was
		// admitted.
		zone("stoken", "limit 1000/"+far, "burst 100000", "algorithm token_bucket", "sync_rate strict"),
		zone("sgcra", "limit 1000/"+far, "burst 100000", "algorithm gcra", "sync_rate strict"),
		zone("squeue", fmt.Sprintf("limit %d/1s", s.pace.narrow()), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting), "sync_rate strict"),
		zone("beside", wide, "algorithm fixed_window", "sync_rate strict"),
		strings.Replace(zone("beside", fmt.Sprintf("limit %d/1s", max(1, s.pace.narrow()/sceneNodes)), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting), "sync_rate local"), "zone beside", "zone besidequeue", 1),
	))
}

// control starts control groups: nodes with the configuration of a scene's and a Redis of their
// own. A long run has one for each scene, as old as its nodes; in a short one, where several scenes
// are on at once, all share one.
var control controls

type controls struct {
	sync.Once
	nodes *cluster.Cluster
	end   func()
	err   error
}

func (c *controls) of(t *testing.T, caddyfile func(redis string) string) *cluster.Cluster {
	t.Helper()
	program := caddy(t)
	if *long {
		c = new(controls)
		t.Cleanup(c.close)
	}
	c.Do(func() { c.err = c.open(program, caddyfile) })
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.nodes
}

func (c *controls) open(program string, caddyfile func(redis string) string) error {
	dir, err := os.MkdirTemp("", "tide-control")
	if err != nil {
		return err
	}
	c.end = func() { _ = os.RemoveAll(dir) }
	url, stop, err := cluster.StartRedis(context.Background(), "redis-server", dir)
	if err != nil {
		return err
	}
	c.end = func() {
		stop()
		_ = os.RemoveAll(dir)
	}
	c.nodes, err = cluster.Start(context.Background(), cluster.Options{Program: program, Caddyfile: caddyfile("redis " + url), Nodes: sceneNodes})
	return err
}

// close ends the control group, if there is one.
func (c *controls) close() {
	if c.nodes != nil {
		c.nodes.Close()
	}
	if c.end != nil {
		c.end()
	}
}

// waitTogether has more tests at once than there are CPUs: what they do most is to wait for other
// processes.
func waitTogether() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))
	}
}

// onStage are the scenes that send requests, fewer than there may be: when its requests are
// answered, a scene waits for some seconds until nodes believe that Redis is well.
var onStage = make(chan struct{}, runtime.GOMAXPROCS(0)+1)

// simple is a scene with one Redis, and a proxy before it for each node.
func simple(t *testing.T, options ...redistest.Option) *scene {
	t.Helper()
	s := enterStage(t)
	return s.simple(redistest.Start(t, options...), "")
}

func (s *scene) simple(r *redistest.Server, password string) *scene {
	s.t.Helper()
	var proxies []*faultproxy.Proxy
	var url strings.Builder
	for i := range sceneNodes {
		p := faultproxy.Start(s.t, r.Addr)
		proxies = append(proxies, p)
		fmt.Fprintf(&url, "{{if eq .Node %d}}redis://%s%s{{end}}", i+1, password, p.Addr)
	}
	s.server, s.proxy = r, proxies
	return s.open("redis "+url.String(), only(r))
}

func only(r *redistest.Server) func() []*redistest.Server {
	return func() []*redistest.Server { return []*redistest.Server{r} }
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
	for node := range sceneNodes {
		wg.Go(func() {
			for i := range turns {
				s.inFlight[node].Add(1)
				s.ask(i, node, p)
			}
		})
	}
	wg.Wait()
	s.client.Close()
}

func (s *scene) current() *phase { return s.now.Load() }

// inARow is how many requests go to one node before the next one gets some.
const inARow = 10

// load begins to send requests in a phase of a name at an even rate. On a machine that can't keep
// up they come later, and no more at once.
func (s *scene) load(name string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.enter(name)
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		slots := make(chan struct{}, s.pace.most)
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
			slots <- struct{}{}
			node, p := s.pick(i/inARow), s.now.Load()
			wg.Go(func() {
				defer func() { <-slots }()
				s.ask(i, node, p)
			})
		}
	}()
	s.stop = func() {
		cancel()
		<-done
		s.leave()
	}
	s.t.Cleanup(s.stop)
}

// pick is the i-th node, or the next that is not out; it counts as busy until ask is done.
func (s *scene) pick(i int) int {
	for ; ; i++ {
		node := i % sceneNodes
		s.inFlight[node].Add(1)
		if !s.out[node].Load() {
			return node
		}
		s.inFlight[node].Add(-1)
	}
}

// ask sends a request to a node and the same to its like in the control group, one after the other,
// either one first: so what else the machine does meets both alike.
func (s *scene) ask(i, node int, p *phase) {
	defer s.inFlight[node].Add(-1)
	zone := turns[i%len(turns)]
	if zone == "kinds" {
		zone = kinds[(i+i/len(turns))%len(kinds)]
	}
	path := "/" + zone
	switch zone {
	case "wide":
		path += fmt.Sprintf("?k=%d", (i+i/len(turns))%wideKeys)
	case "strict":
		path += fmt.Sprintf("?k=%d", i/len(turns)%4)
	}
	at, other := s.Nodes[node], s.control.Nodes[node]
	tally, others := p.tallies[part{zone, node}], p.control[part{zone, node}]
	if rand.IntN(2) == 0 {
		at, other, tally, others = other, at, others, tally
	}
	s.client.Get(context.Background(), at.Addr, path, nil, tally)
	s.client.Get(context.Background(), other.Addr, path, nil, others)
}

const wideKeys = 32

// touch sends each node a request for each key: it notices with the next one that Redis has lost
// something of a key.
func (s *scene) touch(p *phase) {
	var wg sync.WaitGroup
	for node, n := range s.Nodes {
		wg.Go(func() {
			for k := range wideKeys {
				s.client.Get(context.Background(), n.Addr, fmt.Sprintf("/wide?k=%d", k), nil, p.tallies[part{"wide", node}])
			}
		})
	}
	wg.Wait()
}

// enter begins a phase.
func (s *scene) enter(name string) *phase {
	now := time.Now()
	if p := s.now.Load(); p != nil {
		p.length = now.Sub(p.began)
	}
	p := &phase{name: name, began: now, tallies: newTallies(), control: newTallies()}
	s.phases = append(s.phases, p)
	s.now.Store(p)
	return p
}

// unsent is how many requests of each zone a node says it could not send when it ended.
func unsent(t *testing.T, n *cluster.Node) map[string]int {
	t.Helper()
	said := make(map[string]int)
	for _, text := range n.Log.With("TIDE015") {
		var line struct {
			Zone     string
			Requests int
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("node %d wrote %s: %v", n.Number, text, err)
		}
		said[line.Zone] += line.Requests
	}
	return said
}

func newTallies() map[part]*cluster.Tally {
	all := make(map[part]*cluster.Tally)
	for _, zone := range append(slices.Clone(turns), kinds...) {
		for node := range sceneNodes {
			all[part{zone, node}] = new(cluster.Tally)
		}
	}
	return all
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
		if n := s.inFlight[node].Load(); n != 0 {
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

// holdsStrict is what Redis counts of a strict zone whose algorithm is no window.
func (s *scene) holdsStrict(zone string) (sum int) {
	s.t.Helper()
	for _, r := range s.stores() {
		sum += strictTotal(s.t, r, zone)
	}
	return sum
}

// strictTotal is what a Redis counts of a strict zone whose algorithm is no window: the entries of
// its logs, the levels of its buckets.
func strictTotal(t *testing.T, r *redistest.Server, zone string) (sum int) {
	t.Helper()
	c := r.Client()
	defer c.Close()
	for _, key := range c.Keys(t.Context(), "*:"+zone+":*").Val() {
		switch {
		case strings.HasSuffix(key, ":log"):
			sum += int(c.ZCard(t.Context(), key).Val())
		case strings.HasSuffix(key, ":level"):
			whole, rest, _ := strings.Cut(c.Get(t.Context(), key).Val(), " ")
			level, err := strconv.Atoi(whole)
			if err != nil {
				t.Errorf("%s holds %q %q", key, whole, rest)
			}
			if !strings.HasPrefix(rest, "0 ") {
				level++
			}
			sum += level
		}
	}
	return sum
}

// decidedAlone is what Redis counts of a strict zone that nodes have decided by themselves: that is
// in their fields, as with an interval, while what Redis has decided is in the sum only.
func (s *scene) decidedAlone(zone string) (n int) {
	s.t.Helper()
	for _, r := range s.stores() {
		c := r.Client()
		for hash := range sums(s.t, r, zone) {
			for name, value := range c.HGetAll(s.t.Context(), hash).Val() {
				if name != "sum" {
					n += held(s.t, value)
				}
			}
		}
		c.Close()
	}
	return n
}

// exchanged says whether every node exchanges the counts of all zones with an interval. A strict
// zone's trouble stays on the list for some seconds more, as a single answer doesn't mean that
// Redis is well.
func (s *scene) exchanged() error {
	for i, n := range s.Nodes {
		if s.out[i].Load() {
			continue
		}
		status, err := n.Status(s.t.Context())
		if err != nil {
			return err
		}
		for name, why := range status.Redis.Failing {
			if !strings.HasSuffix(name, " sync_rate 0") {
				return fmt.Errorf("node %d: %s: %s", n.Number, name, why)
			}
		}
	}
	return nil
}

// circuits are how often requests of a node's strict zone have waited in vain, in all its lives.
func (s *scene) circuits(node int) cluster.Circuits {
	s.t.Helper()
	all := s.past[node].circuits
	if s.out[node].Load() {
		return all
	}
	now := s.status(node).Strict
	all.Trips += now.Trips
	all.Timeouts += now.Timeouts
	return all
}

func (s *scene) status(node int) (status cluster.Status) {
	s.t.Helper()
	eventually(s.t, "a node tells its status", func() (err error) {
		status, err = s.Nodes[node].Status(s.t.Context())
		return err
	})
	return status
}

// end takes a node out and ends its process, once in a scene.
func (s *scene) end(node int, how func(*cluster.Node) error) {
	s.t.Helper()
	s.remove(node)
	n, was := s.Nodes[node], &s.past[node]
	was.circuits = s.status(node).Strict
	if err := how(n); err != nil {
		s.t.Error(err)
	}
	was.lines = len(n.Log.With(lineDown)) - len(n.Log.With(lineUp))
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
func failed(tallies map[part]*cluster.Tally) (sum int, first error) {
	for _, t := range tallies {
		sum += t.Sent() - t.Admitted() - t.Refused()
		if _, err := t.Errors(); err != nil {
			first = err
		} else if n := t.Sent() - t.Status(http.StatusOK) - t.Status(http.StatusTooManyRequests); n != 0 && first == nil {
			first = fmt.Errorf("%d answers with another status", n)
		}
	}
	return sum, first
}

// quantile is the time that a share q of the requests stayed below, of those that wait for nothing.
func quantile(q float64, tallies map[part]*cluster.Tally) time.Duration {
	var all []time.Duration
	for part, t := range tallies {
		if slices.Contains(inTime, part.zone) {
			all = append(all, t.Took()...)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// p99 is that of the nodes, and how many times that of the control group it is.
func (p *phase) p99() (took time.Duration, ratio float64) {
	took = quantile(.99, p.tallies)
	return took, float64(took) / float64(max(1, quantile(.99, p.control)))
}
