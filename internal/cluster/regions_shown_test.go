//go:build chaos

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// Each node of a region shows on its page how the other one stands, whichever of them reads it.
// explain and top tell of keys that the other region counts. What an operator changes while it is
// lost is said not to be told yet, and holds in both when it is back. Meanwhile each node admits
// half of the limit of a new key.
func TestRegionsAreShown(t *testing.T) {
	t.Parallel()
	site := "handle /limits {\n\trate_limit_status\n}\n" + zones(zone("z", "key all", "limit 100/"+far), zone("probe", "key {query}", "limit 100/"+far), zone("none", "limit 0/"+far))
	all, c := startRegions(t, 2, 2, 0, site, "on_loss divide"), client(t, 4)
	nodes := all[0].nodes
	await := func(what string, want func(s ratesync.RegionStatus) bool, html string) {
		t.Helper()
		eventually(t, what, func() error {
			for _, n := range nodes {
				var v struct {
					Here    string
					Regions []ratesync.RegionStatus
				}
				if err := json.Unmarshal([]byte(answerTo(t, "http://"+n.Addr+"/limits", "Accept", "application/json").body), &v); err != nil {
					return err
				}
				if v.Here != "r0" || len(v.Regions) != 1 || v.Regions[0].Region != "r1" || !want(v.Regions[0]) {
					return fmt.Errorf("node %d shows %+v", n.Number, v)
				}
				if text := answerTo(t, "http://"+n.Addr+"/limits", "Accept", "text/html").body; !strings.Contains(text, html) {
					return fmt.Errorf("the page of node %d has no %s: %s", n.Number, html, text)
				}
			}
			return nil
		})
	}
	up := func(s ratesync.RegionStatus) bool { return s.Up && s.Lag < 20 && s.Backlog == 0 && s.Offset != 0 }
	await("the region is up", up, `<tr><th scope="row">r1</th><td data-label="Up">yes</td>`)
	cut(all, faultproxy.Blackhole)
	admit(t, c, nodes, "z", 10)
	await("the region is lost", func(s ratesync.RegionStatus) bool { return !s.Up && s.Lag > 5 && s.Backlog == 1 }, "<li>Region r1 is lost: timeout: ")
	out, code := command(t, nodes[0], "enforce", "none", "off")
	if code == 0 || !strings.Contains(out, "told to 0 of 1 regions") || !strings.Contains(out, "not told yet: r1") {
		t.Errorf("enforce with the other region cut off: exit code %d:\n%s", code, out)
	}
	probes := 0
	awaitLeft := func(left int) {
		t.Helper()
		eventually(t, fmt.Sprintf("each node leaves %d of a new key", left), func() error {
			for _, n := range nodes {
				probes++
				if got := answerTo(t, fmt.Sprintf("http://%s/probe?%d", n.Addr, probes)).header.Get("RateLimit"); !strings.Contains(got, fmt.Sprintf(";r=%d;", left)) {
					return fmt.Errorf("node %d leaves %s", n.Number, got)
				}
			}
			return nil
		})
	}
	for _, n := range nodes {
		if text := answerTo(t, "http://"+n.Addr+"/limits", "Accept", "text/html").body; !strings.Contains(text, ", divided: 50 of it here") {
			t.Errorf("the page of node %d does not say that limits are divided: %s", n.Number, text)
		}
	}
	awaitLeft(49)
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	awaitLeft(99)
	await("the region is back", up, `<p class="fine">No problems.</p>`)
	awaitStatus(t, "/none", http.StatusOK, slices.Concat(nodes, all[1].nodes)...)
	doneAtLast(t, all[1].nodes[0], "Applied by 2 of 2 nodes here, told to 1 of 1 regions", "enforce none --remove")
	awaitStatus(t, "/none", http.StatusTooManyRequests, slices.Concat(nodes, all[1].nodes)...)
	admit(t, c, all[1].nodes, "z", 5)
	awaitEqual(t, all, "z", 15)
	admit(t, c, nodes, "z", 2) // and hears of it
	eventually(t, "a node says that the other region counts the key, too", func() error {
		status, text := post(t, nodes[0], "/rate_limit/explain", `{"url":"http://`+nodes[0].Addr+`/z"}`)
		if !strings.Contains(text, `"regions":true`) {
			return fmt.Errorf("explain says %d %s", status, text)
		}
		if text := answerTo(t, "http://"+nodes[0].Admin+"/rate_limit/top").body; !strings.Contains(text, `"regions":true`) {
			return fmt.Errorf("top says %s", text)
		}
		return nil
	})
}
