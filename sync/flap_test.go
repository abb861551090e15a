package ratesync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-tide/ratelimit/internal/warning"
)

// lines counts what was logged on the way down, on the way up, and of outages in between.
func (n *vnode) lines() (down, up int, outages int64) {
	for _, line := range n.logs.All() {
		fields := line.ContextMap()
		if fields["code"] == warning.SyncFails {
			down++
		} else if fields["after"] != nil {
			up++
		}
		if more, ok := fields["outages"].(int64); ok {
			outages += more
		}
	}
	return down, up, outages
}

// A server that comes and goes is logged once a minute, with how often it went. The status is exact
// all the while.
func TestAFlappingServerIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newVnode(t)
		touch, _ := n.zone("z", 100*time.Millisecond)
		wrong := 0
		phase := func(d time.Duration, fails bool) {
			n.setFails(fails)
			for range d / (100 * time.Millisecond) {
				touch("k")
				time.Sleep(100 * time.Millisecond)
			}
			if n.rep.Status().Up == fails {
				wrong++
			}
		}
		phase(10*time.Second, false)
		const minutes = 5
		for range minutes * 30 {
			phase(time.Second, true)
			phase(time.Second, false)
		}
		down, up, _ := n.lines()
		if down < minutes || down > minutes+1 || up != down {
			t.Errorf("%d lines down and %d up in %d minutes of flapping, want one pair a minute", down, up, minutes)
		}
		phase(2*time.Minute, false)
		down, up, outages := n.lines()
		if up != down || outages != int64(minutes*30-down) {
			t.Errorf("%d lines down and %d up, which count %d outages more, of %d", down, up, outages, minutes*30)
		}
		if wrong > 0 {
			t.Errorf("the status was wrong at the end of %d seconds", wrong)
		}
	})
}
