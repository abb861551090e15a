package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/bench/touch"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// besideKeys is how many keys the requests have.
const besideKeys = 10_000

// keysLua has wrk send one key after the other.
const keysLua = `local n = 0
request = function()
  n = n + 1
  return wrk.format(nil, nil, {["%s"] = "key" .. n %% %d})
end
`

// besideSites are a server without a limiter, one with the small handler, and strict zones.
func besideSites(programs map[string]string, redis *redistest.Server) []site {
	list := []site{
		{name: "Caddy answers by itself", program: programs["bare"], redis: redis},
		{name: "INCRBY and EXPIRE", program: programs["incr"], redis: redis,
			limiter: fmt.Sprintf(`{"handler":"rate_limit","redis":%q,"header":%q,"limit":1000000000,"window":"1h"}`, redis.Addr, touch.Header)},
	}
	for _, of := range []string{"tide", "old"} {
		for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket", "sliding_log"} {
			if programs[of] == "" {
				continue
			}
			list = append(list, site{
				name: of + ", strict " + algorithm, program: programs[of], redis: redis,
				apps: fmt.Sprintf(`"rate_limit":{"redis":{"url":%q},"sync_rate":"strict"},`, redis.URL),
				limiter: fmt.Sprintf(`{"handler":"rate_limit","headers":["off"],"rate_limits":{"beside":{"key":"{http.request.header.%s}","window":"1h","max_events":1000000,"algorithm":%q}}}`,
					touch.Header, algorithm),
			})
		}
	}
	for i := range list {
		list[i].status, list[i].cores = http.StatusOK, 2
	}
	return list
}

var p50Line = regexp.MustCompile(`50%\s+([0-9.]+)(us|ms|s)`)

// compareBeside measures what a request costs that Redis decides on, with each limiter in turn.
func compareBeside(t *outside.T, programs map[string]string, rounds int, duration string) error {
	redis := redistest.Start(t)
	pid, err := pidOf(redis)
	if err != nil {
		return err
	}
	script := filepath.Join(filepath.Dir(programs["bare"]), "keys.lua")
	if err := os.WriteFile(script, fmt.Appendf(nil, keysLua, touch.Header, besideKeys), 0o600); err != nil {
		return err
	}
	type result struct{ rate, cpu, redis, p50 float64 }
	list := besideSites(programs, redis)
	runs := make([][]result, len(list))
	for round := range rounds {
		for i := range list {
			at := (round + i) % len(list)
			redis.Do("FLUSHALL")
			v, err := serve(t, list[at])
			if err != nil {
				return err
			}
			var r run
			var inRedis, requests float64
			var output []byte
			for range 2 { // the first one warms up
				before, _ := cpuOf(v.cmd.Process.Pid)
				there, _ := cpuOf(pid)
				if output, err = exec.Command("wrk", "-t1", "-c16", "-d"+duration, "--latency", "-s", script, v.url).CombinedOutput(); err != nil {
					return fmt.Errorf("wrk: %w\n%s", err, output)
				}
				after, _ := cpuOf(v.cmd.Process.Pid)
				then, _ := cpuOf(pid)
				if r, requests, err = parseWrk(string(output)); err != nil {
					return err
				}
				r.cpu, inRedis = (after-before)*1e6/requests, (then-there)*1e6/requests
			}
			v.end()
			runs[at] = append(runs[at], result{r.rate, r.cpu, inRedis, timeOf(p50Line, string(output))})
		}
	}
	fmt.Printf("\nA request that Redis decides on, 16 connections, %d keys, medians of %d runs of %s:\n\n| | requests a second | CPU of the node | CPU of Redis | p50 |\n|---|---|---|---|---|\n", besideKeys, rounds, duration)
	for i, s := range list {
		of := func(value func(result) float64) float64 { return median(runs[i], value) }
		fmt.Printf("| %s | %.0f | %.1f µs | %.1f µs | %.0f µs |\n", s.name, of(func(r result) float64 { return r.rate }),
			of(func(r result) float64 { return r.cpu }), of(func(r result) float64 { return r.redis }), of(func(r result) float64 { return r.p50 }))
	}
	return nil
}

// timeOf reads a time of wrk's report, in microseconds.
func timeOf(line *regexp.Regexp, output string) (us float64) {
	if m := line.FindStringSubmatch(output); m != nil {
		_, _ = fmt.Sscan(m[1], &us)
		us *= map[string]float64{"us": 1, "ms": 1e3, "s": 1e6}[m[2]]
	}
	return us
}
