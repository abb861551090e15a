//go:build chaos && unix

package cluster_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// regionPaths are what requests take turns at, and the zones of each.
var regionPaths = slices.DeleteFunc(slices.Clone(oncePaths), func(p struct {
	path  string
	zones []string
}) bool {
	return slices.Contains(onceStrict, p.zones[0])
})

// regionFields are what a process of a node is called in the hashes of each zone.
type regionFields map[string]string

// A regionNode is a node of a region under load. Requests hold busy for reading.
type regionNode struct {
	*cluster.Node
	region int
	busy   sync.RWMutex
	fields regionFields

	mu       sync.Mutex
	admitted map[string]int    // of its present process, by zone, as clients saw it
	buckets  map[bucketKey]int // and of its buckets
}

// A bucketKey is a key in a zone whose limit is a bucket.
type bucketKey struct {
	zone string
	key  int
}

// A regionBucket is what clients saw admitted of a key. unsure is the part of it that a loss leaves
// open: it was spent between the loss, or the copy that came back, and when all nodes have said
// again what they know. Of that a bucket may have nothing, or all of it twice: what two regions
// know is not added up then, but the higher of both is taken. ended is what processes have spent
// that have ended, and gone what of that a loss may have taken along.
type regionBucket struct{ admitted, unsure, ended, gone int }

// A regionRun is some regions under load while links between them, relays and their Redis fail, one
// after the other.
type regionRun struct {
	t      *testing.T
	random *rand.Rand
	away   time.Duration
	rate   int
	limit  int
	keys   int // take turns, so that most get no request for a while
	turn   int // is so many requests, from which on each region tells of a key
	next   int
	all    []*realRegion
	nodes  []*regionNode
	client *cluster.Client
	tally  cluster.Tally
	faults map[string]int
	total  int
	stop   func() // ends the load

	mu       sync.Mutex
	admitted map[string]int // of all, by zone

	// ended are the processes that have ended, by region, and lost what a Redis has forgotten of
	// them, by zone: nobody sends that again.
	ended  [][]regionFields
	lost   map[string]int
	lossAt time.Time

	// buckets are those of all zones, loses is set during a loss, and began is when the first of
	// them began to drain.
	buckets map[bucketKey]*regionBucket
	loses   bool
	began   time.Time
}

// A regionFault is a fault of a run.
type regionFault struct {
	name   string
	weight int
	do     func()
}

func (m *regionRun) allFaults() []regionFault {
	links := func(f faultproxy.Fault, some func() []*faultproxy.Proxy) func() {
		return func() { m.breakLinks(f, some()) }
	}
	return []regionFault{
		{"kill -9 of the relay while it reads", 2, m.killRelay},
		{"a Redis that is replaced by an older copy", 1, func() { m.lose(m.olderCopy) }},
		{"a Redis that is killed, and comes back empty", 1, func() { m.lose(m.empty) }},
		{"SCRIPT FLUSH", 2, func() { m.region().redis.Do("SCRIPT", "FLUSH") }},
		{"two relays", 1, m.twoRelays},
		{"all links cut", 2, links(faultproxy.Blackhole, m.allLinks)},
		{"links broken", 2, links(faultproxy.Reset, m.allLinks)},
		{"links cut one way only", 4, links(faultproxy.Blackhole, m.oneWay)},
		{"lost replies", 4, links(faultproxy.DropReplies, m.someLinks)},
		{"half-closed links", 2, links(faultproxy.HalfClose, m.someLinks)},
		{"messages that come after newer ones", 4, m.lateMessages},
		{"links that take 700 ms", 2, m.slowLinks},
		{"FLUSHALL", 1, func() { m.lose(m.flush) }},
	}
}

