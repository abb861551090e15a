package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/bench/touch"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	latencyRate = 2000 // requests a second, a small part of what the server can do: what is measured is waiting, not queueing
	connections = 32
)

// compareLatency measures how long requests take while 100,000 keys are exchanged each second, and while they are not. A third server, which
// does the same as the first, shows what is noise. A fourth has a Redis that gives way to everything else, as one on another machine would.
func compareLatency(t *outside.T, program string, rounds int, d time.Duration) error {
	near, polite := redistest.Start(t), redistest.Start(t)
	if err := yieldCPU(polite); err != nil {
		return err
	}
	list := []site{
		busy("100,000 keys busy, not exchanged", program, nil, 2),
		busy("the same again, for the noise", program, nil, 2),
		busy("exchanged each second", program, near, 2),
		busy("exchanged each second, Redis at nice 19", program, polite, 2),
	}
	p50, p99, keys := make([][]float64, len(list)), make([][]float64, len(list)), make([][]float64, len(list))
	for round := range rounds {
		for i := range list {
			at := (round + i) % len(list)
			all, exchanged, err := latenciesOf(t, list[at], d)
			if err != nil {
				return err
			}
			keys[at] = append(keys[at], exchanged)
			p50[at], p99[at] = append(p50[at], quantile(all, 0.5)), append(p99[at], quantile(all, 0.99))
		}
	}
	fmt.Printf("\nRequests at %d a second of a server with %d busy keys, medians of %d runs of %v; ratios to the first, of the same round:\n\n",
		latencyRate, busyKeys, rounds, d)
	fmt.Printf("| | keys exchanged a second | p50 | p99 | p50, of the first | p99, of the first |\n|---|---|---|---|---|---|\n")
	for i, s := range list {
		fmt.Printf("| %s | %.0f | %.0f µs | %.0f µs | %s | %s |\n", s.name, middle(keys[i]), middle(p50[i]), middle(p99[i]),
			spread(ratios(p50[i], p50[0])), spread(ratios(p99[i], p99[0])))
	}
	return nil
}

// latenciesOf starts a server, warms it up and sends requests.
func latenciesOf(t *outside.T, s site, d time.Duration) (all []time.Duration, exchanged float64, err error) {
	v, err := serveWarm(t, s)
	if err != nil {
		return nil, 0, err
	}
	defer v.end()
	if all, err = v.latencies(latencyRate, d); err != nil {
		return nil, 0, err
	}
	exchanged, err = v.exchanged(d)
	return all, exchanged, err
}

// yieldCPU lets a Redis run only when nothing else wants the CPU.
func yieldCPU(s *redistest.Server) error {
	_, pid, _ := strings.Cut(s.Do("INFO", "server").(string), "process_id:")
	pid, _, _ = strings.Cut(pid, "\r\n")
	if out, err := exec.Command("renice", "-n", "19", "-p", pid).CombinedOutput(); err != nil {
		return fmt.Errorf("renice: %w\n%s", err, out)
	}
	return nil
}

// latencies sends requests of many keys at an even rate and returns how long they took, sorted. A request that was due while its connection
// still waited for the one before counts from when it was due; one whose turn this client noticed late counts from when it was sent.
func (s *server) latencies(rate int, d time.Duration) ([]time.Duration, error) {
	var (
		mu     sync.Mutex
		all    []time.Duration
		failed error
		wg     sync.WaitGroup
	)
	begun, gap := time.Now(), time.Second*connections/time.Duration(rate)
	for i := range connections {
		wg.Go(func() {
			took, err := s.pace(i, begun.Add(gap*time.Duration(i)/connections), gap, begun.Add(d))
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, took...); err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	if failed == nil && len(all) == 0 {
		failed = fmt.Errorf("%s: no request in %v", s.name, d)
	}
	return all, failed
}

// pace sends a request every gap over one connection.
func (s *server) pace(who int, due time.Time, gap time.Duration, end time.Time) (took []time.Duration, err error) {
	host := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/")
	c, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for n := 0; due.Before(end); n++ {
		from := due
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			from = time.Now()
		}
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n%s: key-%d\r\n\r\n", host, touch.Header, (n*connections+who)%busyKeys); err != nil {
			return took, err
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return took, err
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return took, err
		}
		_ = res.Body.Close()
		if res.StatusCode != s.status {
			return took, fmt.Errorf("%s answers %s", s.name, res.Status)
		}
		took = append(took, time.Since(from))
		due = due.Add(gap)
	}
	return took, nil
}

// quantile is in microseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]) / 1e3
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

func middle(v []float64) float64 { return median(v, func(v float64) float64 { return v }) }
