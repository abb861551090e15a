package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/bench/touch"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// A site is what a server is configured with.
type site struct {
	name    string
	program string
	limiter string // JSON of a handler, "" for none
	apps    string // further apps: members of a JSON object, each with a comma behind it
	status  int
	cores   int // GOMAXPROCS
	// busy is set where it works without requests, so that it must not run while others are
	// measured, and is to be warm when it is.
	busy  bool
	redis *redistest.Server // that it syncs through, nil for none
}

// A server is a Caddy that runs.
type server struct {
	site
	url string
	cmd *exec.Cmd
}

// A run is what wrk and the kernel say of one server.
type run struct {
	rate float64 // requests a second
	cpu  float64 // microseconds of the server's CPU time a request
	p99  float64 // milliseconds

	synced float64 // keys a second
}

// limiter is the configuration of a limiter that admits or denies all that wrk sends from its one
// address.
func limiter(name string, deny bool, options string) string {
	n, window := 100_000, "50ms"
	if deny {
		n, window = 1, "1h"
	}
	algorithm := ""
	if name != "ring" && name != "peer" {
		algorithm = `,"algorithm":"sliding_window"`
	}
	return fmt.Sprintf(`{"handler":"rate_limit","rate_limits":{"zone":{"key":"{http.vars.client_ip}","window":%q,"max_events":%d%s}}%s}`,
		window, n, algorithm, options)
}

// busy is a site whose server keeps 100,000 keys busy, each once a second, in the zone that
// requests are in; and syncs them each second if there is a Redis.
func busy(name, program string, redis *redistest.Server, cores int) site {
	zone := fmt.Sprintf(`"rate_limits":{"busy":{"key":"{http.request.header.%s}","limits":[{"max_events":1000000000,"window":"1h"}]}}`, touch.Header)
	app := ""
	if redis != nil {
		app = fmt.Sprintf(`"rate_limit":{"redis":{"url":%q},"sync_rate":"1s"},`, redis.URL)
	}
	return site{name: name, program: program, limiter: `{"handler":"rate_limit",` + zone + `}`, cores: cores, status: http.StatusOK, busy: true, redis: redis,
		apps: app + fmt.Sprintf(`"touch":{"keys":%d,"handler":{%s}},`, busyKeys, zone)}
}

const busyKeys = 100_000

// sites are what is compared with the bare server.
func sites(all []program, cores int) (list []site) {
	for _, p := range all {
		options := [][2]string{{"", ""}}
		if p.name == "tide" || p.name == "old" {
			options = [][2]string{{", headers off", `,"headers":["off"]`}, {", ietf headers", ""}}
		}
		for _, o := range options {
			list = append(list,
				site{name: p.name + " admitting" + o[0], program: p.path, limiter: limiter(p.name, false, o[1]), status: http.StatusOK, cores: cores},
				site{name: p.name + " denying" + o[0], program: p.path, limiter: limiter(p.name, true, o[1]), status: http.StatusTooManyRequests, cores: cores})
		}
	}
	return list
}

// compareServers measures each site and the bare one in turn. Ratios are of neighbours in time.
func compareServers(t *outside.T, bare site, list []site, rounds int, duration string) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("whole servers are measured with wrk: %w", err)
	}
	base, err := serve(t, bare)
	if err != nil {
		return err
	}
	defer base.end()
	servers := make([]*server, len(list))
	for i, s := range list {
		if !s.busy {
			if servers[i], err = serve(t, s); err != nil {
				return err
			}
			defer servers[i].end()
		}
	}
	runs, bases := make([][]run, len(list)), make([][]run, len(list))
	for round := range rounds {
		for i := range list {
			at := (round + i) % len(list)
			b, err := base.measure(duration)
			if err != nil {
				return err
			}
			r, err := measureOne(t, list[at], servers[at], duration)
			if err != nil {
				return err
			}
			runs[at], bases[at] = append(runs[at], r), append(bases[at], b)
		}
	}
	writeServers(bare.cores, list, runs, bases)
	return nil
}