// What regions count in the end is what was admitted, to the request, whatever has failed, and
// within the time of docs/internals/regions.md.
func TestFaultRegions(t *testing.T) {
	var rows, runs string
	for _, regions := range []int{2, 6} {
		t.Run(fmt.Sprint(regions), func(t *testing.T) {
			m := newRegionRun(t, regions)
			for _, f := range m.allFaults() {
				m.load()
				m.awaitRequests(m.rate)
				m.inject(f)
				rows += fmt.Sprintf("| %d | %s | %.1f s |\n", regions, f.name, m.settle().Seconds())
			}
			m.load()
			for range 60 {
				m.injectAny()
			}
			runs += m.report(m.settle())
		})
	}
	text := "| regions | one fault | equal again after |\n|---|---|---|\n" + rows +
		"\n| regions, seed | faults, 60 at random | admitted in all zones | forgotten of killed nodes | in each Redis | equal again after |\n|---|---|---|---|---|---|\n" + runs
	if t.Failed() {
		fmt.Print(text)
	} else if err := write("regions", text); err != nil {
		t.Error(err)
	}
}

func newRegionRun(t *testing.T, regions int) *regionRun {
	m := &regionRun{
		t: t, random: rand.New(rand.NewPCG(firstSeed(), uint64(regions))), away: 50 * time.Millisecond, rate: 600, limit: 3200, keys: 20, turn: 4200,
		faults: make(map[string]int), admitted: make(map[string]int), lost: make(map[string]int), ended: make([][]regionFields, regions),
		buckets: make(map[bucketKey]*regionBucket), began: time.Now(),
	}
	var parts []string
	for _, zone := range []struct{ name, path, options string }{
		{"fixed", "fixed", "algorithm fixed_window"}, {"sliding", "sliding", "algorithm sliding_window"}, {"fine", "fine", "algorithm sliding_window\nsub_windows 5"},
		{"log", "log", "algorithm sliding_log"}, {"token", "token", "algorithm token_bucket"}, {"gcra", "gcra", "algorithm gcra"},
		{"pair_wide", "pair", "algorithm fixed_window"},
	} {
		parts = append(parts, keyedZone(zone.name, zone.path, fmt.Sprintf("limit %d/%s\nsync_rate 200ms", m.limit, far), zone.options))
	}
	parts = append(parts, keyedZone("pair_tight", "pair", fmt.Sprintf("limit %d/%s\nsync_rate 200ms", m.limit/8, far), "algorithm fixed_window"))
	m.all = startRegions(t, regions, 2, m.away, zones(parts...))
	m.client = client(t, onceConcurrency)
	for i, r := range m.all {
		for _, n := range r.nodes {
			node := &regionNode{Node: n, region: i}
			m.recordStart(node)
			m.nodes = append(m.nodes, node)
		}
	}
	return m
}

// recordStart notes that a process of a node has started.
func (m *regionRun) recordStart(n *regionNode) {
	m.t.Helper()
	awaitUp(m.t, n.Node)
	n.admitted, n.fields, n.buckets = make(map[string]int), make(regionFields), make(map[bucketKey]int)
	for _, zone := range onceZones {
		if n.fields[zone] = status(m.t, n.Node, zone).Node; n.fields[zone] == "" {
			m.t.Fatalf("node %d of r%d doesn't report its field of zone %s", n.Number, n.region, zone)
		}
	}
}

// load sends requests until stop is called, and returns once all regions have told each other
// something. It ends with the turn of a key.
func (m *regionRun) load() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg, done sync.WaitGroup
	slots := make(chan struct{}, onceConcurrency)
	done.Go(func() {
		start, first := time.Now(), m.next
		for ; ctx.Err() == nil || m.next%m.turn != 0; m.next++ {
			redistest.Pause(time.Until(start.Add(time.Duration(m.next-first) * time.Second / time.Duration(m.rate))))
			slots <- struct{}{}
			i := m.next
			wg.Go(func() {
				defer func() { <-slots }()
				m.request(i)
			})
		}
	})
	m.stop = func() {
		cancel()
		done.Wait()
		wg.Wait()
	}
	m.t.Cleanup(m.stop)
	for region := range m.all {
		awaitTells(m.t, m.relay(region, nil).Node)
	}
}

