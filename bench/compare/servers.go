package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A server is a Caddy that runs.
type server struct {
	name   string
	url    string
	status int
	cmd    *exec.Cmd
}

// A run is what wrk and the kernel say of one server.
type run struct {
	rate float64 // requests a second
	cpu  float64 // microseconds of the server's CPU time a request
	p99  float64 // milliseconds
}

// limiter is the configuration of a limiter that admits or refuses all that wrk sends from its one address.
func limiter(name string, refuse bool, options string) string {
	n, window := 100_000, "50ms"
	if refuse {
		n, window = 1, "1h"
	}
	algorithm := ""
	if options != "old" && name != "ring" && name != "peer" {
		algorithm = `,"algorithm":"sliding_window"`
	}
	if options == "old" {
		options = ""
	}
	return fmt.Sprintf(`{"handler":"rate_limit","rate_limits":{"zone":{"key":"{http.vars.client_ip}","window":%q,"max_events":%d%s}}%s}`,
		window, n, algorithm, options)
}

// compareServers runs each server and the bare one in turn. Ratios are of neighbours in time.
func compareServers(bare program, all []program, rounds int, duration string) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("whole servers are measured with wrk: %w", err)
	}
	base, err := serve(bare.path, "bare", "", http.StatusOK)
	if err != nil {
		return err
	}
	defer base.end()
	var servers []*server
	for _, p := range all {
		options := map[string]string{"": ""}
		if p.name == "tide" || p.name == "old" {
			options = map[string]string{"": "", ", headers off": `,"headers":["off"]`}
		}
		for suffix, option := range options {
			for _, refuse := range []bool{false, true} {
				name, status := p.name+" admitting"+suffix, http.StatusOK
				if refuse {
					name, status = p.name+" refusing"+suffix, http.StatusTooManyRequests
				}
				s, err := serve(p.path, name, limiter(p.name, refuse, option), status)
				if err != nil {
					return err
				}
				defer s.end()
				servers = append(servers, s)
			}
		}
	}
	runs, bases := make(map[*server][]run), make(map[*server][]run)
	for round := range rounds {
		for i := range servers {
			s := servers[(round+i)%len(servers)]
			b, err := base.measure(duration)
			if err != nil {
				return err
			}
			r, err := s.measure(duration)
			if err != nil {
				return err
			}
			runs[s], bases[s] = append(runs[s], r), append(bases[s], b)
		}
	}
	var every []run
	for _, b := range bases {
		every = append(every, b...)
	}
	fmt.Printf("%-32s %s\n", "bare", medians(every))
	for _, s := range servers {
		var rate, cpu, p99 []float64
		for i, r := range runs[s] {
			b := bases[s][i]
			rate, cpu, p99 = append(rate, r.rate/b.rate), append(cpu, b.cpu/r.cpu), append(p99, r.p99/b.p99)
		}
		self := func(v float64) float64 { return v }
		fmt.Printf("%-32s %s   of bare: rate %.3f (%.2f to %.2f), by CPU time %.3f (%.2f to %.2f), p99 %.2f\n", s.name, medians(runs[s]),
			median(rate, self), least(rate, self), most(rate, self), median(cpu, self), least(cpu, self), most(cpu, self), median(p99, self))
	}
	return nil
}

func medians(all []run) string {
	return fmt.Sprintf("%6.0f req/s  %5.2f us CPU/req  p99 %5.2f ms", median(all, func(r run) float64 { return r.rate }),
		median(all, func(r run) float64 { return r.cpu }), median(all, func(r run) float64 { return r.p99 }))
}

// serve starts a Caddy with a limiter before a static response and waits until it answers.
func serve(program, name, limiter string, status int) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	if limiter != "" {
		limiter += ","
	}
	config := fmt.Sprintf(`{"admin":{"disabled":true},"logging":{"logs":{"default":{"level":"ERROR"}}},"apps":{"http":{"servers":{"s":{
		"listen":[%q],"automatic_https":{"disable":true},"routes":[{"handle":[%s{"handler":"static_response","body":"Hello, world!"}]}]}}}}}`, addr, limiter)
	path := filepath.Join(filepath.Dir(program), strings.ReplaceAll(name, " ", "-")+".json")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s := &server{name: name, url: "http://" + addr + "/", status: status, cmd: exec.Command(program, "run", "--config", path)}
	s.cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(program), "XDG_DATA_HOME="+filepath.Dir(program), "XDG_CONFIG_HOME="+filepath.Dir(program))
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		res, err := http.Get(s.url)
		if err == nil {
			_ = res.Body.Close()
			return s, nil
		}
		if time.Now().After(deadline) {
			s.end()
			return nil, fmt.Errorf("%s does not answer: %w", name, err)
		}
	}
}

func (s *server) end() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

var (
	rateLine  = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	totalLine = regexp.MustCompile(`(\d+) requests in`)
	p99Line   = regexp.MustCompile(`99%\s+([0-9.]+)(us|ms|s)`)
)

// measure runs wrk once.
func (s *server) measure(duration string) (run, error) {
	res, err := http.Get(s.url)
	if err != nil {
		return run{}, err
	}
	_ = res.Body.Close()
	if res.StatusCode != s.status {
		return run{}, fmt.Errorf("%s answers %s", s.name, res.Status)
	}
	before, err := s.cpu()
	if err != nil {
		return run{}, err
	}
	output, err := exec.Command("wrk", "-t1", "-c16", "-d"+duration, "--latency", s.url).CombinedOutput()
	if err != nil {
		return run{}, fmt.Errorf("wrk: %w\n%s", err, output)
	}
	after, err := s.cpu()
	if err != nil {
		return run{}, err
	}
	if refused := strings.Contains(string(output), "Non-2xx"); refused != (s.status != http.StatusOK) {
		return run{}, fmt.Errorf("%s: wrong answers:\n%s", s.name, output)
	}
	var r run
	requests := 0.0
	for line, to := range map[*regexp.Regexp]*float64{rateLine: &r.rate, totalLine: &requests, p99Line: &r.p99} {
		m := line.FindSubmatch(output)
		if m == nil {
			return run{}, fmt.Errorf("wrk says nothing of %s:\n%s", line, output)
		}
		if *to, err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			return run{}, err
		}
		if len(m) > 2 {
			*to *= map[string]float64{"us": 1e-3, "ms": 1, "s": 1e3}[string(m[2])]
		}
	}
	r.cpu = (after - before) * 1e6 / requests
	return r, nil
}

// cpu is the CPU time that the server has used, in seconds; 0 where there is no /proc.
func (s *server) cpu() (float64, error) {
	const ticks = 100 // a second: USER_HZ
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, nil
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / ticks, err
}
