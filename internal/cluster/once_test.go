//go:build chaos

package cluster_test

import (
	"context"
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

const (
	onceSync        = 100 * time.Millisecond
	onceKeys        = 20
	onceConcurrency = 128 // requests at once, at most
)

// onceZones are the zones of the run that share counts at intervals, all of whose epochs live to
// its end. Requests to /pair are for the last two, of which one denies in the end, so that the
// other rolls back what it took. In all but /pair each node has a limit of its own.
var onceZones = []string{"fixed", "sliding", "fine", "log", "token", "gcra", "pair_wide", "pair_tight"}

// An onceRun is three nodes under load while Redis, the way to it and the nodes themselves fail,
// one after the other. Two nodes reach Redis through proxies that lead to the present master,
// one by way of the sentinels.
type onceRun struct {
	t      *testing.T
	random *rand.Rand
	redis  *redistest.Watched
	proxy  [2]*faultproxy.Proxy
	*cluster.Cluster
	config string
	client *cluster.Client

	turns

	began   time.Time
	rate    int
	current [nodeCount]atomic.Pointer[incarnation]
	ended   []*incarnation
	tally   cluster.Tally
	faults  map[string]int
	total   int

	// strict is held for reading by requests to strict zones.
	strict sync.RWMutex
}

// An incarnation is one process of a node: it has a field of its own in all hashes.
type incarnation struct {
	node   int
	fields map[string]string // by zone
	killed bool
	// confirmed is what a node that was killed had sent just before, and unsent what one that was
	// terminated has logged as not sent. Both by zone.
	confirmed, unsent map[string]int

	mu       sync.Mutex
	admitted map[string]int             // by zone, as clients saw it
	unsure   map[string]int             // requests without an answer
	recent   map[string][]time.Duration // when each was admitted, since the beginning
	asked    map[string]int             // requests to strict zones, answered or not
	settled  map[string]int             // asked, when Redis last had all of them right

	// evicted are totals that were in hashes that Redis lost after its end, by field.
	evicted map[string]int
}

func (m *onceRun) caddyfile() string {
	var parts []string
	for zone, options := range map[string]string{
		"fixed": "algorithm fixed_window", "sliding": "algorithm sliding_window", "fine": "algorithm sliding_window\nsub_windows 5",
		"log": "algorithm sliding_log", "token": "algorithm token_bucket", "gcra": "algorithm gcra",
	} {
		parts = append(parts, keyedZone(zone, zone, limitByNode, options))
	}
	parts = append(parts, keyedZone("pair_wide", "pair", wide, "algorithm fixed_window"), keyedZone("pair_tight", "pair", fmt.Sprintf("limit %d/%s", m.rate/20, far), "algorithm fixed_window"))
	parts = append(parts, m.strictZones()...)
	slices.Sort(parts)
	redis := fmt.Sprintf("redis {{if eq .Node 3}}%s{{else if eq .Node 2}}redis://%s{{else}}redis://%s{{end}}", m.redis.URL, m.proxy[1].Addr, m.proxy[0].Addr)
	return config(redis+"\nsync_rate "+onceSync.String()+"\nstrict_timeout 300ms", zones(parts...))
}

// keyedZone is a zone for a path, with a key that the client chooses.
func keyedZone(name, path string, options ...string) string {
	return fmt.Sprintf("zone %s {\nmatch {\npath /%s\n}\nkey {http.request.uri.query.k}\n%s\n}\n", name, path, strings.Join(options, "\n"))
}

func TestExactlyOnce(t *testing.T) {
	const requests, faults, rate = 1_000_000, 200, 4000
	m := newOnceRun(t, rate)
	t.Logf("seed %d", firstSeed())
	stop := m.load()
	for m.total < faults || m.tally.Sent() < requests {
		m.injectNext()
	}
	m.awaitAllUp()
	stop()
	for node := range m.Nodes {
		m.requestEachKey(node)
	}
	m.closeStrict()
	m.strict.Unlock()
	m.verify()
}

func newOnceRun(t *testing.T, rate int) *onceRun {
	m := &onceRun{t: t, random: rand.New(rand.NewPCG(firstSeed(), 1)), rate: rate, faults: make(map[string]int)}
	m.redis = redistest.StartSentinels(t, 3)
	for i := range m.proxy {
		m.proxy[i] = faultproxy.Start(t, m.redis.Master.Addr)
	}
	m.config = m.caddyfile()
	m.Cluster = start(t, 3, m.config)
	m.client = client(t, onceConcurrency)
	m.began = time.Now()
	for node := range m.Nodes {
		m.recordStart(node)
	}
	return m
}

// recordStart notes that a process of a node has started.
func (m *onceRun) recordStart(node int) {
	m.t.Helper()
	awaitUp(m.t, m.Nodes[node])
	status, err := m.Nodes[node].Status(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	l := &incarnation{
		node: node, fields: make(map[string]string), admitted: make(map[string]int), unsure: make(map[string]int),
		recent: make(map[string][]time.Duration), evicted: make(map[string]int), asked: make(map[string]int), settled: make(map[string]int),
	}
	for _, zone := range onceZones {
		if l.fields[zone] = status.Zone(zone).Node; l.fields[zone] == "" {
			m.t.Fatalf("node %d doesn't report its field of zone %s", node+1, zone)
		}
	}
	m.current[node].Store(l)
}

// load sends requests until it is stopped.
func (m *onceRun) load() (stop func()) {
	return evenly(m.t, m.rate, onceConcurrency, func(i int) func() {
		node := m.pick(i / 7)
		return func() {
			defer m.inFlight[node].Add(-1)
			m.request(i, node)
		}
	})
}

// oncePaths are what requests take turns at, and the zones of each.
var oncePaths = []struct {
	path  string
	zones []string
}{
	{"fixed", []string{"fixed"}},
	{"sliding", []string{"sliding"}},
	{"strict", []string{"strict"}},
	{"fine", []string{"fine"}},
	{"log", []string{"log"}},
	{"strictpair", []string{"strictpair_wide", "strictpair_tight"}},
	{"token", []string{"token"}},
	{"gcra", []string{"gcra"}},
	{"pair", []string{"pair_wide", "pair_tight"}},
	{"strictslide", []string{"strictslide"}},
}

// request sends the i-th request and notes what came of it.
func (m *onceRun) request(i, node int) {
	l := m.current[node].Load()
	at := oncePaths[i%len(oncePaths)]
	strict := slices.Contains(onceStrict, at.zones[0])
	if strict {
		if !m.strict.TryRLock() {
			return
		}
		defer m.strict.RUnlock()
	}
	status := m.client.Get(context.Background(), m.Nodes[node].Addr, fmt.Sprintf("/%s?k=%d", at.path, i/len(oncePaths)%onceKeys), nil, &m.tally)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, zone := range at.zones {
		if strict {
			l.asked[zone]++
		}
		switch status {
		case http.StatusOK:
			l.admitted[zone]++
			l.recent[zone] = append(l.recent[zone], time.Since(m.began))
		case 0:
			l.unsure[zone]++
		}
	}
}

// injectNext injects the next fault.
func (m *onceRun) injectNext() {
	all := []struct {
		name   string
		weight int
		do     func()
	}{
		{"lost replies", 6, func() { m.breakLinks(faultproxy.DropReplies) }},
		{"cut connections", 4, func() { m.breakLinks(faultproxy.Reset) }},
		{"half-closed connections", 2, func() { m.breakLinks(faultproxy.HalfClose) }},
		{"silence", 2, func() { m.breakLinks(faultproxy.Blackhole) }},
		{"messages that come late", 4, m.delayMessages},
		{"SCRIPT FLUSH", 3, func() { m.redis.Master.Do("SCRIPT", "FLUSH") }},
		{"evictions", 5, m.evict},
		{"kill -9 and restart of a node", 2, func() { m.end(true) }},
		{"SIGTERM and restart of a node", 2, func() { m.end(false) }},
		{"failover", 1, m.failover},
	}
	sum := 0
	for _, one := range all {
		sum += one.weight
	}
	at := m.random.IntN(sum)
	if m.total < len(all) { // each at least once
		at = 0
		for _, one := range all[:m.total] {
			at += one.weight
		}
	}
	for _, one := range all {
		if at -= one.weight; at < 0 {
			one.do()
			m.total++
			m.faults[one.name]++
			break
		}
	}
	m.awaitRequests(m.random.IntN(m.rate / 5))
}

// awaitRequests waits until so many requests have been answered.
func (m *onceRun) awaitRequests(requests int) {
	m.t.Helper()
	awaitAnswers(m.t, &m.tally, requests)
}

// breakLinks sets a fault of one or both proxies, for a fifth of a second at least.
func (m *onceRun) breakLinks(f faultproxy.Fault) {
	for i := range m.random.IntN(2) + 1 {
		m.proxy[(i+m.total)%2].Set(f)
	}
	m.awaitRequests(m.rate/5 + m.random.IntN(m.rate/2))
	for _, p := range m.proxy {
		p.Set(faultproxy.None)
	}
}

// delayMessages holds messages, which nodes then send again, and delivers them after newer ones.
func (m *onceRun) delayMessages() {
	m.breakLinks(faultproxy.Hold)
	m.awaitRequests(m.rate / 5)
	for _, p := range m.proxy {
		_, _ = p.Deliver() // a connection may end in between; the rest is lost then
	}
}

// awaitAllUp waits until the syncs of all nodes work.
func (m *onceRun) awaitAllUp() {
	m.t.Helper()
	for i, n := range m.Nodes {
		if !m.out[i].Load() {
			awaitUp(m.t, n)
		}
	}
}

// cellKeys matches the names of cells.
const cellKeys = "caddy:3:{*}:*:[a-z]-*:*"

// evict removes some hashes, and notes what incarnations that have ended had in them: nobody sends
// that again.
func (m *onceRun) evict() {
	r := m.redis.Master.Client()
	defer r.Close()
	// of these nobody else knows what it had granted
	all := slices.DeleteFunc(r.Keys(m.t.Context(), cellKeys).Val(), isStrict)
	slices.Sort(all)
	for range min(len(all), 1+m.random.IntN(10)) {
		key := all[m.random.IntN(len(all))]
		gone, err := r.Eval(m.t.Context(), "local all = redis.call('HGETALL', KEYS[1]); redis.call('UNLINK', KEYS[1]); return all",
			[]string{key}).StringSlice()
		if err != nil {
			m.t.Fatal(err)
		}
		for i := 0; i+1 < len(gone); i += 2 {
			for _, l := range m.ended {
				for _, field := range l.fields {
					if field == gone[i] {
						l.evicted[field] += unitsOf(m.t, key, field, gone[i+1])
					}
				}
			}
		}
	}
}

// end ends a node's process, and starts it again. One that is killed has requests under way; one
// that is asked to end has answered all, as behind a load balancer. Before that Redis has
// everything of it, so that nothing can be missing in the end but what it counts from then on.
func (m *onceRun) end(kill bool) {
	m.t.Helper()
	m.awaitAllUp()
	node := m.random.IntN(3)
	n, l := m.Nodes[node], m.current[node].Load()
	m.awaitCounted(node)
	m.closeStrict()
	m.strict.Unlock()
	m.awaitRequests(m.rate / 2)
	l.killed = kill
	before := unsent(m.t, n)
	if kill {
		l.confirmed = m.confirmed(l)
	}
	m.out[node].Store(true)
	if kill {
		n.Kill()
	}
	m.takeOut(m.t, node)
	if err := n.Stop(); err != nil {
		m.t.Error(err)
	}
	l.unsent = unsent(m.t, n)
	for zone, logged := range before {
		l.unsent[zone] -= logged
	}
	m.ended = append(m.ended, l)
	m.awaitReplica()
	if err := n.Start(m.t.Context(), m.config); err != nil {
		m.t.Fatal(err)
	}
	m.recordStart(node)
	m.out[node].Store(false)
}

// awaitCounted waits until Redis counts of a node exactly what clients saw admitted there. It gets
// no requests meanwhile but one for each key: a node notices that Redis has lost something of a key
// with the next one.
func (m *onceRun) awaitCounted(node int) {
	m.t.Helper()
	l := m.current[node].Load()
	m.takeOut(m.t, node)
	m.requestEachKey(node)
	eventually(m.t, "redis counts all of a node", func() error {
		fields, _ := m.counts()
		for zone, field := range l.fields {
			if fields[field] != l.admitted[zone] {
				return fmt.Errorf("%d of node %d in zone %s, clients saw %d admitted", fields[field], node+1, zone, l.admitted[zone])
			}
		}
		return nil
	})
	m.out[node].Store(false)
}

// requestEachKey sends a node one request for each key.
func (m *onceRun) requestEachKey(node int) {
	for i := range len(oncePaths) * onceKeys {
		m.request(i, node)
	}
}

// confirmed returns what a node reports that Redis has of it, by zone.
func (m *onceRun) confirmed(l *incarnation) map[string]int {
	m.t.Helper()
	status, err := m.Nodes[l.node].Status(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	all := make(map[string]int)
	for zone := range l.fields {
		z := status.Zone(zone)
		all[zone] = int(z.Own - z.Unsent)
	}
	return all
}

// mayMiss returns how much of a zone may be missing in Redis at the end: what a node had not sent
// when it was killed, and what one that was terminated has logged as not sent.
func (l *incarnation) mayMiss(zone string) int {
	if l.killed {
		return l.admitted[zone] - l.confirmed[zone]
	}
	return l.unsent[zone]
}

// awaitReplica waits until the replica has what the master has: what only an ended process could
// send again must outlive a failover.
func (m *onceRun) awaitReplica() {
	m.t.Helper()
	if n, _ := m.redis.Master.Do("WAIT", 1, 4000).(int64); n != 1 {
		m.t.Fatal("the replica has not caught up within 4 s")
	}
}

// failover kills the master, and brings it back as a replica.
func (m *onceRun) failover() {
	m.t.Helper()
	m.awaitAllUp()
	m.closeStrict() // what the replica has not got would be lost
	m.awaitReplica()
	m.redis.Master.Kill()
	m.strict.Unlock()
	m.redis.Failover()
	for _, p := range m.proxy {
		p.Lead(m.redis.Master.Addr)
	}
	m.redis.Rejoin()
	m.awaitAllUp()
}

// counts are the totals in Redis by field, and the difference of all sums to what they are the sums
// of.
func (m *onceRun) counts() (fields map[string]int, off int) {
	if role := m.redis.Master.Do("ROLE").([]any)[0]; role != "master" {
		m.t.Fatalf("the sentinels have made the master a %v on their own: the machine is too busy for this test", role)
	}
	fields = make(map[string]int)
	for key, all := range hashes(m.t, m.redis.Master, cellKeys) {
		if isStrict(key) {
			continue
		}
		for name, value := range all {
			if name == "fields" || name == "born" { // no totals
				continue
			}
			n := unitsOf(m.t, key, name, value)
			if name == "sum" {
				off += n
				continue
			}
			fields[name] += n
			off -= n
		}
	}
	return fields, off
}

// A balance is the sums of a run, over all zones and incarnations.
type balance struct {
	admitted, counted, evicted int
	// lost is missing of nodes that were killed, and left of those that were terminated; both with
	// what may be.
	lost, mayLose, left, mayLeave int
}

// difference returns what nothing explains.
func (b balance) difference() int { return b.admitted - b.counted - b.evicted - b.lost - b.left }

// verify compares Redis to what clients saw, in each incarnation and zone.
func (m *onceRun) verify() {
	m.t.Helper()
	var b balance
	eventually(m.t, "redis counts what clients saw admitted", func() (err error) {
		b, err = m.balance()
		return err
	})
	for _, l := range m.ended {
		for zone, n := range l.unsure {
			if n != 0 && !l.killed {
				m.t.Errorf("%d requests to zone %s of node %d were not answered, though it was not killed", n, zone, l.node+1)
			}
		}
	}
	if failed, _ := m.tally.Errors(); m.tally.Sent() != m.tally.Admitted()+m.tally.Denied()+failed {
		m.t.Error("some answers had another status than 200 or 429")
	}
	m.report(b)
}

// balance compares each incarnation in each zone.
func (m *onceRun) balance() (b balance, err error) {
	fields, off := m.counts()
	if off != 0 {
		return b, fmt.Errorf("the sums are off by %d from the totals of the nodes", off)
	}
	all := slices.Clone(m.ended)
	for node := range m.Nodes {
		all = append(all, m.current[node].Load())
	}
	for _, l := range all {
		for zone, field := range l.fields {
			missing, most := l.admitted[zone]-fields[field]-l.evicted[field], l.mayMiss(zone)
			if missing > most || missing < -l.unsure[zone] {
				return b, fmt.Errorf("a process of node %d (killed: %t) in zone %s: clients saw %d admitted and %d unsure, redis counts %d and lost %d, so %d are missing, at most %d may be",
					l.node+1, l.killed, zone, l.admitted[zone], l.unsure[zone], fields[field], l.evicted[field], missing, most)
			}
			b.admitted, b.counted, b.evicted = b.admitted+l.admitted[zone], b.counted+fields[field], b.evicted+l.evicted[field]
			switch {
			case l.killed:
				b.lost, b.mayLose = b.lost+missing, b.mayLose+most
			case slices.Contains(m.ended, l):
				b.left, b.mayLeave = b.left+missing, b.mayLeave+most
			}
		}
	}
	return b, nil
}
