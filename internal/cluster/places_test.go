//go:build chaos

package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A kept is the places of zones.
type kept struct {
	running map[tallyKey]int // of the key that comes and goes, by zone and node
	onOne   int              // the most on one node
	// ends end the requests that take all places of a key on the first node. broken says that one
	// has ended by itself, as at a reload.
	ends     []context.CancelFunc
	released bool
	broken   bool
	wg       sync.WaitGroup
	// began is when the fault did, zero for no fault. known has the nodes that have heard of the
	// places that are taken.
	began time.Time
	known [nodeCount]bool
	// asked is how often a place was asked for of the key that has none left. early says where one
	// was given while the node had heard of those that are taken.
	asked int
	early []string
}

// enter notes that a request runs on a node, until the function that it returns is called.
func (k *keeper) enter(zone string, node int) (leave func()) {
	key := tallyKey{zone, node}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &k.places
	p.running[key]++
	p.onOne = max(p.onOne, p.running[key])
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		p.running[key]--
	}
}

// churn sends a node more requests at once than there are places, which end soon, and the next node
// one.
func (k *keeper) churn(zone string, node int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range placesOf + 2 {
		at := node
		if i == 0 {
			at = (node + 1) % nodeCount
		}
		wg.Go(func() {
			k.use(at, func() {
				a, err := k.ask(at, zone, "churn", "churn&ms=60")
				if err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
					k.fail("%s: %d %v", zone, a.status, err)
				}
			})
		})
	}
}

// hold sends a request that does not end before the function is called that it returns. ended is
// called when it does so by itself.
func (k *keeper) hold(node int, zone, key, how string, ended func()) (end context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/%s?k=%s&%s", k.Nodes[node].Addr, zone, key, how), nil)
	if err != nil {
		k.t.Fatal(err)
	}
	begun := make(chan struct{})
	k.places.wg.Go(func() {
		res, err := k.http.Do(r)
		if err == nil && res.StatusCode != http.StatusOK {
			k.fail("%s: a request for a place or a unit that is free was answered by %d", zone, res.StatusCode)
		}
		close(begun)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if ctx.Err() == nil {
			ended()
		}
	})
	if how == "stays" {
		<-begun
	}
	return cancel
}

// takePlaces takes all places of a key on the first node.
func (k *keeper) takePlaces() {
	for _, zone := range placeZones {
		for range placesOf {
			k.places.ends = append(k.places.ends, k.hold(0, zone, "full", "stays", func() {
				k.mu.Lock()
				k.places.broken = true
				k.mu.Unlock()
			}))
		}
	}
}

func (k *keeper) freePlaces() {
	k.mu.Lock()
	k.places.released = true
	k.mu.Unlock()
	for _, end := range k.places.ends {
		end()
	}
	k.places.wg.Wait()
}

// lookAtFull asks for a place of the key that has none left. Who gets one gives it back at once.
func (k *keeper) lookAtFull(zone string, node int) (got bool, came time.Time) {
	if k.areVoid() {
		return false, came
	}
	a, err := k.ask(node, zone, "full", "")
	if err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
		k.fail("%s: %d %v", zone, a.status, err)
		return false, came
	}
	got = a.status == http.StatusOK
	// A request of those that hold them may have ended just before, which takes a moment to see.
	if got && redistest.Poll(time.Second, k.areVoid) {
		return false, came
	}
	return got, a.came
}

// areVoid reports whether the places of the key are not all taken any more.
func (k *keeper) areVoid() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.places.broken || k.places.released
}

// heldFor is less than what a node has heard of another one holds on: that expires ten seconds
// later, and was said again three seconds ago at most.
const heldFor = 6 * time.Second

// noteFull asks for a place of that key, and notes what must not be.
func (k *keeper) noteFull(zone string, node int) {
	k.mu.Lock()
	known := k.places.known[node]
	k.mu.Unlock()
	got, came := k.lookAtFull(zone, node)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places.asked++
	if !got {
		return
	}
	if node == 0 {
		k.failed = append(k.failed, zone+": the node that had given out all places gave out another one")
	}
	if began := k.places.began; known && (began.IsZero() || came.Sub(began) < heldFor) {
		k.places.early = append(k.places.early, fmt.Sprintf("%s of node %d, %s", zone, node+1, k.current().name))
	}
}

// A kill is a node that was killed, with requests of each zone under way.
type kill struct {
	node int
	held int           // units that were reserved in each zone with count_responses
	free chan struct{} // closed when its places are free
	took map[string]time.Duration
}

// beforeKill has requests under way on a node: of a key that nobody else uses, as many as there are
// places, and as many guesses. It returns when Redis knows of them and of all before them.
func (k *keeper) beforeKill(node int) {
	k.t.Helper()
	k.pause()
	k.lost = kill{node: node, held: placesOf, free: make(chan struct{}), took: make(map[string]time.Duration)}
	for range placesOf {
		for _, zone := range append(append([]string{}, settledZones...), placeZones...) {
			how := "hangs"
			if zone == "places" || zone == "splaces" {
				how = "stays"
			}
			k.places.ends = append(k.places.ends, k.hold(node, zone, "killed", how, func() {}))
		}
	}
	for _, zone := range settledZones {
		eventually(k.t, "redis knows what is reserved", func() error { return k.countsExactly(zone, placesOf) })
	}
	for _, zone := range placeZones {
		eventually(k.t, "another node knows that no place is free", func() error {
			if a, err := k.ask(0, zone, "killed", ""); err != nil || a.status != http.StatusTooManyRequests {
				return fmt.Errorf("%s: %d %v", zone, a.status, err)
			}
			return nil
		})
	}
}

// afterKill measures when the places of the node are free on another one.
func (k *keeper) afterKill() {
	killed := time.Now()
	k.resume()
	go func() {
		defer close(k.lost.free)
		for _, zone := range placeZones {
			free := redistest.Poll(60*time.Second, func() bool {
				a, err := k.ask(0, zone, "killed", "")
				return err == nil && a.status == http.StatusOK
			})
			if k.lost.took[zone] = time.Since(killed); !free {
				k.fail("%s: the places of the node that was killed are not free", zone)
			}
		}
	}()
}
