//go:build chaos

package cluster_test

import (
	"fmt"
	"time"
)

// What must hold in the end of what nodes keep beside counts, once no request is under way.

// check compares what is kept to what clients saw. The scenario has stopped.
func (k *keeper) check(f fault) {
	k.t.Helper()
	defer k.reportFailures()
	k.checkBans()
	k.checkPlaces(f)
	k.checkSettled("login", f.maxLoss("login"), 0)
	// See strictBounds.
	most, more := f.maxLoss("slogin"), 0
	if f.losesGrants {
		most = k.responses("slogin")
	}
	if f.olderCopy {
		more = nodeCount
	}
	k.checkSettled("slogin", most, more)
	k.http.CloseIdleConnections()
}

// reportFailures reports what failed, also where a check ends early for what comes of it.
func (k *keeper) reportFailures() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, text := range k.failed {
		k.t.Error(text)
	}
}

// checkSettled waits until Redis counts the responses that matched, once each, and what was
// reserved on a node that was killed. It may lack so many, and have so many more.
func (k *keeper) checkSettled(zone string, most, more int) {
	k.t.Helper()
	eventually(k.t, "redis counts the responses that matched in "+zone, func() error {
		got, want := k.counted(zone), k.responses(zone)+k.lost.held
		if less := want - got; less > most || less < -more {
			return fmt.Errorf("redis counts %d of %d, %d may be missing", got, want, most)
		}
		return nil
	})
}

// checkBans waits until those are over that are short, and Redis has the others.
func (k *keeper) checkBans() {
	k.t.Helper()
	long := 0
	for _, b := range k.bans {
		if b.length == shortBan {
			eventually(k.t, "a ban is over", func() error {
				for node := range nodeCount {
					k.look(b, node)
					if !b.over[node] {
						return fmt.Errorf("not on node %d", node+1)
					}
				}
				return nil
			})
		} else if b.zone == "bans" {
			long++
		}
	}
	eventually(k.t, "redis has each ban", func() error {
		got := 0
		for _, r := range k.stores() {
			c := r.Client()
			got += len(c.Keys(k.t.Context(), "*:bans:ban:*").Val())
			c.Close()
		}
		if got < long {
			return fmt.Errorf("it has %d of %d", got, long)
		}
		return nil
	})
}

// checkPlaces frees the places that are taken, and waits until none is left anywhere.
func (k *keeper) checkPlaces(f fault) {
	k.t.Helper()
	p := &k.places
	if p.onOne > placesOf {
		k.t.Errorf("%d requests of one key ran on a node, want %d at most", p.onOne, placesOf)
	}
	if len(p.early) > 0 && !f.losesGrants {
		k.t.Errorf("%d of %d requests got a place of a key all of whose places the node knew to be taken: %q", len(p.early), p.asked, p.early)
	}
	k.freePlaces()
	for _, zone := range placeZones {
		eventually(k.t, "no place is taken in "+zone, func() error { return k.noPlaceTaken(zone) })
	}
	if k.lost.free != nil {
		<-k.lost.free
		for zone, after := range k.lost.took {
			if after < 5*time.Second || after > 14*time.Second {
				k.t.Errorf("%s: the places of the node that was killed were free after %s, want about 7 to 11.5 s", zone, after)
			}
		}
	}
}

// noPlaceTaken returns an error if a place is taken on a node, or Redis has one that counts.
func (k *keeper) noPlaceTaken(zone string) error {
	for i, n := range k.Nodes {
		status, err := n.Status(k.t.Context())
		if err != nil {
			return err
		}
		if own := status.Zone(zone).Own; own != 0 {
			return fmt.Errorf("%d on node %d", own, i+1)
		}
	}
	for _, r := range k.stores() {
		for key, places := range hashes(k.t, r, "*:"+zone+":concurrent:*") {
			for node, value := range places {
				var seq, gauge, expiry int64
				if _, err := fmt.Sscan(value, &seq, &gauge, &expiry); err != nil || gauge != 0 && expiry > time.Now().UnixMilli() {
					return fmt.Errorf("redis has %q of node %s in %s: %v", value, node, key, err)
				}
			}
		}
	}
	return nil
}