// request sends the i-th request to the node whose turn it is, or the next one that gets some.
func (m *regionRun) request(i int) {
	at := i / 7
	for !m.nodes[at%len(m.nodes)].busy.TryRLock() {
		at++
	}
	n := m.nodes[at%len(m.nodes)]
	defer n.busy.RUnlock()
	path := regionPaths[i%len(regionPaths)]
	status := m.client.Get(context.Background(), n.Addr, fmt.Sprintf("/%s?k=%d", path.path, i/m.turn%m.keys), nil, &m.tally)
	if status != http.StatusOK {
		if status != http.StatusTooManyRequests {
			_, err := m.tally.Errors()
			m.t.Errorf("node %d of r%d answers %d, %v", n.Number, n.region, status, err)
		}
		return
	}
	m.mu.Lock()
	n.mu.Lock()
	defer m.mu.Unlock()
	defer n.mu.Unlock()
	for _, zone := range path.zones {
		m.admitted[zone]++
		n.admitted[zone]++
		if !isBucketZone(zone) {
			continue
		}
		key := bucketKey{zone, i / m.turn % m.keys}
		b := m.bucket(key)
		b.admitted++
		n.buckets[key]++
		if m.loses || time.Since(m.lossAt) < resentWithin {
			b.unsure++
		}
	}
}

// isBucketZone reports whether the limit of a zone is a bucket, of which Redis has a level.
func isBucketZone(zone string) bool { return zone == "token" || zone == "gcra" }

// resentWithin is how long it takes after a loss until all nodes have said again what they hold.
const resentWithin = table.ResentReserved + 2*200*time.Millisecond

// bucket is that of a key. The lock is held.
func (m *regionRun) bucket(key bucketKey) *regionBucket {
	b := m.buckets[key]
	if b == nil {
		b = new(regionBucket)
		m.buckets[key] = b
	}
	return b
}

// inject injects a fault.
func (m *regionRun) inject(f regionFault) {
	m.t.Helper()
	began := time.Now()
	f.do()
	m.total++
	m.faults[f.name]++
	m.t.Logf("%s: %v", f.name, time.Since(began).Round(time.Millisecond))
}

// injectAny injects one of the faults, and then none for up to a second.
func (m *regionRun) injectAny() {
	m.t.Helper()
	all, sum := m.allFaults(), 0
	for _, f := range all {
		sum += f.weight
	}
	at := m.random.IntN(sum)
	for _, f := range all {
		if at -= f.weight; at < 0 {
			m.inject(f)
			break
		}
	}
	m.awaitRequests(1 + m.random.IntN(m.rate))
}

func (m *regionRun) awaitRequests(requests int) {
	m.t.Helper()
	awaitAnswers(m.t, &m.tally, requests)
}

// awaitSome waits for one to four seconds.
func (m *regionRun) awaitSome() {
	m.t.Helper()
	m.awaitRequests(m.rate + m.random.IntN(3*m.rate))
}

func (m *regionRun) region() *realRegion { return m.all[m.random.IntN(len(m.all))] }

func (m *regionRun) allLinks() (links []*faultproxy.Proxy) {
	for _, r := range m.all {
		links = append(links, r.links...)
	}
	return links
}

func (m *regionRun) oneWay() []*faultproxy.Proxy { return m.region().links }

// someLinks are each link with a chance of a half, and at least one.
func (m *regionRun) someLinks() []*faultproxy.Proxy {
	all := m.allLinks()
	one := all[m.random.IntN(len(all))]
	return slices.DeleteFunc(all, func(link *faultproxy.Proxy) bool { return link != one && m.random.IntN(2) == 0 })
}

func (m *regionRun) breakLinks(f faultproxy.Fault, links []*faultproxy.Proxy) {
	m.t.Helper()
	for _, link := range links {
		link.Set(f)
	}
	m.awaitSome()
	for _, link := range links {
		link.Set(faultproxy.None)
	}
}

// lateMessages holds messages, which relays then send again, and delivers them after newer ones.
func (m *regionRun) lateMessages() {
	m.t.Helper()
	links := m.someLinks()
	m.breakLinks(faultproxy.Hold, links)
	m.awaitSome()
	for _, link := range links {
		_, _ = link.Deliver()
	}
}

