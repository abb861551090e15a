//go:build chaos

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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

func init() { atEnd = append(atEnd, results.print) }

func currentLoad() loadShape {
	return loadShape{
		syncRate: 500 * time.Millisecond, rate: 900, concurrency: 128, minPhase: 5 * time.Second,
		strictTimeout: 100 * time.Millisecond,
	}
}

// limit is a third of the load of the zones that deny.
func (p loadShape) limit() int { return p.rate / 5 / 3 }

// queue returns what a queue drains in a second, two thirds of its load, and how many wait: for a
// tenth of a second or two.
func (p loadShape) queue() (limit, waiting int) { return p.rate / 30, max(1, p.rate/300) }

// narrow returns what the queue of a strict zone drains in a second, two thirds of its load. One
// beside a strict zone drains a third of that on each node.
func (p loadShape) narrow() int { return p.rate / 10 / len(strictOthers) * 2 / 3 }

// endedRuns is what processes of a node that have ended leave behind.
type endedRuns struct {
	circuits cluster.Circuits
	lines    int // on the way down without one on the way up
}

// A phase is a part of a run with a name.
type phase struct {
	name    string
	began   time.Time
	length  time.Duration
	tallies map[tallyKey]*cluster.Tally
	control map[tallyKey]*cluster.Tally
}

// A tallyKey is what has a tally of its own.
type tallyKey struct {
	zone string
	node int
}

// zoneOrder are the zones in the order of requests. Most have a limit that is far away: what they
// admit is to be found in Redis. Two get three times their limit. In one Redis decides, and in one
// requests queue. "others" are strictOthers, one after the other.
var zoneOrder = []string{
	"wide", "bucket", "wide", "local", "divide", "strict", "bucket", "local", "divide", "strict",
	"wide", "bucket", "wide", "local", "divide", "others", "others", "local", "divide", "queue",
}

// strictOthers are strict zones of the other algorithms, and a strict zone with a local queue
// beside it.
var strictOthers = []string{"slog", "stoken", "sgcra", "squeue", "beside"}

// exactOthers are those of which Redis has in the end what was admitted.
var exactOthers = []string{"slog", "stoken", "sgcra", "beside"}

// strictBuckets are strict zones of which Redis keeps levels.
var strictBuckets = []string{"stoken", "sgcra"}

// timedZones are the zones whose requests wait for nothing by design.
var timedZones = []string{"wide", "bucket", "local", "divide"}

func newScenario(t *testing.T) *scenario {
	t.Helper()
	s := &scenario{t: t, load: currentLoad()}
	if strings.HasPrefix(t.Name(), "TestFaultFarAway/") {
		s.away = farAway
		s.load.strictTimeout = max(s.load.strictTimeout, 6*s.away)
	}
	return s
}

// open starts nodes whose global options begin with a template of the line that leads to Redis.
func (s *scenario) open(redis string, stores func() []*redistest.Server) *scenario {
	s.t.Helper()
	s.keeper = newKeeper(s)
	s.stores, s.config = stores, s.caddyfile(redis)
	s.control = s.openControl()
	s.Cluster = start(s.t, nodeCount, s.config)
	s.client = client(s.t, 64)
	s.client.Again = true
	return s
}

func (s *scenario) caddyfile(redis string) string {
	narrow := fmt.Sprintf("limit %d/1s", s.load.limit())
	drain, waiting := s.load.queue()
	own := []string{
		zone("wide", wide, "algorithm fixed_window", "key {http.request.uri.query.k}"), zone("bucket", wide, "algorithm token_bucket"),
		zone("local", narrow), zone("divide", narrow, "on_redis_loss divide"),
		zone("strict", wide, "algorithm fixed_window", "key {http.request.uri.query.k}", "sync_rate strict"),
		zone("queue", fmt.Sprintf("limit %d/1s", drain), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting)),
		zone("slog", wide, "algorithm sliding_log", "sync_rate strict"),
		// They drain by less than one request while a test runs, so what Redis counts is what was
		// admitted.
		zone("stoken", "limit 1000/"+far, "burst 100000", "algorithm token_bucket", "sync_rate strict"),
		zone("sgcra", "limit 1000/"+far, "burst 100000", "algorithm gcra", "sync_rate strict"),
		zone("squeue", fmt.Sprintf("limit %d/1s", s.load.narrow()), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting), "sync_rate strict"),
		zone("beside", wide, "algorithm fixed_window", "sync_rate strict"),
		strings.Replace(zone("beside", fmt.Sprintf("limit %d/1s", max(1, s.load.narrow()/nodeCount)), "algorithm leaky_bucket", fmt.Sprint("queue ", waiting), "sync_rate local"), "zone beside", "zone besidequeue", 1),
	}
	return config(fmt.Sprintf("%s\nsync_rate %s\nstrict_timeout %s", redis, s.load.syncRate, s.load.strictTimeout),
		zones(append(own, s.keeper.zones()...)...)+s.keeper.site())
}

