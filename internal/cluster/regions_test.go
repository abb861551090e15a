//go:build chaos

package cluster_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/redistest"
)

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

// One Redis under two names is found out: nothing is told, and counts stand.
func TestOneRedisUnderTwoNames(t *testing.T) {
	t.Parallel()
	r, c := redistest.Start(t), client(t, 4)
	other := strings.Replace(r.URL, "127.0.0.1", "localhost", 1) // with one name it doesn't load
	text := config("regions {\n\there eu\n\tregion eu "+r.URL+"\n\tregion us "+other+"\n}", zones(zone("z", "key all", "limit 1000/"+far)))
	nodes := start(t, 2, text).Nodes
	admit(t, c, nodes, "z", 50)
	awaitTotal(t, r, "z", 50)
	eventually(t, "it is logged", func() error {
		for _, n := range nodes {
			if len(n.Log.With(`belongs to region \"eu\"`)) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no node has logged it")
	})
	awaitTotal(t, r, "z", 50)
	for key, fields := range cells(t, r, "z") {
		for field := range fields {
			if strings.HasPrefix(field, "~") {
				t.Errorf("%s has a field %s", key, field)
			}
		}
	}
}