func (m *regionRun) slowLinks() {
	m.t.Helper()
	links := m.allLinks()
	for _, link := range links {
		link.SetDelay(700 * time.Millisecond)
	}
	m.awaitSome()
	for _, link := range links {
		link.SetDelay(m.away)
	}
}

// lose has the Redis of a region forget, and notes what it had of processes that have ended.
func (m *regionRun) lose(how func(*realRegion)) {
	m.t.Helper()
	region := m.random.IntN(len(m.all))
	had := m.ofEnded(region)
	m.mu.Lock()
	m.loses = true
	for _, b := range m.buckets {
		b.gone = b.ended
	}
	m.mu.Unlock()
	m.awaitRequests(m.rate) // until all that was admitted before is where it is not lost
	how(m.all[region])
	for zone, has := range m.ofEnded(region) {
		m.lost[zone] += had[zone] - has
	}
	m.mu.Lock()
	m.loses, m.lossAt = false, time.Now()
	m.mu.Unlock()
	m.awaitSome()
}

// flush comes when no call of a relay waits any more: one without an answer has it tell all of the
// last minute once more.
func (m *regionRun) flush(r *realRegion) {
	m.awaitRequests(5 * m.rate)
	r.redis.Do("FLUSHALL")
}

func (m *regionRun) olderCopy(r *realRegion) {
	r.redis.Do("SAVE")
	m.awaitSome()
	r.redis.Restart()
}

func (m *regionRun) empty(r *realRegion) {
	c := r.redis.Client()
	defer c.Close()
	dir := c.ConfigGet(m.t.Context(), "dir").Val()["dir"]
	r.redis.Kill()
	if err := os.Remove(filepath.Join(dir, "dump.rdb")); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	m.awaitSome()
	r.redis.Restart()
}

// ofEnded are what a Redis has of processes that have ended, by zone.
func (m *regionRun) ofEnded(region int) map[string]int {
	m.t.Helper()
	all := make(map[string]int)
	for _, zone := range onceZones {
		all[zone] = 0
		for key, fields := range cells(m.t, m.all[region].redis, zone) {
			for _, ended := range m.ended[region] {
				if field := fields[ended[zone]]; field != "" {
					all[zone] += unitsOf(m.t, key, "", field)
				}
			}
		}
	}
	return all
}

// relay is the node of a region that tells the others. Where a node is left out it is not asked.
func (m *regionRun) relay(region int, without *regionNode) (relay *regionNode) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("a node of r%d is the relay", region), func() error {
		for _, n := range m.nodes {
			if n.region == region && n != without && regionsStatus(m.t, n.Node).Relay {
				relay = n
				return nil
			}
		}
		return errors.New("none is")
	})
	return relay
}

// regionsStatus is how the other regions stand, as a node has it.
func regionsStatus(t *testing.T, n *cluster.Node) ratesync.RegionsStatus {
	t.Helper()
	var s struct{ Regions ratesync.RegionsStatus }
	if err := json.Unmarshal([]byte(answerTo(t, "http://"+n.Admin+"/rate_limit/").body), &s); err != nil {
		t.Fatal(err)
	}
	return s.Regions
}

// takeOut has a node get no more requests, and waits until all that it has admitted is in Redis.
func (m *regionRun) takeOut(n *regionNode) {
	m.t.Helper()
	n.busy.Lock()
	eventually(m.t, "redis counts all of a node", func() error {
		for _, zone := range onceZones {
			if isBucketZone(zone) { // a node begins another state of a bucket after a loss
				if unsent := status(m.t, n.Node, zone).Unsent; unsent != 0 {
					return fmt.Errorf("%d in zone %s are not sent", unsent, zone)
				}
				continue
			}
			counted := 0
			for key, fields := range cells(m.t, m.all[n.region].redis, zone) {
				if field := fields[n.fields[zone]]; field != "" {
					counted += unitsOf(m.t, key, "", field)
				}
			}
			if counted != n.admitted[zone] {
				return fmt.Errorf("%d in zone %s, clients saw %d admitted", counted, zone, n.admitted[zone])
			}
		}
		return nil
	})
}