// openControl starts a control group, as old as the nodes: with their configuration and a Redis of
// its own.
func (s *scenario) openControl() *cluster.Cluster {
	s.t.Helper()
	return start(s.t, nodeCount, s.caddyfile("redis "+redistest.Start(s.t).URL))
}

// simple returns a scenario with one Redis, and a proxy before it for each node.
func simple(t *testing.T, options ...redistest.Option) *scenario {
	t.Helper()
	s := newScenario(t)
	return s.simple(redistest.Start(t, options...), "")
}

func (s *scenario) simple(r *redistest.Server, password string) *scenario {
	s.t.Helper()
	var proxies []*faultproxy.Proxy
	var url strings.Builder
	for i := range nodeCount {
		p := faultproxy.Start(s.t, r.Addr)
		p.SetDelay(s.away)
		proxies = append(proxies, p)
		fmt.Fprintf(&url, "{{if eq .Node %d}}redis://%s%s{{end}}", i+1, password, p.Addr)
	}
	s.server, s.proxy = r, proxies
	return s.open("redis "+url.String(), only(r))
}

func only(r *redistest.Server) func() []*redistest.Server {
	return func() []*redistest.Server { return []*redistest.Server{r} }
}

// set sets the fault of all proxies.
func (s *scenario) set(f faultproxy.Fault) {
	for _, p := range s.proxy {
		p.Set(f)
	}
}

// warm sends each node a few requests for each zone.
func (s *scenario) warm() {
	p := s.beginPhase("warm")
	var wg sync.WaitGroup
	for node := range nodeCount {
		wg.Go(func() {
			for i := range zoneOrder {
				s.inFlight[node].Add(1)
				s.request(i, node, p)
			}
		})
	}
	wg.Wait()
	s.keeper.warm()
	s.client.Close()
}

func (s *scenario) current() *phase { return s.now.Load() }

// requestsInARow is how many requests go to one node before the next one gets some.
const requestsInARow = 10

