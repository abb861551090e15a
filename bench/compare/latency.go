package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-tide/ratelimit/bench/outside"
	"github.com/caddy-tide/ratelimit/bench/touch"
	"github.com/caddy-tide/ratelimit/internal/redistest"
)

const (
	// requests a second, a small part of what the server can do: what is measured is waiting, not
	// queueing
	latencyRate = 2000
	connections = 32
)

// A stretch is how long requests took in one run, and what the machine did meanwhile.
type stretch struct {
	p50, p99 float64 // microseconds
	synced   float64 // keys a second
	cpu      float64 // that the server used, of one CPU
	beside   float64 // that its Redis used, or another program
	// milliseconds a second that threads of the server could have run and had no CPU
	waited float64
}

// compareLatency measures how long requests take while 100,000 keys are synced each second, and
// while they are not. A third server, which does the same as the first, shows what is noise. A
// fourth has a Redis that gives way to everything else, as one on another machine would. The last
// is the first once more, beside a program that uses as much of a CPU as the sync does, by the
// node and by Redis, and has nothing to do with the server: what that costs is a machine with too
// few CPUs.
func compareLatency(t *outside.T, program string, rounds int, d time.Duration) error {
	near, polite := redistest.Start(t), redistest.Start(t)
	if err := yieldCPU(polite); err != nil {
		return err
	}
	list := []site{
		busy("100,000 keys busy, not synced", program, nil, 2),
		busy("the same again, for the noise", program, nil, 2),
		busy("synced each second", program, near, 2),
		busy("synced each second, Redis at nice 19", program, polite, 2),
		busy("not synced, beside another program", program, nil, 2),
	}
	const alone, syncing, control = 0, 2, 4
	runs := make([][]stretch, len(list))
	for round := range rounds {
		for i := range control + 1 {
			at, burning := i, 0.0
			if i != control {
				at = (round + i) % control
			} else {
				with, without := runs[syncing][round], runs[alone][round]
				burning = max(0.01, with.cpu+with.beside-without.cpu)
			}
			r, err := measureStretch(t, list[at], d, burning)
			if err != nil {
				return err
			}
			runs[at] = append(runs[at], r)
		}
	}
	writeStretches(list, runs, fmt.Sprintf("Requests at %d a second of a server with %d busy keys, medians of %d runs of %v; ratios to the first, of the same round",
		latencyRate, busyKeys, rounds, d))
	return nil
}

func writeStretches(list []site, runs [][]stretch, title string) {
	fmt.Printf("\n%s:\n\n| | keys synced a second | p50 | p99 | p50, of the first | p99, of the first | CPU of the server | of Redis or the program beside | waited for a CPU |\n"+
		"|---|---|---|---|---|---|---|---|---|\n", title)
	for i, s := range list {
		var p50, p99 []float64
		for round, r := range runs[i] {
			p50, p99 = append(p50, r.p50/runs[0][round].p50), append(p99, r.p99/runs[0][round].p99)
		}
		of := func(value func(stretch) float64) float64 { return median(runs[i], value) }
		fmt.Printf("| %s | %.0f | %.0f µs | %.0f µs | %s | %s | %.2f | %.2f | %.0f ms/s |\n", s.name,
			of(func(r stretch) float64 { return r.synced }), of(func(r stretch) float64 { return r.p50 }), of(func(r stretch) float64 { return r.p99 }),
			spread(p50), spread(p99), of(func(r stretch) float64 { return r.cpu }), of(func(r stretch) float64 { return r.beside }),
			of(func(r stretch) float64 { return r.waited }))
	}
}

// measureStretch starts a server, warms it up and sends requests, beside a program that uses
// burning of a CPU, if that is more than 0.
func measureStretch(t *outside.T, s site, d time.Duration, burning float64) (r stretch, err error) {
	v, err := serveWarm(t, s)
	if err != nil {
		return r, err
	}
	defer v.end()
	beside := 0
	switch {
	case s.redis != nil:
		if beside, err = pidOf(s.redis); err != nil {
			return r, err
		}
	case burning > 0:
		program, err := startBurning(t, burning)
		if err != nil {
			return r, err
		}
		defer stopBurning(program)
		beside = program.Process.Pid
	}
	var all []time.Duration
	if r, err = meanwhile(v.cmd.Process.Pid, beside, func() (err error) { all, err = v.latencies(latencyRate, d); return err }); err != nil {
		return r, err
	}
	r.p50, r.p99 = quantile(all, 0.5), quantile(all, 0.99)
	r.synced, err = v.synced(d)
	return r, err
}

// meanwhile is what a server and another process use of the CPUs while f runs.
func meanwhile(server, beside int, f func() error) (r stretch, err error) {
	read := func() (now stretch, err error) {
		if now.cpu, err = cpuOf(server); err != nil {
			return now, err
		}
		if now.beside, err = cpuOf(beside); err != nil {
			return now, err
		}
		now.waited, err = waitedOf(server)
		return now, err
	}
	before, err := read()
	if err != nil {
		return r, err
	}
	begun := time.Now()
	if err := f(); err != nil {
		return r, err
	}
	after, err := read()
	seconds := time.Since(begun).Seconds()
	r.cpu, r.beside = (after.cpu-before.cpu)/seconds, (after.beside-before.beside)/seconds
	r.waited = (after.waited - before.waited) * 1e3 / seconds
	return r, err
}

// yieldCPU lets a Redis run only when nothing else wants the CPU.
func yieldCPU(s *redistest.Server) error {
	pid, err := pidOf(s)
	if err != nil {
		return err
	}
	if out, err := exec.Command("renice", "-n", "19", "-p", strconv.Itoa(pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("renice: %w\n%s", err, out)
	}
	return nil
}

// latencies sends requests of many keys at an even rate and returns how long they took, sorted. A
// request that was due while its connection still waited for the one before counts from when it was
// due; one whose turn this client noticed late counts from when it was sent.
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