// killRelay kills the relay of a region while it reads another one. What it has asked comes after
// what the next relay asks, and it is started again.
func (m *regionRun) killRelay() {
	m.t.Helper()
	region := m.random.IntN(len(m.all))
	r, relay := m.all[region], m.relay(region, nil)
	m.takeOut(relay)
	holdReading(m.t, r, relay.Node)
	relay.Kill()
	for _, link := range r.links {
		link.Set(faultproxy.None)
	}
	m.ended[region] = append(m.ended[region], relay.fields)
	m.mu.Lock()
	for key, n := range relay.buckets {
		m.bucket(key).ended += n
	}
	m.mu.Unlock()
	m.relay(region, relay)
	m.awaitRequests(m.rate)
	for _, link := range r.links {
		_, _ = link.Deliver()
	}
	if err := relay.Start(m.t.Context(), r.text); err != nil {
		m.t.Fatal(err)
	}
	m.recordStart(relay)
	relay.busy.Unlock()
}

// nameOfTold is what a message has that reads what has changed.
var nameOfTold = regexp.MustCompile(`:3:\{\d+\}:told`)

// holdsReading reports whether a link holds back that the region's relay reads another one.
func (r *realRegion) holdsReading() bool {
	for _, link := range r.links {
		for _, piece := range link.Pieces() {
			if nameOfTold.Match(piece) {
				return true
			}
		}
	}
	return false
}

// linkTimeout is how long a relay waits for an answer of another region.
const linkTimeout = 3 * time.Second

// holdReading holds a link of a region when its relay reads another one over it. Where the relay
// has no connection left just then, it is given another one.
func holdReading(t *testing.T, r *realRegion, relay *cluster.Node) {
	t.Helper()
	eventually(t, "a reading is held", func() error {
		for _, link := range r.links {
			link.Set(faultproxy.None)
		}
		awaitTells(t, relay)
		for _, link := range r.links {
			link.Set(faultproxy.Hold)
		}
		if !redistest.Poll(linkTimeout, r.holdsReading) {
			return errors.New("none is")
		}
		return nil
	})
}

// awaitTells waits until a relay has told each other region something more.
func awaitTells(t *testing.T, relay *cluster.Node) {
	t.Helper()
	var before map[string]int64
	eventually(t, "the relay tells all other regions", func() error {
		now := make(map[string]int64)
		for _, other := range regionsStatus(t, relay).Others {
			now[other.Region] = other.Messages
		}
		if before == nil {
			before = now
		}
		for region, messages := range now {
			if messages <= before[region] {
				return fmt.Errorf("it has told %s %d counts, as before", region, messages)
			}
		}
		return nil
	})
}

// twoRelays stops the relay of a region until another node has taken over, and has it go on.
func (m *regionRun) twoRelays() {
	m.t.Helper()
	region := m.random.IntN(len(m.all))
	relay := m.relay(region, nil)
	relay.busy.Lock()
	if err := relay.Suspend(); err != nil {
		m.t.Fatal(err)
	}
	m.relay(region, relay)
	m.awaitSome()
	if err := relay.Resume(); err != nil {
		m.t.Fatal(err)
	}
	relay.busy.Unlock()
	m.awaitSome()
}

// bound is for how long regions may differ when all works again, from now on.
func (m *regionRun) bound() time.Duration {
	told := time.Duration(len(onceZones)*m.keys) * time.Second / 2000
	resent := time.Until(m.lossAt.Add(resentWithin))
	return max(0, resent) + 10*time.Second + told
}

// settle ends the load and returns how long it takes until all Redis count what was admitted, key
// by key. A machine that is busy has three times as long as the documentation gives.
func (m *regionRun) settle() time.Duration {
	m.t.Helper()
	m.stop()
	began, bound := time.Now(), m.bound()
	var err error
	if !redistest.Poll(3*bound, func() bool { err = m.equal(); return err == nil }) {
		m.t.Fatalf("waited 3 times %v, but regions still differ: %v", bound, err)
	}
	took := time.Since(began)
	m.t.Logf("equal after %v of %v; %v admitted, Redis has forgotten %v of nodes that were killed", took.Round(time.Millisecond), bound.Round(time.Millisecond), m.admitted, m.lost)
	return took
}

