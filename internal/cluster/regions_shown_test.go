//go:build chaos

package cluster_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

// textOf reads what a node answers.
func textOf(t *testing.T, url, accept string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Each node of a region shows on its page how the other one stands, whichever of them reads it.
// When the region is lost one of them logs it, and when it is back. explain and top tell of keys
// that the other region counts. While it is lost each node admits half of the limit of a new key.
func TestRegionsAreShown(t *testing.T) {
	t.Parallel()
	site := "handle /limits {\n\trate_limit_status\n}\n" + zones(zone("z", "key all", "limit 100/"+far), zone("probe", "key {query}", "limit 100/"+far))
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
				if err := json.Unmarshal([]byte(textOf(t, "http://"+n.Addr+"/limits", "application/json")), &v); err != nil {
					return err
				}
				if v.Here != "r0" || len(v.Regions) != 1 || v.Regions[0].Region != "r1" || !want(v.Regions[0]) {
					return fmt.Errorf("node %d shows %+v", n.Number, v)
				}
				if text := textOf(t, "http://"+n.Addr+"/limits", "text/html"); !strings.Contains(text, html) {
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
	probes := 0
	awaitLeft := func(left int) {
		t.Helper()
		eventually(t, fmt.Sprintf("each node leaves %d of a new key", left), func() error {
			for _, n := range nodes {
				probes++
				if got := remaining(t, n, fmt.Sprintf("/probe?%d", probes)); got != left {
					return fmt.Errorf("node %d leaves %d", n.Number, got)
				}
			}
			return nil
		})
	}
	for _, n := range nodes {
		if text := textOf(t, "http://"+n.Addr+"/limits", "text/html"); !strings.Contains(text, ", divided: 50 of it here") {
			t.Errorf("the page of node %d does not say that limits are divided: %s", n.Number, text)
		}
	}
	awaitLeft(49)
	cut(all, faultproxy.Reset)
	cut(all, faultproxy.None)
	awaitLeft(99)
	await("the region is back", up, `<p class="fine">No problems.</p>`)
	admit(t, c, all[1].nodes, "z", 5)
	awaitEqual(t, all, "z", 15)
	admit(t, c, nodes, "z", 2) // and hears of it
	eventually(t, "a node says that the other region counts the key, too", func() error {
		status, text := post(t, nodes[0], "/rate_limit/explain", `{"url":"http://`+nodes[0].Addr+`/z"}`)
		if !strings.Contains(text, `"regions":true`) {
			return fmt.Errorf("explain says %d %s", status, text)
		}
		if text := textOf(t, "http://"+nodes[0].Admin+"/rate_limit/top", ""); !strings.Contains(text, `"regions":true`) {
			return fmt.Errorf("top says %s", text)
		}
		return nil
	})
	for _, text := range []string{"another region is lost", "another region is back"} {
		lines := 0
		for _, n := range nodes {
			lines += len(n.Log.With(text))
		}
		if lines != 1 {
			t.Errorf("%q is in the logs of a region %d times, want once", text, lines)
		}
	}
}
