// Package redis measures what a sync with Redis costs, and what requests notice of it. The
// figures of docs/internals/costs.md come from
//
//	go test -tags nobadger,nomysql,nopgx ./redis -figures -v
package redis

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-tide/ratelimit/algorithms"
	"github.com/caddy-tide/ratelimit/internal/faultproxy"
	"github.com/caddy-tide/ratelimit/internal/keys"
	"github.com/caddy-tide/ratelimit/internal/redistest"
	"github.com/caddy-tide/ratelimit/internal/table"
	ratesync "github.com/caddy-tide/ratelimit/sync"
)

var figures = flag.Bool("figures", false, "measure for long enough to be worth a page")

// TestSync measures the server's time for each key: many keys are touched over and over, and
// synced every 100 ms.
func TestSync(t *testing.T) {
	measured := time.Second
	if *figures {
		measured = 4 * time.Second
	}
	for _, keys := range []int{2500, 25_000} {
		t.Run(fmt.Sprintf("window, %d keys", keys), func(t *testing.T) {
			measureSync[algorithms.WindowState](t, ratesync.Spec{Zone: "z", Kind: 's', Window: time.Hour, SubWindows: 1, History: 1},
				algorithms.Params{Kind: algorithms.SlidingWindow, Limit: 1 << 40, Window: time.Hour, SubWindows: 1}, keys, measured)
		})
		t.Run(fmt.Sprintf("bucket, %d keys", keys), func(t *testing.T) {
			measureSync[algorithms.BucketState](t, ratesync.Spec{Zone: "z", Kind: 't', Window: time.Hour, SubWindows: 1, History: 1},
				algorithms.Params{Kind: algorithms.TokenBucket, Limit: 1 << 20, Window: time.Hour, Burst: 1 << 20}, keys, measured)
		})
	}
}

func measureSync[S any](t *testing.T, spec ratesync.Spec, alg algorithms.Params, keyCount int, measured time.Duration) {
	const rate = 100 * time.Millisecond
	server := redistest.Start(t)
	now := func() int64 { return time.Now().UnixNano() }
	r := ratesync.NewReplicator(server.Client(), "bench", time.Second, now, zap.NewNop())
	defer r.Close()
	tab := table.New[S](alg.Kind, 1<<20)
	source := ratesync.NewSource(tab, spec)
	tab.Configure(table.SyncConfig{Params: alg, Interval: rate, Waker: source.Waker}, 1<<20)
	limit := alg.Compile()
	touch := func() {
		raw := make([]byte, 8)
		for i := range keyCount {
			binary.BigEndian.PutUint64(raw, uint64(i))
			tab.Take(limit, keys.KeyOf(raw), raw, now(), 1, 0)
		}
	}
	touch()
	r.Attach(source, rate)
	redistest.Eventually(t, "all keys were synced", func() bool { return r.Status().Keys >= int64(keyCount) })
	// what remains is the steady state: every key is known, each touch is pushed
	server.Do("CONFIG", "RESETSTAT")
	before, used := r.Status(), cpu(t, server)
	// the load that is measured: every key twice in an interval
	for end := time.Now().Add(measured); time.Now().Before(end); time.Sleep(rate / 2) {
		touch()
	}
	after, used := r.Status(), cpu(t, server)-used
	calls, each := server.Calls("evalsha"), server.TimeOf("evalsha")
	synced := after.Keys - before.Keys
	if calls == 0 || synced == 0 {
		t.Fatalf("%d calls synced %d keys", calls, synced)
	}
	t.Logf("%d calls, %.0f keys each: %.0f us a call, %.2f us of the server's time a key; %.2f us of its CPU in all; %d failures",
		calls, float64(synced)/float64(calls), each, each*float64(calls)/float64(synced), used*1e6/float64(synced), after.Failures-before.Failures)
	source.Detach()
}

