//go:build chaos

package cluster_test

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// lateBy is by how much a ban may be longer than its length: what messages take on their way is a
// part of it, and a call may take a second. Each time that Redis forgets, that comes once more.
const lateBy = 5 * time.Second

// ban sends requests at once to a zone of a node until one is denied, which begins a ban.
func (k *keeper) ban(zone, key string, node int, length time.Duration) {
	b := &keptBan{zone: zone, key: key, length: length}
	for range 100 {
		b.began = time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 2 * spendsBan {
			wg.Go(func() {
				a, err := k.ask(node, zone, key, "")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests:
					k.fail("%s: %d %v", zone, a.status, err)
				case a.banned && (b.begun.IsZero() || a.came.Before(b.begun)):
					b.begun = a.came
				}
			})
		}
		if wg.Wait(); !b.begun.IsZero() {
			b.known[node] = true
			k.mu.Lock()
			k.bans = append(k.bans, b)
			k.mu.Unlock()
			return
		}
	}
	k.fail("%s: no request of %s was denied by a ban", zone, key)
}

// look asks a node for a key that is banned. A node that has once said so goes on saying so until
// the ban is over, and no longer.
func (k *keeper) look(b *keptBan, node int) (known bool) {
	k.mu.Lock()
	before, over := b.known[node], b.over[node]
	k.mu.Unlock()
	if over {
		return true // another request might begin another ban
	}
	a, err := k.ask(node, b.zone, b.key, "")
	if err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
		k.fail("%s: %d %v", b.zone, a.status, err)
		return false
	}
	// What is left is at least least and at most most, and said in whole seconds, rounded up.
	least, most := b.began.Add(b.length).Sub(a.came)-k.step, b.begun.Add(b.length).Sub(a.sent)+k.step
	if a.banned && a.wait < least {
		k.fail("node %d says that the ban of %s in %s lasts %s more, but that is %s at least", node+1, b.key, b.zone, a.wait, least)
	}
	if a.banned && a.wait-time.Second > most+lateBy {
		k.fail("node %d says that the ban of %s in %s lasts %s more, but that is %s at most", node+1, b.key, b.zone, a.wait, most)
	}
	if !a.banned && before && least > 0 {
		k.fail("node %d has let %s go in %s, %s before its ban was over", node+1, b.key, b.zone, least)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.banned {
		b.known[node] = true
	} else if least <= 0 {
		b.over[node] = true
	}
	return a.banned || least <= 0
}

// awaitKnown waits until every node that gets requests knows of each ban, with a request or a few,
// and of the places that are taken.
func (k *keeper) awaitKnown() {
	k.t.Helper()
	k.mu.Lock()
	bans := k.bans
	k.mu.Unlock()
	await := func(what string, known func(node int) bool) {
		k.t.Helper()
		eventually(k.t, "every node knows of "+what, func() (err error) {
			for node := range nodeCount {
				if !k.out[node].Load() && !known(node) {
					// Not so many requests that the node bans the key for them.
					redistest.Pause(150 * time.Millisecond)
					err = fmt.Errorf("node %d does not", node+1)
				}
			}
			return err
		})
	}
	for _, b := range bans {
		await("the ban of "+b.key+" in "+b.zone, func(node int) bool { return k.look(b, node) })
	}
	for _, zone := range placeZones {
		await("the places that are taken in "+zone, func(node int) bool {
			got, _ := k.lookAtFull(zone, node)
			return !got
		})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for node := range nodeCount {
		k.places.known[node] = !k.out[node].Load()
	}
}

// forget notes that a node has ended, with all that only it knew.
func (k *keeper) forget(node int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.bans {
		b.known[node] = false
	}
	k.places.known[node] = false
}
