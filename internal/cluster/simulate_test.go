//go:build chaos

package cluster_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-tide/ratelimit/internal/cluster"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/simulate"
)

// replayed are zones of all algorithms, and one with a ban, with the sync_rates of each.
func replayed() (all []string) {
	for name, options := range map[string]string{
		"fixed_window": "", "sliding_window": "", "sliding_log": "", "token_bucket": "burst 30", "gcra": "burst 30", "leaky_bucket": "queue 20",
		"ban": "ban 1m after 3/5s",
	} {
		algorithm := name
		if name == "ban" {
			algorithm = "fixed_window"
		}
		for _, rate := range []string{"200ms", "1s", "strict", "local"} {
			if name == "ban" && rate == "strict" {
				continue // in shadow mode each node has bans of its own, and a replay one of all
			}
			all = append(all, fmt.Sprintf("zone %s_%s {\nkey {header.X-User}\nalgorithm %s\nlimit 100/10s\nsync_rate %s\nenforce off\n%s\n}\n", name, rate, algorithm, rate, options))
		}
	}
	return all
}

// sendUneven sends requests of a dozen users to the nodes in turn, one after the other: some send
// far more than others.
func sendUneven(t *testing.T, nodes []*cluster.Node, requests int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	rng := rand.New(rand.NewPCG(1, 2))
	next := time.Now().Truncate(10 * time.Second).Add(10*time.Second + 300*time.Millisecond)
	for i := range requests {
		next = next.Add(time.Millisecond + time.Duration(rng.ExpFloat64()*float64(4*time.Millisecond)))
		time.Sleep(time.Until(next)) // the load, which begins just after a window
		q, err := http.NewRequest(http.MethodGet, "http://"+nodes[i%len(nodes)].Addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-User", fmt.Sprint(int(12*rng.Float64()*rng.Float64()*rng.Float64())))
		res, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

var wouldDenyLine = regexp.MustCompile(`^caddy_rate_limit_decisions_total\{decision="would_deny",zone="(\w+)"\} (\d+)$`)

// wouldDeny adds up how many requests each zone of the nodes would have denied, by their metrics.
func wouldDeny(t *testing.T, nodes []*cluster.Node) map[string]int64 {
	t.Helper()
	sums := map[string]int64{}
	for _, n := range nodes {
		res, err := http.Get("http://" + n.Admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if m := wouldDenyLine.FindStringSubmatch(lines.Text()); m != nil {
				k, err := strconv.ParseInt(m[2], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				sums[m[1]] += k
			}
		}
		_ = res.Body.Close()
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return sums
}

// simulated replays the logs of nodes by their configuration.
func simulated(t *testing.T, dir, config string, nodes int) (r simulate.Report) {
	t.Helper()
	path := filepath.Join(dir, "Caddyfile")
	config = strings.NewReplacer("{{.Port}}", "80", "{{.Admin}}", "off", "{{.Node}}", "1").Replace(config)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"rate-limit", "simulate", "--config", path, "--adapter", "caddyfile", "--json", "--nodes", strconv.Itoa(nodes)}
	for i := range nodes {
		args = append(args, fmt.Sprintf("%s/node%d.log", dir, i+1))
	}
	out, err := exec.Command(caddy(t), args...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// A replay with several nodes does what real ones have done, within a hundredth of the requests and
// one: all algorithms, by the access logs of three processes around a Redis. Zones in shadow mode
// decide alone, so the same requests serve all of them. A log has when a request came, not when it
// was decided. So that no ban hangs on a millisecond between the two, the load begins just after a
// window has, and bans outlast it.
// It runs beside no other test of the package: a ban comes late to nodes that wait for a CPU.
func TestAReplayDoesWhatNodesDid(t *testing.T) {
	const requests = 2500 // somewhat more than a window
	r := redistest.Start(t)
	dir := t.TempDir()
	text := config(slowRedis(r), "log {\noutput file "+dir+"/node{{.Node}}.log\nformat json {\ntime_format unix_nano\nduration_format ns\n}\n}\n"+zones(replayed()...))
	c := start(t, 3, text)
	awaitFirstCycle(t, c.Nodes)
	sendUneven(t, c.Nodes, requests)
	did := wouldDeny(t, c.Nodes)
	if err := c.Stop(); err != nil { // the logs are whole
		t.Fatal(err)
	}
	report := simulated(t, dir, text, 3)
	if report.Reached != requests || len(report.Zones) != len(replayed()) {
		t.Fatalf("%d requests came to %d zones: %+v", report.Reached, len(report.Zones), report.Read)
	}
	for _, z := range report.Zones {
		off, fewer := z.WouldDeny-did[z.Zone], int64(0)
		if z.Zone == "sliding_log_strict" { // nodes give room back by sixteenths
			fewer = (requests - did[z.Zone]) / 16
		}
		if off > requests/100+1 || -off > fewer+requests/100+1 || did[z.Zone] < requests/50 || did[z.Zone] > requests*19/20 {
			t.Errorf("zone %s: the nodes would have denied %d of %d requests, the replay %d", z.Zone, did[z.Zone], requests, z.WouldDeny)
		} else {
			t.Logf("zone %s: the nodes would have denied %d of %d requests, the replay %+d", z.Zone, did[z.Zone], requests, off)
		}
	}
}
