//go:build chaos

package cluster_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
)

var (
	settledZones = []string{"login", "slogin"}
	banZones     = []string{"bans", "sbans", "short"}
	placeZones   = []string{"places", "splaces"}
)

const (
	shortBan  = 3 * time.Second // is over while the scenario runs
	longBan   = time.Hour
	spendsBan = 12 // requests a second that may be sent without a ban
	placesOf  = 2  // of a key
)

func newKeeper(s *scenario) *keeper {
	k := &keeper{scenario: s, matched: make(map[string]int)}
	k.places.running = make(map[tallyKey]int)
	k.upstream = httptest.NewServer(http.HandlerFunc(k.answer))
	s.t.Cleanup(k.upstream.Close)
	k.http.Transport = &http.Transport{MaxIdleConnsPerHost: 16}
	k.stop = func() {}
	return k
}

// zones returns the zones, and the site returns the way to the upstream.
func (k *keeper) zones() (all []string) {
	add := func(name string, options ...string) {
		options = append(options, "key {http.request.uri.query.k}")
		if name[0] == 's' && name != "short" {
			options = append(options, "sync_rate strict")
		}
		all = append(all, zone(name, options...))
	}
	for _, name := range settledZones {
		add(name, wide, "algorithm fixed_window", "count_responses 401")
	}
	for _, name := range banZones {
		length := longBan
		if name == "short" {
			length = shortBan
		}
		add(name, fmt.Sprintf("limit %d/1s", spendsBan), "algorithm fixed_window", fmt.Sprint("ban ", length))
	}
	for _, name := range placeZones {
		add(name, fmt.Sprint("concurrent ", placesOf))
	}
	return all
}

// site has the upstream answer. It has no idle connections, which have goroutines.
func (k *keeper) site() string {
	return fmt.Sprintf(`
@kept path /%s
handle @kept {
	reverse_proxy %s {
		header_up Node {{.Node}}
		transport http {
			keepalive off
		}
	}
}`, strings.Join(append(append([]string{}, settledZones...), placeZones...), " /"), k.upstream.Listener.Addr())
}

// answer is the upstream: "ms" is how long it takes, "wrong" has it answer 401. With "stays" it
// begins a response that does not end, and with "hangs" none begins.
func (k *keeper) answer(w http.ResponseWriter, r *http.Request) {
	q, zone := r.URL.Query(), strings.TrimPrefix(r.URL.Path, "/")
	if q.Has("churn") {
		node, _ := strconv.Atoi(r.Header.Get("Node"))
		defer k.enter(zone, node)()
	}
	if ms, err := strconv.Atoi(q.Get("ms")); err == nil {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-r.Context().Done():
		}
	}
	switch {
	case q.Has("wrong"):
		w.WriteHeader(http.StatusUnauthorized)
	case q.Has("stays"):
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case q.Has("hangs"):
		<-r.Context().Done()
	}
}

// A said is an answer of a node.
type said struct {
	sent, came time.Time
	status     int
	banned     bool
	wait       time.Duration // Retry-After
}

// ask sends a request to a zone of a node, for a key.
func (k *keeper) ask(node int, zone, key, query string) (a said, err error) {
	a.sent = time.Now()
	var res *http.Response
	for range 4 { // see cluster.Client
		res, err = k.http.Get(fmt.Sprintf("http://%s/%s?k=%s&%s", k.Nodes[node].Addr, zone, url.QueryEscape(key), query))
		if !cluster.IsClosed(err) {
			break
		}
	}
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a.came, a.status = time.Now(), res.StatusCode
	a.banned = strings.Contains(string(body), "#abnormal-usage-detected")
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	a.wait = time.Duration(seconds) * time.Second
	return a, err
}

// fail notes what must not be, the first few times.
func (k *keeper) fail(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.failed) < 10 {
		k.failed = append(k.failed, fmt.Sprintf("%s: %s", k.current().name, fmt.Sprintf(format, args...)))
	}
}

// use has a node busy until f returns, unless it gets no requests.
func (k *keeper) use(node int, f func()) {
	k.inFlight[node].Add(1)
	defer k.inFlight[node].Add(-1)
	if !k.out[node].Load() {
		f()
	}
}

// warm sends each node a request for each zone, after which it has all the goroutines that it needs
// for them.
func (k *keeper) warm() {
	for node := range nodeCount {
		k.use(node, func() {
			for _, zone := range append(append(append([]string{}, settledZones...), banZones...), placeZones...) {
				if a, err := k.ask(node, zone, "warm", ""); err != nil || a.status != http.StatusOK {
					k.fail("the first request to %s: %d %v", zone, a.status, err)
				}
			}
		})
	}
	k.http.CloseIdleConnections()
}