// sameByCaddy is a site in which Caddy answers by itself what a limiter answers when it denies:
// such an answer costs that much, whoever decides on it.
func sameByCaddy(t *outside.T, denying site) (site, error) {
	v, err := serve(t, denying)
	if err != nil {
		return site{}, err
	}
	defer v.end()
	res, err := v.get()
	if err != nil {
		return site{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return site{}, err
	}
	if res.StatusCode != denying.status {
		return site{}, fmt.Errorf("%s answers %s", denying.name, res.Status)
	}
	for _, name := range []string{"Server", "Date", "Content-Length"} { // which Caddy adds
		res.Header.Del(name)
	}
	handler, err := json.Marshal(map[string]any{"handler": "static_response", "status_code": res.StatusCode, "headers": res.Header, "body": string(body)})
	return site{name: "the answer of " + denying.name + ", by Caddy itself", program: denying.program, limiter: string(handler),
		status: denying.status, cores: denying.cores}, err
}

// measureOne starts the server for it where none runs.
func measureOne(t *outside.T, s site, running *server, duration string) (run, error) {
	if running != nil {
		return running.measure(duration)
	}
	busy, err := serveWarm(t, s)
	if err != nil {
		return run{}, err
	}
	defer busy.end()
	begun := time.Now()
	r, err := busy.measure(duration)
	if err == nil {
		r.synced, err = busy.synced(time.Since(begun))
	}
	return r, err
}

// serveWarm starts a busy server with an empty Redis and waits until every key was synced once
// and is no new one.
func serveWarm(t *outside.T, s site) (*server, error) {
	if s.redis != nil {
		s.redis.Do("FLUSHALL")
	}
	v, err := serve(t, s)
	if err != nil {
		return nil, err
	}
	// for all alike, also where nothing syncs: two intervals and a half, after which no key is new
	time.Sleep(2500 * time.Millisecond)
	if s.redis != nil {
		s.redis.Do("CONFIG", "RESETSTAT")
	}
	return v, nil
}

// synced is how many keys a second went to Redis since the server was warm. One that syncs
// nothing would look fast.
func (s *server) synced(d time.Duration) (float64, error) {
	if s.redis == nil {
		return 0, nil
	}
	n := s.redis.Calls("hset") // one for each key that is pushed
	if n == 0 {
		return 0, fmt.Errorf("%s: nothing was synced", s.name)
	}
	return float64(n) / d.Seconds(), nil
}

func writeServers(cores int, list []site, runs, bases [][]run) {
	fmt.Printf("\nWhole servers, GOMAXPROCS=%d:\n\n| | requests a second | CPU a request | rate, of bare | by CPU time, of bare |\n|---|---|---|---|---|\n", cores)
	var every []run
	for _, b := range bases {
		every = append(every, b...)
	}
	row := func(name string, of []run) {
		fmt.Printf("| %s | %.0f | %.1f µs |", name, median(of, func(r run) float64 { return r.rate }), median(of, func(r run) float64 { return r.cpu }))
	}
	row("bare: Caddy answers by itself", every)
	fmt.Printf(" | |\n")
	for i, s := range list {
		var rate, cpu []float64
		for j, r := range runs[i] {
			b := bases[i][j]
			rate, cpu = append(rate, r.rate/b.rate), append(cpu, b.cpu/r.cpu)
		}
		row(s.name, runs[i])
		fmt.Printf(" %s | %s |\n", spread(rate), spread(cpu))
	}
	for i, s := range list {
		if s.redis != nil {
			fmt.Printf("\n%s: %.0f keys a second.\n", s.name, median(runs[i], func(r run) float64 { return r.synced }))
		}
	}
}

// spread is a median with the least and the most.
func spread(ratios []float64) string {
	self := func(v float64) float64 { return v }
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(ratios, self), least(ratios, self), most(ratios, self))
}

// serve starts a Caddy with a limiter before a static response and waits until it answers.
func serve(t *outside.T, s site) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	limiter := s.limiter
	if limiter != "" {
		limiter += ","
	}
	config := fmt.Sprintf(`{"admin":{"disabled":true},"logging":{"logs":{"default":{"level":"ERROR"}}},"apps":{%s"http":{"servers":{"s":{
		"listen":[%q],"automatic_https":{"disable":true},"routes":[{"handle":[%s{"handler":"static_response","body":"Hello, world!"}]}]}}}}}`, s.apps, addr, limiter)
	dir := filepath.Dir(s.program)
	path := filepath.Join(dir, strings.ReplaceAll(s.name, " ", "-")+".json")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	v := &server{site: s, url: "http://" + addr + "/", cmd: exec.Command(s.program, "run", "--config", path)}
	v.cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir, fmt.Sprint("GOMAXPROCS=", s.cores))
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(v.end)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		res, err := v.get()
		if err == nil {
			_ = res.Body.Close()
			return v, nil
		}
		if time.Now().After(deadline) {
			v.end()
			return nil, fmt.Errorf("%s does not answer: %w", s.name, err)
		}
	}
}

func (s *server) get() (*http.Response, error) {
	r, err := http.NewRequest(http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set(touch.Header, "wrk")
	return http.DefaultClient.Do(r)
}

func (s *server) end() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// measure runs wrk once.
func (s *server) measure(duration string) (run, error) {
	res, err := s.get()
	if err != nil {
		return run{}, err
	}
	_ = res.Body.Close()
	if res.StatusCode != s.status {
		return run{}, fmt.Errorf("%s answers %s", s.name, res.Status)
	}
	before, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return run{}, err
	}
	output, err := exec.Command("wrk", "-t1", "-c16", "-d"+duration, "--latency", "-H", touch.Header+": wrk", s.url).CombinedOutput()
	if err != nil {
		return run{}, fmt.Errorf("wrk: %w\n%s", err, output)
	}
	after, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return run{}, err
	}
	if denied := strings.Contains(string(output), "Non-2xx"); denied != (s.status != http.StatusOK) {
		return run{}, fmt.Errorf("%s: wrong answers:\n%s", s.name, output)
	}
	r, requests, err := parseWrk(string(output))
	r.cpu = (after - before) * 1e6 / requests
	return r, err
}

var (
	rateLine  = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	totalLine = regexp.MustCompile(`(\d+) requests in`)
	p99Line   = regexp.MustCompile(`99%\s+([0-9.]+)(us|ms|s)`)
)

// parseWrk reads wrk's report: what it says of a run, and the number of requests.
func parseWrk(output string) (r run, requests float64, err error) {
	for line, to := range map[*regexp.Regexp]*float64{rateLine: &r.rate, totalLine: &requests, p99Line: &r.p99} {
		m := line.FindStringSubmatch(output)
		if m == nil {
			return r, 0, fmt.Errorf("wrk says nothing of %s:\n%s", line, output)
		}
		if *to, err = strconv.ParseFloat(m[1], 64); err != nil {
			return r, 0, err
		}
		if len(m) > 2 {
			*to *= map[string]float64{"us": 1e-3, "ms": 1, "s": 1e3}[m[2]]
		}
	}
	return r, requests, nil
}