// evenly does one thing after the other at an even rate a second, no more than most at once, until
// stop is called, which waits for all. On a machine that can't keep up they come later. next
// returns the i-th of them.
func evenly(t *testing.T, rate, most int, next func(i int) (do func())) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		slots := make(chan struct{}, most)
		start := time.Now()
		timer := time.NewTimer(0)
		defer timer.Stop()
		for i := 0; ; i++ {
			timer.Reset(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			slots <- struct{}{}
			do := next(i)
			wg.Go(func() {
				defer func() { <-slots }()
				do()
			})
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// turns are nodes that take turns at requests.
type turns struct {
	out      [nodeCount]atomic.Bool // get none, as a load balancer has it
	inFlight [nodeCount]atomic.Int64
}

// pick returns the i-th node, or the next that gets requests. It counts as busy until inFlight is
// lowered.
func (n *turns) pick(i int) int {
	for ; ; i++ {
		node := i % nodeCount
		n.inFlight[node].Add(1)
		if !n.out[node].Load() {
			return node
		}
		n.inFlight[node].Add(-1)
	}
}

// takeOut sends a node no more requests and waits until it has answered all.
func (n *turns) takeOut(t *testing.T, node int) {
	t.Helper()
	n.out[node].Store(true)
	eventually(t, "a node has answered all", func() error {
		if k := n.inFlight[node].Load(); k != 0 {
			return fmt.Errorf("%d are under way", k)
		}
		return nil
	})
}

// sendRequests begins to send requests in a phase of a name at an even rate.
func (s *scenario) sendRequests(name string) {
	s.beginPhase(name)
	s.stop = evenly(s.t, s.load.rate, s.load.concurrency, func(i int) func() {
		node, p := s.pick(i/requestsInARow), s.now.Load()
		return func() { s.request(i, node, p) }
	})
}

// request sends a request to a node and to its counterpart in the control group, one after the
// other, either one first: what else the machine does meets both alike.
func (s *scenario) request(i, node int, p *phase) {
	defer s.inFlight[node].Add(-1)
	zone := zoneOrder[i%len(zoneOrder)]
	if zone == "others" {
		zone = strictOthers[(i+i/len(zoneOrder))%len(strictOthers)]
	}
	path := "/" + zone
	switch zone {
	case "wide":
		path += fmt.Sprintf("?k=%d", (i+i/len(zoneOrder))%wideKeys)
	case "strict":
		path += fmt.Sprintf("?k=%d", i/len(zoneOrder)%4)
	}
	at, other := s.Nodes[node], s.control.Nodes[node]
	tally, others := p.tallies[tallyKey{zone, node}], p.control[tallyKey{zone, node}]
	if rand.IntN(2) == 0 {
		at, other, tally, others = other, at, others, tally
	}
	s.client.Get(context.Background(), at.Addr, path, nil, tally)
	s.client.Get(context.Background(), other.Addr, path, nil, others)
}

const wideKeys = 32

// requestEachKey sends each node a request for each key: a node notices with the next one that
// Redis has lost something of a key.
func (s *scenario) requestEachKey(p *phase) {
	var wg sync.WaitGroup
	for node, n := range s.Nodes {
		wg.Go(func() {
			for k := range wideKeys {
				s.client.Get(context.Background(), n.Addr, fmt.Sprintf("/wide?k=%d", k), nil, p.tallies[tallyKey{"wide", node}])
			}
		})
	}
	wg.Wait()
}

// beginPhase ends the phase before and begins another.
func (s *scenario) beginPhase(name string) *phase {
	now := time.Now()
	if p := s.now.Load(); p != nil {
		p.length = now.Sub(p.began)
	}
	p := &phase{name: name, began: now, tallies: newTallies(), control: newTallies()}
	s.phases = append(s.phases, p)
	s.now.Store(p)
	return p
}

// unsent returns how many requests of each zone a node has logged as not sent when it ended.
func unsent(t *testing.T, n *cluster.Node) map[string]int {
	t.Helper()
	logged := make(map[string]int)
	for _, text := range n.Log.With("TIDE015") {
		var line struct {
			Zone     string
			Requests int
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("node %d wrote %s: %v", n.Number, text, err)
		}
		logged[line.Zone] += line.Requests
	}
	return logged
}

func newTallies() map[tallyKey]*cluster.Tally {
	all := make(map[tallyKey]*cluster.Tally)
	for _, zone := range append(slices.Clone(zoneOrder), strictOthers...) {
		for node := range nodeCount {
			all[tallyKey{zone, node}] = new(cluster.Tally)
		}
	}
	return all
}

// awaitPhase waits until a phase is long enough.
func (s *scenario) awaitPhase(p *phase) {
	s.t.Helper()
	eventually(s.t, "enough requests are answered "+p.name, func() error {
		if time.Since(p.began) < s.load.minPhase {
			return fmt.Errorf("%d in %s", p.sent(), time.Since(p.began))
		}
		return nil
	})
}

// admitted returns what clients saw admitted in a zone, in all phases.
func (s *scenario) admitted(zone string) (sum int) {
	for _, p := range s.phases {
		sum += p.admitted(zone)
	}
	return sum
}

// admittedOn is admitted for one node, and admittedUntil that up to the end of a phase.
func (s *scenario) admittedOn(node int, zone string) int { return s.admittedUntil(nil, node, zone) }

func (s *scenario) admittedUntil(last *phase, node int, zone string) (sum int) {
	for _, p := range s.phases {
		sum += p.tallies[tallyKey{zone, node}].Admitted()
		if p == last {
			break
		}
	}
	return sum
}

// countedAlone returns what Redis counts of a strict zone that nodes have decided by themselves.
func (s *scenario) countedAlone(zone string) (n int) {
	s.t.Helper()
	for _, r := range s.stores() {
		for key, fields := range cells(s.t, r, zone) {
			n += aloneIn(s.t, key, fields)
		}
	}
	return n
}

// countedStrict returns what Redis counts of a strict zone of buckets.
func (s *scenario) countedStrict(zone string) (sum int) {
	s.t.Helper()
	for _, r := range s.stores() {
		sum += filled(s.t, r, zone)
	}
	return sum
}

// allSynced returns an error unless every node syncs the counts of all zones with an interval. A
// strict zone's failure stays in the status for some seconds more, as a single answer doesn't mean
// that Redis is up.
func (s *scenario) allSynced() error {
	for i, n := range s.Nodes {
		if s.out[i].Load() {
			continue
		}
		status, err := n.Status(s.t.Context())
		if err != nil {
			return err
		}
		for name, why := range status.Redis.Failing {
			if !strings.HasSuffix(name, " sync_rate strict") {
				return fmt.Errorf("node %d: %s: %s", n.Number, name, why)
			}
		}
	}
	return nil
}

// circuits returns how often requests of a node's strict zone have waited in vain, in all of its
// processes.
func (s *scenario) circuits(node int) cluster.Circuits {
	s.t.Helper()
	all := s.ended[node].circuits
	if s.out[node].Load() {
		return all
	}
	now := s.status(node).Strict
	all.Trips += now.Trips
	all.Timeouts += now.Timeouts
	return all
}

func (s *scenario) status(node int) (status cluster.Status) {
	s.t.Helper()
	eventually(s.t, "a node returns its status", func() (err error) {
		status, err = s.Nodes[node].Status(s.t.Context())
		return err
	})
	return status
}

// endNode takes a node out and ends its process, once in a scenario.
func (s *scenario) endNode(node int, how func(*cluster.Node) error) {
	s.t.Helper()
	s.takeOut(s.t, node)
	n, was := s.Nodes[node], &s.ended[node]
	was.circuits = s.status(node).Strict
	s.keeper.forget(node)
	if err := how(n); err != nil {
		s.t.Error(err)
	}
	was.lines = len(n.Log.With(lineDown)) - len(n.Log.With(lineUp))
}

// each calls f for the tallies of a zone, of all zones for "".
func (p *phase) each(zone string, f func(*cluster.Tally)) {
	for key, t := range p.tallies {
		if zone == "" || key.zone == zone {
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

// failed returns how many requests got another answer than 200 or 429, or none.
func failed(tallies map[tallyKey]*cluster.Tally) (sum int, first error) {
	for _, t := range tallies {
		sum += t.Sent() - t.Admitted() - t.Denied()
		if _, err := t.Errors(); err != nil {
			first = err
		} else if n := t.Sent() - t.Status(http.StatusOK) - t.Status(http.StatusTooManyRequests); n != 0 && first == nil {
			first = fmt.Errorf("%d answers with another status", n)
		}
	}
	return sum, first
}

// quantile returns the time that a share q of the requests to timedZones stayed below.
func quantile(q float64, tallies map[tallyKey]*cluster.Tally) time.Duration {
	var all []time.Duration
	for key, t := range tallies {
		if slices.Contains(timedZones, key.zone) {
			all = append(all, t.Took()...)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// p99 returns that of the nodes, and its ratio to that of the control group.
func (p *phase) p99() (took time.Duration, ratio float64) {
	took = quantile(.99, p.tallies)
	return took, float64(took) / float64(max(1, quantile(.99, p.control)))
}

// firstSeed is the seed of runs that have one.
func firstSeed() uint64 { return redistest.FirstSeed() + 1 }

// reportPage gets what was measured, with UPDATE_GOLDENS=1.
const reportPage = "../../docs/internals/reliability.md"

// A scenario is three nodes with a Redis of some topology, and clients that send requests all the
// time. Each request to a node is sent to one of a control group as well, which meets no fault.
type scenario struct {
	*cluster.Cluster
	control *cluster.Cluster

	t      *testing.T
	load   loadShape
	away   time.Duration              // the round trip to Redis without a fault
	stores func() []*redistest.Server // that have the counts now
	server *redistest.Server          // the only one, in a simple scenario
	proxy  []*faultproxy.Proxy        // of each node, in a simple scenario
	config string

	keeper *keeper
	client *cluster.Client
	stop   func() // ends the requests; twice is once
	phases []*phase
	now    atomic.Pointer[phase]
	turns
	ended [nodeCount]endedRuns
	// reasonInStatus has the nodes whose status has named the reason of the fault.
	reasonInStatus [nodeCount]bool
}

// A loadShape is how fast and how long requests come in a scenario.
type loadShape struct {
	syncRate    time.Duration
	rate        int           // requests a second
	concurrency int           // requests at once, at most
	minPhase    time.Duration // the least length of a phase
	// strictTimeout is how long a request waits for Redis at most, as by default.
	strictTimeout time.Duration
}

// counted returns what Redis counts of a zone.
func (s *scenario) counted(zone string) (sum int) {
	for _, r := range s.stores() {
		sum += total(s.t, r, zone)
	}
	return sum
}