// nodeName is the name of a field of a node.
var nodeName = regexp.MustCompile(`^[\w-]{12}$`)

// equal compares all Redis to each other and to what was admitted. Where the Redis of a region has
// forgotten so much of a key, with those who had counted it, that it tells no other region of the
// rest, those may go on to count what they knew.
func (m *regionRun) equal() error {
	m.t.Helper()
	for _, zone := range onceZones {
		if isBucketZone(zone) {
			if err := m.fill(zone); err != nil {
				return err
			}
			continue
		}
		all, own, least, most := map[string][]int{}, map[string]int{}, 0, 0
		for i, r := range m.all {
			for key, fields := range cells(m.t, r.redis, zone) {
				if all[key] == nil {
					all[key] = make([]int, len(m.all))
				}
				all[key][i] = unitsOf(m.t, key, "sum", fields["sum"])
				nodes := 0
				for name, value := range fields {
					if nodeName.MatchString(name) {
						nodes += unitsOf(m.t, key, "", value)
					}
				}
				own[key] = max(own[key], nodes)
			}
		}
		for key, counts := range all {
			low, high := slices.Min(counts), slices.Max(counts)
			if low != high && (own[key] >= m.limit/64 || m.lost[zone] == 0) {
				return fmt.Errorf("zone %s: regions count %v of %s", zone, counts, key)
			}
			least, most = least+low, most+high
		}
		want, lost := m.admitted[zone]-m.lost[zone], m.lost[zone]
		if least > want || most < want || most-want > lost || len(all) != min(m.keys, m.next/m.turn) && lost == 0 {
			return fmt.Errorf("zone %s: %d to %d are counted of %d keys, clients saw %d admitted, and Redis has forgotten %d of nodes that were killed: %v", zone, least, most, len(all), m.admitted[zone], lost, all)
		}
	}
	return nil
}

// fill compares the buckets of a zone in all Redis to what was admitted. They drain, and Redis
// counts parts of a request.
func (m *regionRun) fill(zone string) error {
	m.t.Helper()
	drained := 1 + int(float64(m.limit)*time.Since(m.began).Hours()/(30*24)) // far is 30 days
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.all {
		all := levels(m.t, r.redis, zone)
		for key := range min(m.keys, m.next/m.turn) {
			text := strconv.Itoa(key)
			id := keys.IDOf(append([]byte{1, byte(len(text))}, text...)) // see internal/reqkey
			b, level := m.bucket(bucketKey{zone, key}), 0
			for name, has := range all {
				if strings.HasSuffix(name, ":"+base64.RawURLEncoding.EncodeToString(id[:])) {
					level = has
					delete(all, name)
				}
			}
			if least, most := b.admitted-b.unsure-b.gone-drained, b.admitted+b.unsure+1; level < least || level > most {
				return fmt.Errorf("zone %s: %s has %d of key %d, where clients saw %+v, from %d to %d", zone, r.name, level, key, *b, least, most)
			}
		}
		if len(all) > 0 {
			return fmt.Errorf("zone %s: %s has %v, which are no keys", zone, r.name, all)
		}
	}
	return nil
}

// report is a row of what the run has shown.
func (m *regionRun) report(took time.Duration) string {
	admitted, lost, counted := 0, 0, 0
	for _, zone := range onceZones {
		if isBucketZone(zone) {
			continue
		}
		admitted, lost = admitted+m.admitted[zone], lost+m.lost[zone]
		counted += total(m.t, m.all[0].redis, zone)
	}
	return fmt.Sprintf("| %d, %d | %d | %d of %d requests | %d | %d | %.1f s |\n",
		len(m.all), firstSeed(), m.total, admitted, m.tally.Sent(), lost, counted, took.Seconds())
}
