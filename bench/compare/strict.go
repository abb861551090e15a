package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

// denying is a site whose one zone denies all but the first request of a client.
func denying(name, program string, redis *redistest.Server, options string) site {
	s := site{name: name, program: program, limiter: limiter("tide", true, options), cores: 2, status: http.StatusTooManyRequests, redis: redis}
	if redis != nil {
		s.apps = fmt.Sprintf(`"rate_limit":{"redis":{"url":%q},"sync_rate":"strict"},`, redis.URL)
	}
	return s
}

// compareStrict measures how long a request takes that a strict zone denies, beside one that a
// local zone does. A third server does the same as the first, for the noise. A fourth asks Redis
// for each denial, as count_denied has it: what a call would be seen to cost.
func compareStrict(t *outside.T, program string, rounds int, d time.Duration) error {
	redis := redistest.Start(t)
	list := []site{
		denying("in a local zone", program, nil, ""),
		denying("the same again, for the noise", program, nil, ""),
		denying("in a strict zone", program, redis, ""),
		denying("in a strict zone with count_denied", program, redis, ""),
	}
	list[3].limiter = `{"handler":"rate_limit","rate_limits":{"counted":{"key":"{http.vars.client_ip}","window":"1h","max_events":1,"count_denied":true,"algorithm":"sliding_window"}}}`
	type result struct{ p50, p99, calls float64 }
	runs := make([][]result, len(list))
	for round := range rounds {
		for i := range list {
			at := (round + i) % len(list)
			s := list[at]
			v, err := serve(t, s)
			if err != nil {
				return err
			}
			calls := func() int {
				if s.redis == nil {
					return 0
				}
				return s.redis.Info("stats", "total_commands_processed")
			}
			before := calls()
			all, err := v.latencies(latencyRate, d)
			if err != nil {
				return err
			}
			runs[at] = append(runs[at], result{quantile(all, 0.5), quantile(all, 0.99), float64(calls()-before) / d.Seconds()})
			v.end()
		}
	}
	fmt.Printf("\nRequests of one client that are denied, %d a second over %d connections, medians of %d runs of %v; ratios to the first, of the same round:\n\n"+
		"| | p50 | p99 | p50, of the first | p99, of the first | commands of Redis a second |\n|---|---|---|---|---|---|\n", latencyRate, connections, rounds, d)
	for i, s := range list {
		var p50, p99 []float64
		for round, r := range runs[i] {
			p50, p99 = append(p50, r.p50/runs[0][round].p50), append(p99, r.p99/runs[0][round].p99)
		}
		of := func(value func(result) float64) float64 { return median(runs[i], value) }
		fmt.Printf("| %s | %.0f µs | %.0f µs | %s | %s | %.0f |\n", s.name, of(func(r result) float64 { return r.p50 }),
			of(func(r result) float64 { return r.p99 }), spread(p50), spread(p99), of(func(r result) float64 { return r.calls }))
	}
	return nil
}