// cpu is the CPU time that the server has used, in seconds: with its network, and without the time
// that others had the CPU.
func cpu(t *testing.T, server *redistest.Server) (sum float64) {
	for line := range strings.Lines(server.Do("INFO", "cpu").(string)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// A node is a Caddy under test.
type node struct{ url string }

// start runs the program of bench/tide with a limit for each X-Api-Key. app is the rate_limit app.
func start(t *testing.T, program, app string) node {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	config := fmt.Sprintf(`{"admin":{"disabled":true},"logging":{"logs":{"default":{"level":"ERROR"}}},"apps":{"rate_limit":%s,"http":{"servers":{"s":{
		"listen":[%q],"automatic_https":{"disable":true},"routes":[{"handle":[
		{"handler":"rate_limit","rate_limits":{"z":{"key":"{http.request.header.X-Api-Key}","limits":[{"max_events":1000000,"window":"1m"}]}}},
		{"handler":"static_response","body":"Hello, world!"}]}]}}}}}`, app, addr)
	dir := t.TempDir()
	path := filepath.Join(dir, "caddy.json")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "run", "--config", path)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	n := node{"http://" + addr + "/"}
	redistest.Eventually(t, "Caddy answers", func() bool {
		res, err := http.Get(n.url)
		if err == nil {
			_ = res.Body.Close()
		}
		return err == nil
	})
	return n
}

// latencies sends requests of many keys at an even rate, well below what the server can do, and
// returns how long they took, sorted. What waits because the client is busy is counted: time runs
// from when a request was due.
func (n node) latencies(t *testing.T, rate int, d time.Duration) []time.Duration {
	const connections, keys = 16, 5000
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	all := make([]time.Duration, int(d.Seconds()*float64(rate)))
	due := make(chan int)
	begun := time.Now()
	at := func(i int) time.Time { return begun.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for i := range due {
				r, _ := http.NewRequest(http.MethodGet, n.url, nil)
				r.Header.Set("X-Api-Key", fmt.Sprint("key-", i%keys))
				res, err := client.Do(r)
				if err != nil {
					t.Error(err)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Errorf("answer %s", res.Status)
				}
				all[i] = time.Since(at(i))
			}
		})
	}
	for i := range all {
		time.Sleep(time.Until(at(i))) // an even rate
		due <- i
	}
	close(due)
	wg.Wait()
	slices.Sort(all)
	return all
}

// TestLatency compares requests of a node without Redis, of one that syncs 5,000 keys every 100
// ms, and of one whose Redis went silent.
func TestLatency(t *testing.T) {
	rounds, d := 1, 500*time.Millisecond
	if *figures {
		rounds, d = 9, 2*time.Second
	}
	program := filepath.Join(t.TempDir(), "tide")
	if out, err := exec.Command("go", "build", "-tags", "nobadger,nomysql,nopgx", "-o", program, "../tide").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	server := redistest.Start(t)
	silent := faultproxy.Start(t, server.Addr)
	app := func(addr string) string {
		return fmt.Sprintf(`{"redis":{"url":"redis://%s"},"sync_rate":"100ms"}`, addr)
	}
	names := []string{"without Redis", "syncing every 100ms", "Redis silent"}
	nodes := []node{start(t, program, `{}`), start(t, program, app(server.Addr)), start(t, program, app(silent.Addr))}
	for _, n := range nodes {
		n.latencies(t, 2000, time.Second) // all keys have entered
	}
	silent.Set(faultproxy.Blackhole)
	if server.Calls("evalsha") == 0 {
		t.Error("nothing was synced")
	}
	load := func() string { b, _ := os.ReadFile("/proc/loadavg"); return string(b) }
	t.Logf("load average %s", load())
	var p50, p99 [3][]float64
	for round := range rounds {
		for i := range nodes {
			at := (round + i) % len(nodes)
			all := nodes[at].latencies(t, 2000, d)
			p50[at] = append(p50[at], float64(all[len(all)/2])/1e6)
			p99[at] = append(p99[at], float64(all[len(all)*99/100])/1e6)
		}
	}
	for i, name := range names {
		t.Logf("%-24s p50 %.2f ms, %.2f of the first; p99 %.2f ms, %.2f of the first (%.2f to %.2f)", name,
			median(p50[i]), median(ratios(p50[i], p50[0])), median(p99[i]), median(ratios(p99[i], p99[0])),
			slices.Min(ratios(p99[i], p99[0])), slices.Max(ratios(p99[i], p99[0])))
	}
	t.Logf("load average %s", load())
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