// begin takes places, bans keys, and sends requests from now on until stop. With a Redis that is
// there it waits until all nodes know of both.
func (k *keeper) begin(redis bool) {
	k.t.Helper()
	k.takePlaces()
	for node := range nodeCount {
		k.ban("bans", fmt.Sprint("early", node), node, longBan)
	}
	k.ban("sbans", "early", 0, longBan)
	if redis {
		k.awaitKnown()
	}
	k.ban("short", "early", 1, shortBan)
	const rate, most = 40, 16 // a second, and at once
	k.stop = evenly(k.t, rate, most, func(i int) func() {
		node := i / len(keeperOrder) % nodeCount
		return func() { k.use(node, func() { k.request(i, node) }) }
	})
	k.t.Cleanup(func() {
		k.stop()
		k.freePlaces()
		k.http.CloseIdleConnections()
	})
}

// faultBegins is to be called before the fault begins.
func (k *keeper) faultBegins() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places.began = time.Now()
}

// faultEnds waits until all nodes know of all that is kept.
func (k *keeper) faultEnds() {
	k.t.Helper()
	k.awaitKnown()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places.began = time.Time{}
}

// during bans keys while the fault is there, on each node that gets requests.
func (k *keeper) during() {
	for node := range nodeCount {
		if !k.out[node].Load() {
			k.ban("bans", fmt.Sprint("late", node), node, longBan)
		}
	}
}

// keeperOrder are the requests of a keeper, one after the other.
var keeperOrder = []string{"login", "ban", "slogin", "full", "login", "places", "slogin", "ban", "splaces", "sfull"}

func (k *keeper) request(i, node int) {
	switch zone := keeperOrder[i%len(keeperOrder)]; zone {
	case "login", "slogin":
		if k.guesses.TryRLock() {
			k.guess(zone, node, i)
			k.guesses.RUnlock()
		}
	case "ban":
		k.mu.Lock()
		k.random++
		b := k.bans[k.random%len(k.bans)]
		k.mu.Unlock()
		k.look(b, node)
	case "full":
		k.noteFull("places", node)
	case "sfull":
		k.noteFull("splaces", node)
	default:
		k.churn(zone, node)
	}
}

// guess sends a guess, every other one wrong. Some take long, so that they are under way when
// something happens.
func (k *keeper) guess(zone string, node, i int) {
	query, want := fmt.Sprint("ms=", 5+i%7*20), http.StatusOK
	if (i/2)%2 == 0 {
		query, want = query+"&wrong", http.StatusUnauthorized
	}
	a, err := k.ask(node, zone, fmt.Sprint(i/len(keeperOrder)%8), query)
	if err != nil || a.status != want {
		k.fail("a guess in %s was answered by %d, want %d: %v", zone, a.status, want, err)
	}
	if err == nil && a.status == http.StatusUnauthorized {
		k.mu.Lock()
		k.matched[zone]++
		k.mu.Unlock()
	}
}

// pause has no guesses sent before resume, and waits until Redis counts exactly those before.
func (k *keeper) pause() {
	k.t.Helper()
	k.guesses.Lock()
	for _, zone := range settledZones {
		eventually(k.t, "redis counts what was settled", func() error { return k.countsExactly(zone, 0) })
	}
}

func (k *keeper) resume() { k.guesses.Unlock() }

// countsExactly returns an error unless Redis counts the responses that matched, and more of them.
func (k *keeper) countsExactly(zone string, more int) error {
	if got, want := k.counted(zone), k.responses(zone)+more; got != want {
		return fmt.Errorf("redis counts %d in %s, want %d", got, zone, want)
	}
	return nil
}

func (k *keeper) responses(zone string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.matched[zone]
}

// A keeper sends a scenario's nodes requests to zones that keep more of a key than counts: takes
// that are settled by the response, bans, and places of what runs at once. Each such zone is there
// with an interval and with sync_rate strict. Its requests are beside those of the scenario, and
// the control group gets none of them.
type keeper struct {
	*scenario
	upstream *httptest.Server // of all these zones
	http     http.Client
	stop     func() // ends the requests; twice is once

	guesses sync.RWMutex // is held while none may be sent

	mu     sync.Mutex
	random int
	failed []string // what no answer may be
	// matched is how many responses matched count_responses, by zone.
	matched map[string]int
	bans    []*keptBan
	places  kept

	lost kill // the node that was killed, if one was
	// step is by how much Redis' clock steps. A node that hears of a ban after it has the ban end
	// earlier or later by as much.
	step time.Duration
}

// A keptBan is the ban of a key, and what clients have seen of it.
type keptBan struct {
	zone, key string
	length    time.Duration
	// began and begun are the instants between which it began.
	began, begun time.Time
	// known has the nodes that have answered that the key is banned, over those on which the ban
	// was over then.
	known, over [nodeCount]bool
}
